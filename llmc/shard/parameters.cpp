#include "llmc/shard/parameters.h"

#include <algorithm>
#include <type_traits>

#include "llmc/kernels/elementwise.h"

namespace llmc {
namespace {
template <class Real>
constexpr bool kMasterIsWorking = std::is_same_v<Real, float>;
}

template <class Real>
Parameters<Real>::Parameters(const ParameterTable& table, const Comm&) : table_(table) {
    const size_t count = table.count();
    optimizer_.plan(&master_, count);
    optimizer_.plan(&m_, count);
    optimizer_.plan(&v_, count);
    gradients_.plan(&gradient_, count);
    if constexpr (!kMasterIsWorking<Real>) weights_.plan(&working_, count);
    ranges_.resize(table.units().size());
    for (const Unit& unit : table.units()) fp8_.emplace_back(unit.tensors.size(), nullptr);
    for (size_t u = 0; u < ranges_.size(); u++) cut_into_ranges(u);
}

template <class Real>
void Parameters<Real>::allocate(stream_t stream) {
    if constexpr (!kMasterIsWorking<Real>) weights_.allocate();
    gradients_.allocate();
    optimizer_.allocate();
    const size_t bytes = table_.count() * sizeof(float);
    for (float* array : {master_, m_, v_, gradient_}) set_bytes(array, 0, bytes, stream);  // padding stays 0 for ever
    if constexpr (!kMasterIsWorking<Real>) set_bytes(working_, 0, table_.count() * sizeof(Real), stream);
}

template <class Real>
size_t Parameters<Real>::flat_index(size_t unit, size_t tensor) const {
    return table_.unit(unit).begin + table_.unit(unit).tensors[tensor].offset;
}

template <class Real>
void Parameters<Real>::gather(size_t, stream_t) {}
template <class Real>
void Parameters<Real>::release(size_t, stream_t) {}
template <class Real>
void Parameters<Real>::reduce(size_t, stream_t) {}

template <class Real>
const Real* Parameters<Real>::weight(size_t unit, size_t tensor) const {
    if constexpr (kMasterIsWorking<Real>)
        return master_ + flat_index(unit, tensor);
    else
        return working_ + flat_index(unit, tensor);
}

template <class Real>
float* Parameters<Real>::gradient(size_t unit, size_t tensor) {
    return gradient_ + flat_index(unit, tensor);
}

template <class Real>
typename Parameters<Real>::Slice Parameters<Real>::slice(size_t unit) {
    const Unit& u = table_.unit(unit);
    Real* working = kMasterIsWorking<Real> ? nullptr : working_ + u.begin;
    return {master_ + u.begin, m_ + u.begin, v_ + u.begin, gradient_ + u.begin, working, u.count, u.decay_count};
}

// Every tensor in FP8 is a range, and so is everything between two of them.
template <class Real>
void Parameters<Real>::cut_into_ranges(size_t unit) {
    const Unit& u = table_.unit(unit);
    std::vector<Range>& ranges = ranges_[unit];
    ranges.clear();
    const auto add = [&](size_t begin, size_t end, Fp8State* fp8) {
        if (begin == end) return;
        const size_t decayed = std::clamp(u.decay_count, begin, end) - begin;
        ranges.push_back({begin, end - begin, decayed, fp8});
    };
    size_t at = 0;
    for (size_t t = 0; t < u.tensors.size(); t++) {
        if (!fp8_[unit][t]) continue;
        const size_t begin = u.tensors[t].offset, end = begin + u.tensors[t].count();
        add(at, begin, nullptr);
        add(begin, end, fp8_[unit][t]);
        at = end;
    }
    add(at, u.count, nullptr);
}

template <class Real>
void Parameters<Real>::keep_in_fp8(size_t unit, size_t tensor, Fp8State* state) {
    if (fp8_[unit][tensor] == state) return;
    fp8_[unit][tensor] = state;
    to_be_measured_ = true;
    cut_into_ranges(unit);
}

template <class Real>
void Parameters<Real>::set_tensor(size_t unit, size_t tensor, const std::vector<float>& values, stream_t stream) {
    const ParameterTensor& info = table_.unit(unit).tensors[tensor];
    if (values.size() != info.count())
        throw Error(ExitCode::failure,
                    strprintf("tensor %s has %zu elements, not %zu", info.name.c_str(), info.count(), values.size()));
    float* staging = static_cast<float*>(pinned_malloc(values.size() * sizeof(float)));
    std::copy(values.begin(), values.end(), staging);
    if (fp8_[unit][tensor]) to_be_measured_ = true;
    const size_t at = flat_index(unit, tensor);
    copy_to_device(master_ + at, staging, values.size() * sizeof(float), stream);
    if constexpr (!kMasterIsWorking<Real>) cast(working_ + at, master_ + at, values.size(), stream);
    synchronize(stream);
    pinned_free(staging);
}

template <class Real>
std::vector<float> Parameters<Real>::download(const float* from, size_t count, stream_t stream) const {
    float* staging = static_cast<float*>(pinned_malloc(count * sizeof(float)));
    copy_to_host(staging, from, count * sizeof(float), stream);
    synchronize(stream);
    std::vector<float> values(staging, staging + count);
    pinned_free(staging);
    return values;
}

template <class Real>
std::vector<float> Parameters<Real>::get_tensor(size_t unit, size_t tensor, stream_t stream) const {
    return download(master_ + flat_index(unit, tensor), table_.unit(unit).tensors[tensor].count(), stream);
}
template <class Real>
std::vector<float> Parameters<Real>::get_gradient(size_t unit, size_t tensor, stream_t stream) const {
    return download(gradient_ + flat_index(unit, tensor), table_.unit(unit).tensors[tensor].count(), stream);
}

template class Parameters<float>;
template class Parameters<bf16>;

}  // namespace llmc
