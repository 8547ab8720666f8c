// The origin of a run's numbers: versions of this program, its compiler and its libraries, and fingerprints of the
// weights that the run started from and of the batches that it trained on. Two runs are comparable if these agree.
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "llmc/base/json.h"
#include "llmc/device/runtime.h"

namespace llmc {

template <class Real>
class Weights;

// ---- versions -------------------------------------------------------------------------------------------------------
// For run.json and --version.

std::string version_number();  // "0.2.0"

// {"train_gpt": "0.2.0", "git": "1a2b3c4-dirty", "built_for": "sm_90a" (on the host device its -march), "compiler":
// "g++ 12.2.0"}, then the libraries. On the host device: OpenBLAS, the processor that its kernels are for, and oneDNN.
// On a GPU: CUDA at compile time, its runtime, the newest CUDA that the driver supports, cuBLASLt, and NCCL if it is
// loaded.
Json versions_json();

// Formats a library's number: 13010 with {1000, 10} is "13.1". Public for tests.
std::string dotted_version(int number, const std::vector<int>& units);

// ---- fingerprints ---------------------------------------------------------------------------------------------------
// run.json and metrics.jsonl contain them as 16 hexadecimal digits.

std::string fingerprint_text(uint64_t fingerprint);  // 16 hexadecimal digits

// Fingerprint of the samples of one optimizer step: the sum of one hash per sample, which covers its T + 1 tokens and
// its place in the step. So it does not depend on how a step is split into micro-steps, rows and ranks, but it changes
// if two samples change places.
class BatchFingerprint {
public:
    void clear() { sum_ = 0; }
    // Adds B samples, which are number `first`, first + 1, ... of the step.
    void add(const int* tokens,   // (B, T)
             const int* targets,  // (B, T): the tokens one place further
             int B, int T, int64_t first);
    uint64_t value() const { return sum_; }  // covers this rank's samples; ranks add their values modulo 2^64

private:
    uint64_t sum_ = 0;
};

// Fingerprint of the names and master weights of all tensors, which does not depend on the masters' format or on how
// they are sharded: the sum of the tensors' checksum_values(), keyed by their names. The device reads all masters once.
// A collective: the ranks of a group add the sums of their slices. Groups, and ranks that have whole masters, do not
// exchange anything, so their values differ if their masters do. `workspace`: 8 bytes on the device.
template <class Real>
uint64_t weights_fingerprint(const Weights<Real>& weights, void* workspace, stream_t stream);

}  // namespace llmc
