// The FP8 codes of a model's weights: their memory, and everything that writes them. A product reads a weight row-major
// in forward and transposed in dgrad, and both are made whenever the weights have changed:
//
//   whole masters on every rank   both layouts from the masters
//   sliced masters (--zero 1-3)   each rank casts its slices row-major. Weights sends them to all ranks, where they are
//                                 transposed when dgrad first needs them.
//   recipe mxfp8                  both layouts from the working copy, which every rank has
//   lm_head, and with -forward    the same, transposed only, because the forward product reads the working copy
//     all layers
//
// ParameterTensor::codes says which weights have codes, and whether codes come from masters or the working copy. Layers
// are identified by their numbers in Fp8Registry.
#pragma once
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "llmc/fp8/registry.h"
#include "llmc/shard/weights.h"

namespace llmc {

constexpr int kNoLayer = -1;  // no layer's number in Fp8Registry

class WeightCodes {
public:
    WeightCodes(Weights<bf16>& weights, Fp8Registry& fp8) : weights_(weights), fp8_(fp8) {}
    WeightCodes(WeightCodes&&) = delete;

    // Plans the codes of the layer that was added to the registry last. `kind`: layers of one kind share memory for
    // weights that are gathered before each use. `rows`: forward reads codes. May be false only if codes are made from
    // the working copy.
    void add(const ParameterTable::Place& place, const std::string& kind, bool rows);
    size_t bytes() const { return arena_.bytes(); }
    void allocate();  // after the registry's memory

    // The layer's codes, row-major. The weight's unit must be gathered.
    Quantized<e4m3> rows(int layer) const;
    // Also transposed.
    Quantized<e4m3> both(int layer, stream_t stream);

    // Call after every change of the weights. Scales follow from the master weights and the number of updates. Amaxes
    // come from the optimizer's update; weights that were set in another way are measured here. Publishes the weights.
    void prepare(stream_t stream);
    // Writes working copies and codes again from the same masters and scales, without counting lost values. The bits
    // stay the same unless memory was corrupted.
    void write_again(stream_t stream);
    // All codes that are not among Weights::working_copies().
    std::vector<NamedMemory> memory() const;

    // The layer reads its working copy from the next prepare() on.
    void leave(int layer, stream_t stream);

private:
    struct Memory {
        e4m3 *rows = nullptr, *transposed = nullptr;
        char *row_scales = nullptr, *transposed_scales = nullptr;  // only for recipes with block scales
        int transposed_of = kNoLayer;                              // the layer whose transposed codes are here
    };
    struct Matrix {
        ParameterTable::Place place;
        std::string name;
        int outputs = 0, inputs = 0;  // OC, C
        CodesFrom from = CodesFrom::masters;
        bool left = false;  // no longer in FP8
        Memory own = {};
        Memory* transposed = nullptr;  // `own`, or the memory that the layers of a kind share
    };

    int layers() const { return static_cast<int>(matrices_.size()); }
    const Matrix& matrix(int layer) const { return matrices_[layer]; }
    // True if the rows come from other ranks.
    bool travels(const Matrix& m) const { return m.from == CodesFrom::masters && slices_travel(); }
    bool slices_travel() const { return weights_.layout().is_sliced() && !fp8_.has_block_scales(); }
    void measure(stream_t stream);
    void cast_slices(QuantizePass pass, stream_t stream);
    void write_matrices(bool again, stream_t stream);
    void write_from_masters(int layer, QuantizePass pass, stream_t stream);
    void write_from_working_copy(int layer, bool again, stream_t stream);

    Weights<bf16>& weights_;
    Fp8Registry& fp8_;
    Arena arena_{MemoryKind::weights};
    std::deque<Matrix> matrices_;           // by layer; the arena keeps addresses of its members
    std::map<std::string, Memory> shared_;  // by kind
};

}  // namespace llmc
