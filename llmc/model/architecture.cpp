// The list of architectures.
#include "llmc/model/architecture.h"

namespace llmc {

const std::vector<const Architecture*>& architectures() {
    static const std::vector<const Architecture*> all = {&kGpt2, &kLlama, &kQwen3, &kNano};
    return all;
}

}  // namespace llmc
