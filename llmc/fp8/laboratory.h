// The sums of --fp8-probe-every, on the device and in checkpoints: how far each layer's FP8 products are from the same
// products in BF16. LinearObserver (linear/observer.h) measures them. A step itself never reads them.
#pragma once
#include <array>
#include <vector>

#include "llmc/comm/comm.h"
#include "llmc/fp8/recipe.h"
#include "llmc/shard/arena.h"

namespace llmc {

// Rows of three sums that kernels add to on the device.
class Fp8RankSums {
public:
    using Row = std::array<double, 3>;

    void plan(Arena& arena, size_t rows);
    void clear(stream_t stream);
    double* row(size_t row) const { return sums_ + 3 * row; }
    size_t rows() const { return rows_; }

    // Sums since the last clear(), over all ranks in their order. A collective that waits for the device.
    std::vector<Row> read(const Comm& comm, stream_t stream) const;
    // Continues from what read() returned, on any number of ranks.
    void restore(const std::vector<Row>& rows, const Comm& comm, stream_t stream);

private:
    size_t rows_ = 0;
    double* sums_ = nullptr;  // (rows, 3)
};

// The products of a layer, which a probe repeats in BF16.
enum class Fp8Probed { forward, dgrad, wgrad };
constexpr int kFp8Probed = 3;
constexpr const char* kFp8ProbedNames[] = {"forward_error", "dgrad_error", "wgrad_error"};
// ||FP8 - BF16|| / ||BF16|| from the sums of add_differences(); NaN if all values are 0.
double probed_error(const Fp8RankSums::Row& sums);

class Fp8Laboratory {
public:
    Fp8Laboratory(const Fp8Config& config, const Comm& comm) : config_(config), comm_(comm) {}

    // Add all layers first, then plan the memory.
    void add_layer() { layers_++; }
    void plan(Arena& arena) {
        if (config_.probe) probed_.plan(arena, layers_ * kFp8Probed);
    }

    // While paused, nothing is measured: the micro-step will be repeated.
    void pause(bool paused) { paused_ = paused; }

    // Training passes are probed until told otherwise, in runs that are planned with a probe.
    void probe(bool on) { probes_ = on && config_.probe; }
    bool probes() const { return probes_ && !paused_; }
    double* probed_sums(int layer, Fp8Probed product) const { return probed_.row(probed_row(layer, product)); }
    void clear_probed(stream_t stream) { probed_.clear(stream); }
    // By probed_row(), since they were cleared. A collective that waits for the device.
    std::vector<Fp8RankSums::Row> read_probed(stream_t stream) const { return probed_.read(comm_, stream); }
    void restore_probed(const std::vector<Fp8RankSums::Row>& rows, stream_t stream);
    static size_t probed_row(int layer, Fp8Probed product) { return layer * kFp8Probed + static_cast<int>(product); }

private:
    const Fp8Config config_;
    const Comm comm_;
    bool paused_ = false, probes_ = false;
    size_t layers_ = 0;
    Fp8RankSums probed_;  // by probed_row()
};

}  // namespace llmc
