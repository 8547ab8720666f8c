#include "llmc/model/transformer_impl.h"

namespace llmc {

int logits_chunk(int N, int padded_vocab, size_t element_bytes, size_t limit) {
    const size_t rows = limit / (static_cast<size_t>(padded_vocab) * element_bytes) / 128 * 128;
    return static_cast<int>(std::min<size_t>(static_cast<size_t>(N), std::max<size_t>(rows, 128)));
}

template class Transformer<float, Gpt2Block>;
template class Transformer<bf16, Gpt2Block>;

}  // namespace llmc
