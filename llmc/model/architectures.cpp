#include "llmc/model/architecture.h"
#include "llmc/model/gpt2_block.h"

namespace llmc {

const Architecture kGpt2 = architecture_of<Gpt2Block>("gpt2", gpt2_table);

}  // namespace llmc
