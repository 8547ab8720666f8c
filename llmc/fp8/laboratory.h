// The numbers of the research instruments for FP8, on the device and in checkpoints, by layer. LinearObserver
// (linear/observer.h) measures them. Of a step itself, only --fp8-smooth reads them.
//
//   --fp8-smooth        a factor for each channel of some layers' inputs (llmc/kernels/outliers.h)
//   outliers            kurtosis of inputs and alignment of gates, in steps that are recorded (llmc/kernels/outliers.h)
//   --fp8-probe-every   how far FP8 products are from the same products in BF16
#pragma once
#include <array>
#include <limits>
#include <string>
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

// Outliers of one layer, over all ranks. NaN: not measured.
struct Fp8Outliers {
    Fp8RankSums::Row moments{};                    // moments of x, see add_moments()
    float alignment[2]{kUnmeasured, kUnmeasured};  // alignment of a gate-and-up weight, see gate_alignment()

    static constexpr float kUnmeasured = std::numeric_limits<float>::quiet_NaN();

    // n sum x^4 / (sum x^2)^2: 3 for a normal distribution.
    double kurtosis() const { return moments[0] * moments[2] / (moments[1] * moments[1]); }
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
    void add_layer() { smooth_.push_back(kNotSmooth); }
    // With --fp8-smooth, the channels of the layer's input get factors. All such layers have the same number of
    // channels.
    void smooth(int layer, int channels);
    void plan(Arena& arena);
    void allocate(stream_t stream);  // after the arena
    // Call once per optimizer step: the amaxes of all micro-steps and ranks give the next step's factors. A collective.
    void finish_step(stream_t stream);

    // While paused, nothing is measured: the micro-step will be repeated.
    void pause(bool paused) { paused_ = paused; }

    // ---- smoothing

    bool is_smooth(int layer) const { return smooth_[layer] != kNotSmooth; }
    const float* factors(int layer) const { return is_smooth(layer) ? factors_ + offset(layer) : nullptr; }
    float* channel_amax(int layer) const { return amax_ + offset(layer); }  // raised by training passes
    // A layer's factors for a checkpoint, one letter per channel: 'a' for 1, 'b' for 1/2 and so on. Both wait for the
    // device. set_factors() returns false, and changes nothing, if the text does not fit.
    std::string factors_text(int layer, stream_t stream) const;
    bool set_factors(int layer, const std::string& text, stream_t stream);

    // ---- outliers

    void record_outliers(bool on) { records_outliers_ = on; }
    bool records_outliers() const { return records_outliers_ && !paused_; }
    double* moments(int layer) const { return moments_.row(layer); }
    float* alignment(int layer) const { return alignments_ + 2 * layer; }
    void clear_outliers(stream_t stream);
    // By layer, since they were cleared. A collective that waits for the device.
    std::vector<Fp8Outliers> read_outliers(stream_t stream) const;
    // Continues from what read_outliers() returned, on any number of ranks. Ignores another number of layers.
    void restore_outliers(const std::vector<Fp8Outliers>& outliers, stream_t stream);

    // ---- probe

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
    static constexpr int kNotSmooth = -1;
    size_t layers() const { return smooth_.size(); }
    size_t offset(int layer) const { return static_cast<size_t>(smooth_[layer]) * channels_; }
    size_t factor_count() const { return static_cast<size_t>(smooth_layers_) * channels_; }

    const Fp8Config config_;
    const Comm comm_;
    bool paused_ = false, records_outliers_ = false, probes_ = false;

    std::vector<int> smooth_;  // by layer: its row in factors_ and amax_, or kNotSmooth
    int smooth_layers_ = 0, channels_ = 0;
    float *factors_ = nullptr, *amax_ = nullptr;  // (smooth layers, channels)
    char* workspace_ = nullptr;                   // for the all-reduce of amax_

    Fp8RankSums moments_;          // by layer
    float* alignments_ = nullptr;  // (layers, 2)
    Fp8RankSums probed_;           // by probed_row()
};

}  // namespace llmc
