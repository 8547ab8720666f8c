#include "llmc/fp8/smoothing.h"

#include <cmath>
#include <vector>

#include "llmc/base/error.h"
#include "llmc/comm/comm_range.h"
#include "llmc/device/transfer.h"
#include "llmc/kernels/smooth.h"

namespace llmc {

int Fp8Smoothing::add(int channels) {
    if (layers_ > 0 && channels != channels_)
        throw Error(ExitCode::failure, strprintf("smoothed layers of %d and of %d channels", channels_, channels));
    channels_ = channels;
    return layers_++;
}

void Fp8Smoothing::plan(Arena& arena, const Comm& comm) {
    if (layers_ == 0) return;
    arena.plan(&factors_, count());
    arena.plan(&amax_, count());
    if (comm.world() > 1) arena.plan(&workspace_, comm.all_reduce_workspace<float>(count()));
}

void Fp8Smoothing::allocate(stream_t stream) {
    if (layers_ == 0) return;
    const std::vector<float> ones(count(), 1.0f);
    write_through(factors_, ones.data(), ones.size(), stream);
    set_bytes(amax_, 0, count() * sizeof(float), stream);
    synchronize(stream);  // the values go
}

void Fp8Smoothing::finish_step(const Comm& comm, stream_t stream) {
    if (layers_ == 0) return;
    if (comm.world() > 1) {
        const CommRange range("maximum of FP8 channels", comm, stream);
        comm.all_reduce(amax_, count(), ReduceOp::max, workspace_, stream);
    }
    smoothing_factors(factors_, amax_, layers_, channels_, stream);
}

std::string Fp8Smoothing::text(int place, stream_t stream) const {
    std::string text;
    for (const float factor : read_back(factors(place), static_cast<size_t>(channels_), stream))
        text += static_cast<char>('a' - std::ilogb(factor));
    return text;
}

bool Fp8Smoothing::set(int place, const std::string& text, stream_t stream) {
    std::vector<float> values;
    for (const char letter : text) {
        if (letter < 'a' || letter > 'a' + kMostSmoothing) return false;
        values.push_back(std::ldexp(1.0f, 'a' - letter));
    }
    if (values.size() != static_cast<size_t>(channels_)) return false;
    write_through(factors(place), values.data(), values.size(), stream);
    synchronize(stream);
    return true;
}

}  // namespace llmc
