// Sums, factors and switches of the FP8 instruments: see laboratory.h.
#include "llmc/fp8/laboratory.h"

#include <cmath>
#include <iterator>

#include "llmc/base/error.h"
#include "llmc/comm/agreement.h"
#include "llmc/device/transfer.h"
#include "llmc/kernels/outliers.h"

namespace llmc {

void Fp8RankSums::plan(Arena& arena, size_t rows) {
    rows_ = rows;
    arena.plan(&sums_, 3 * rows_);
}

void Fp8RankSums::clear(stream_t stream) {
    if (rows_ > 0) set_bytes(sums_, 0, 3 * rows_ * sizeof(double), stream);
}

std::vector<Fp8RankSums::Row> Fp8RankSums::read(const Comm& comm, stream_t stream) const {
    if (rows_ == 0) return {};
    const std::vector<double> sums = sum_over_ranks(comm, read_back(sums_, 3 * rows_, stream));
    std::vector<Row> rows(rows_);
    for (size_t i = 0; i < sums.size(); i++) rows[i / 3][i % 3] = sums[i];
    return rows;
}

// The first rank takes the sums of all, the others start at 0.
void Fp8RankSums::restore(const std::vector<Row>& rows, const Comm& comm, stream_t stream) {
    if (rows_ == 0) return;
    std::vector<double> sums;
    for (const Row& row : rows)
        for (const double sum : row) sums.push_back(comm.is_main() ? sum : 0.0);
    write_through(sums_, sums.data(), sums.size(), stream);
}

double probed_error(const Fp8RankSums::Row& sums) { return std::sqrt(sums[1] / sums[2]); }

// ---- memory ---------------------------------------------------------------------------------------------------------

void Fp8Laboratory::smooth(int layer, int channels) {
    if (!config_.smooth) return;
    if (smooth_layers_ > 0 && channels != channels_)
        throw Error(ExitCode::failure, "smoothed layers of {} and of {} channels", channels_, channels);
    channels_ = channels;
    smooth_[layer] = smooth_layers_++;
}

void Fp8Laboratory::plan(Arena& arena) {
    if (config_.smooth && smooth_layers_ == 0)
        refuse(
            "--fp8-smooth: no layer that reads SwiGLU's output (fc_proj) is in FP8; leave it out, or change "
            "--fp8-layers");
    moments_.plan(arena, layers());
    arena.plan(&alignments_, 2 * layers());
    if (config_.probe) probed_.plan(arena, layers() * kFp8Probed);
    if (smooth_layers_ == 0) return;
    arena.plan(&factors_, factor_count());
    arena.plan(&amax_, factor_count());
    if (comm_.world() > 1) arena.plan(&workspace_, comm_.all_reduce_workspace<float>(factor_count()));
}

void Fp8Laboratory::allocate(stream_t stream) {
    clear_outliers(stream);
    clear_probed(stream);
    if (smooth_layers_ == 0) return;
    const std::vector<float> ones(factor_count(), 1.0f);
    write_through(factors_, ones.data(), ones.size(), stream);
    set_bytes(amax_, 0, factor_count() * sizeof(float), stream);
}

// ---- smoothing ------------------------------------------------------------------------------------------------------

void Fp8Laboratory::finish_step(stream_t stream) {
    if (smooth_layers_ == 0) return;
    if (comm_.world() > 1) {
        const CommRange range("maximum of FP8 channels", comm_, stream);
        comm_.all_reduce(amax_, factor_count(), ReduceOp::max, workspace_, stream);
    }
    smoothing_factors(factors_, amax_, smooth_layers_, channels_, stream);
}

std::string Fp8Laboratory::factors_text(int layer, stream_t stream) const {
    std::string text;
    if (!is_smooth(layer)) return text;
    for (const float factor : read_back(factors(layer), channels_, stream))
        text += static_cast<char>('a' - std::ilogb(factor));
    return text;
}

bool Fp8Laboratory::set_factors(int layer, const std::string& text, stream_t stream) {
    std::vector<float> values;
    for (const char letter : text) {
        if (letter < 'a' || letter > 'a' + kMostSmoothing) return false;
        values.push_back(std::ldexp(1.0f, 'a' - letter));
    }
    if (values.size() != static_cast<size_t>(channels_)) return false;
    write_through(factors_ + offset(layer), values.data(), values.size(), stream);
    return true;
}

// ---- outliers and probe ---------------------------------------------------------------------------------------------

void Fp8Laboratory::clear_outliers(stream_t stream) {
    moments_.clear(stream);
    set_bytes(alignments_, 0xFF, 2 * layers() * sizeof(float), stream);  // NaN
}

std::vector<Fp8Outliers> Fp8Laboratory::read_outliers(stream_t stream) const {
    const std::vector<Fp8RankSums::Row> moments = moments_.read(comm_, stream);
    const std::vector<float> alignments = read_back(alignments_, 2 * layers(), stream);  // the same on all ranks
    std::vector<Fp8Outliers> outliers(layers());
    for (size_t layer = 0; layer < layers(); layer++) {
        outliers[layer].moments = moments[layer];
        for (size_t k = 0; k < 2; k++) outliers[layer].alignment[k] = alignments[2 * layer + k];
    }
    return outliers;
}

void Fp8Laboratory::restore_outliers(const std::vector<Fp8Outliers>& outliers, stream_t stream) {
    if (outliers.size() != layers()) return;
    std::vector<Fp8RankSums::Row> moments;
    std::vector<float> alignments;
    for (const Fp8Outliers& layer : outliers) {
        moments.push_back(layer.moments);
        alignments.insert(alignments.end(), std::begin(layer.alignment), std::end(layer.alignment));
    }
    moments_.restore(moments, comm_, stream);
    write_through(alignments_, alignments.data(), alignments.size(), stream);
}

void Fp8Laboratory::restore_probed(const std::vector<Fp8RankSums::Row>& rows, stream_t stream) {
    if (rows.size() == probed_.rows()) probed_.restore(rows, comm_, stream);
}

}  // namespace llmc
