// Planning, measuring and writing the FP8 codes of weights: see weight_codes.h.
#include "llmc/linear/weight_codes.h"

#include "llmc/device/trace.h"
#include "llmc/kernels/quantize.h"
#include "llmc/kernels/quantize_blocks.h"

namespace llmc {

void WeightCodes::add(const ParameterTable::Place& place, const std::string& kind, bool rows) {
    const ParameterTensor& tensor = weights_.table().tensor(place);
    Matrix& m =
        matrices_.emplace_back(Matrix{place, tensor.name, tensor.shape.at(0), tensor.shape.at(1), tensor.codes});
    const size_t count = tensor.count();
    if (!travels(m) && rows) arena_.plan(&m.own.rows, count);
    if (m.from == CodesFrom::working_copy || weights_.layout().keeps_whole_weights()) {
        m.transposed = &m.own;
        arena_.plan(&m.own.transposed, count);
    } else {
        m.transposed = &shared_[kind];
        arena_.plan_shared("w transposed of " + kind, &m.transposed->transposed, count);
    }
    if (!fp8_.has_block_scales()) return;
    const ScaleLayout layout = fp8_.scaling() == Fp8Scaling::mx ? ScaleLayout::mx : ScaleLayout::tiles;
    const size_t OC = m.outputs, C = m.inputs;
    arena_.plan(&m.own.row_scales, scale_bytes(layout, OC, C));
    arena_.plan(&m.own.transposed_scales, scale_bytes(layout, C, OC));
}

void WeightCodes::allocate() {
    arena_.allocate();
    for (int layer = 0; layer < layers(); layer++) {
        const Matrix& m = matrix(layer);
        if (m.from == CodesFrom::masters)
            weights_.keep_in_fp8(m.place.unit, m.place.tensor, fp8_.state(layer, Fp8Role::w));
    }
}

Quantized<e4m3> WeightCodes::rows(int layer) const {
    const Matrix& m = matrix(layer);
    e4m3* const rows = travels(m) ? const_cast<e4m3*>(weights_.fp8_weight(m.place.unit, m.place.tensor)) : m.own.rows;
    return {rows, m.transposed->transposed, fp8_.state(layer, Fp8Role::w), m.own.row_scales, m.own.transposed_scales};
}

Quantized<e4m3> WeightCodes::both(int layer, stream_t stream) {
    const Matrix& m = matrix(layer);
    const Quantized<e4m3> codes = rows(layer);
    if (m.transposed->transposed_of != layer) {
        transpose_codes(codes.transposed, codes.row, m.outputs, m.inputs, stream);
        m.transposed->transposed_of = layer;
    }
    return codes;
}

std::vector<NamedMemory> WeightCodes::memory() const {
    std::vector<NamedMemory> codes;
    for (const Matrix& m : matrices_) {
        if (m.left || travels(m)) continue;
        const size_t count = static_cast<size_t>(m.inputs) * m.outputs;
        if (m.own.rows) codes.push_back({m.name + " in FP8", m.own.rows, count});
        if (m.own.transposed) codes.push_back({m.name + " in FP8, transposed", m.own.transposed, count});
    }
    return codes;
}

void WeightCodes::leave(int layer, stream_t stream) {
    Matrix& m = matrices_[layer];
    m.left = true;
    if (m.from == CodesFrom::masters) weights_.leave_fp8(m.place.unit, m.place.tensor, stream);
}

void WeightCodes::prepare(stream_t stream) {
    // The scales must not depend on which rank has which slice.
    if (weights_.to_be_measured() && !fp8_.has_block_scales()) measure(stream);
    weights_.set_measured();
    if (slices_travel()) fp8_.share_weight_amaxes(stream);
    fp8_.set_weight_scales(stream);
    cast_slices(fp8_.write_pass(), stream);
    weights_.publish(stream);
    write_matrices(false, stream);
}

void WeightCodes::write_again(stream_t stream) {
    cast_slices(QuantizePass::replay, stream);
    weights_.publish_again(stream);
    write_matrices(true, stream);
}

void WeightCodes::measure(stream_t stream) {
    if (slices_travel()) return cast_slices(QuantizePass::measure, stream);
    const ProfileRange range("measure FP8 weights", stream);
    for (int layer = 0; layer < layers(); layer++)
        if (!matrix(layer).left && matrix(layer).from == CodesFrom::masters)
            write_from_masters(layer, QuantizePass::measure, stream);
}

// This rank's slices of weights that travel.
void WeightCodes::cast_slices(QuantizePass pass, stream_t stream) {
    if (!slices_travel()) return;
    const bool measures = pass == QuantizePass::measure;
    const ProfileRange profile(measures ? "measure FP8 weights" : "quantize weights", stream);
    for (size_t u = 0; u < weights_.layout().units(); u++)
        for (const auto& range : weights_.ranges(u)) {
            if (!range.fp8) continue;
            e4m3* const codes = measures ? nullptr : weights_.codes_slice(u) + range.begin;
            quantize_flat(codes, weights_.slice(u, range.begin).master, range.count, range.fp8, pass, stream);
        }
}

// Both layouts of all weights that do not travel.
void WeightCodes::write_matrices(bool again, stream_t stream) {
    for (auto& [kind, shared] : shared_) shared.transposed_of = kNoLayer;
    for (int layer = 0; layer < layers(); layer++) {
        Matrix& m = matrices_[layer];
        m.own.transposed_of = kNoLayer;
        if (m.left || travels(m)) continue;
        m.own.transposed_of = layer;
        if (m.from == CodesFrom::working_copy) {
            write_from_working_copy(layer, again, stream);
            continue;
        }
        const ProfileRange range("quantize weights", stream);
        const QuantizePass first = fp8_.has_block_scales() ? fp8_.train_pass() : fp8_.write_pass();
        write_from_masters(layer, again ? QuantizePass::replay : first, stream);
    }
}

void WeightCodes::write_from_masters(int layer, QuantizePass pass, stream_t stream) {
    const Matrix& m = matrix(layer);
    const auto cast = fp8_.scaling() == Fp8Scaling::block ? quantize_weight_tiles : quantize_weight;
    cast(rows(layer), weights_.master(m.place.unit, m.place.tensor), m.outputs, m.inputs, pass, stream);
}

void WeightCodes::write_from_working_copy(int layer, bool again, stream_t stream) {
    const Matrix& m = matrix(layer);
    const UnitInUse<bf16> unit(weights_, m.place.unit, stream, "quantize weights");
    const bf16* const weight = weights_.weight(m.place);
    if (fp8_.scaling() == Fp8Scaling::mx) {
        quantize_blocks(rows(layer), nullptr, nullptr, weight, m.outputs, m.inputs, Fp8Scaling::mx, false,
                        again ? QuantizePass::replay : fp8_.train_pass(), stream);
        return;
    }
    QuantizePass pass = again ? QuantizePass::replay : QuantizePass::measure;
    do {
        quantize<e4m3>(rows(layer), nullptr, nullptr, weight, nullptr, m.outputs, m.inputs, false, pass, stream);
    } while (!fp8_.finish_run(pass, layer, Fp8Role::w, PassKind::training, stream));
}

}  // namespace llmc
