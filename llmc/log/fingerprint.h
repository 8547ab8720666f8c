// Fingerprints that show whether two runs may be compared: of the weights they started from, and of the batches they
// trained on. They stand in run.json and metrics.jsonl as 16 hexadecimal digits of XXH64.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

#include "llmc/shard/weights.h"

namespace llmc {

std::string fingerprint_text(uint64_t fingerprint);  // 16 hexadecimal digits

// The samples of one optimizer step. The sum of a hash a sample (its T + 1 tokens, and its place in the step), so it is
// the same however a step is split into micro-steps, rows and ranks, and differs when two samples change places.
class BatchFingerprint {
public:
    void clear() { sum_ = 0; }
    // B samples that are number `first`, first + 1, ... of the step.
    void add(const int* tokens,   // (B, T)
             const int* targets,  // (B, T): the tokens one place further
             int B, int T, int64_t first);
    uint64_t value() const { return sum_; }  // of this rank's samples; ranks add theirs modulo 2^64

private:
    uint64_t sum_ = 0;
};

// Names and master weights of every tensor in the table's order, whatever the precision of the working copy; reads all
// of them back to the host, once a run. Every rank must call it (get_tensor() may gather), and all get the same.
template <class Real>
uint64_t weights_fingerprint(const Weights<Real>& weights, stream_t stream);

}  // namespace llmc
