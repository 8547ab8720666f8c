// Times products on operands of random numbers, with cold caches (tune.h).
#include "llmc/linear/tune.h"

#include <algorithm>
#include <optional>
#include <random>

#include "llmc/base/clock.h"
#include "llmc/device/owned.h"
#include "llmc/device/transfer.h"

namespace llmc {
namespace {

constexpr int kTimings = 3;
// Before the first timing a card computes for this long: an idle H100 clocks at 345 MHz, and needs a while under load
// to reach the clock of a run.
constexpr double kWarmUpSeconds = 2;
// Another algorithm replaces the first only if it takes less than this share of its time, so that chance does not
// decide between algorithms of about the same speed.
constexpr double kWorthChanging = 0.95;

class Memory {
public:
    Memory(size_t bytes, stream_t stream)
        : bytes_(bytes), stream_(stream), data_(static_cast<char*>(device_malloc(std::max<size_t>(bytes, 1)))) {}
    ~Memory() {
        tear_down([this] { synchronize(stream_); });
    }
    Memory(Memory&&) = delete;
    char* data() const { return data_; }

    // Repeats these values from the beginning to the end.
    template <class T>
    void fill(const std::vector<T>& values) {
        size_t done = std::min(bytes_, values.size() * sizeof(T));
        write_through(data(), reinterpret_cast<const char*>(values.data()), done, stream_);
        for (; done < bytes_; done += std::min(done, bytes_ - done))
            copy_on_device(data() + done, data(), std::min(done, bytes_ - done), stream_);
    }

private:
    const size_t bytes_;
    const stream_t stream_;
    const Owned<char*, device_free> data_;
};

// Normally distributed. A card draws less power on zeros, and is faster.
template <class T>
void fill_at_random(Memory& memory) {
    std::mt19937 engine(1);
    std::normal_distribution<float> normal;
    std::vector<T> values(size_t{1} << 16);
    for (T& value : values) value = to<T>(normal(engine));
    memory.fill(values);
}
void fill_at_random(Memory& memory, Product::Element element) {
    switch (element) {
        case Product::Element::fp32:
            return fill_at_random<float>(memory);
        case Product::Element::bf16:
            return fill_at_random<bf16>(memory);
        case Product::Element::e4m3:
            return fill_at_random<e4m3>(memory);
        case Product::Element::e5m2:
            return fill_at_random<e5m2>(memory);
    }
}

class Operands {
public:
    Operands(const Product& p, stream_t stream)
        : product_(p),
          gemm_(p),
          first_(gemm_.first_size() * bytes_of(p.first_element()), stream),
          second_(gemm_.second_size() * bytes_of(p.second_element()), stream),
          bias_(static_cast<size_t>(gemm_.columns) * bytes_of(p.result_element()), stream),
          result_(gemm_.result_size() * bytes_of(p.result_element()), stream),
          first_scales_(scale_bytes_of(p.first_scales(), gemm_.rows), stream),
          second_scales_(scale_bytes_of(p.second_scales(), gemm_.columns), stream) {
        fill_at_random(first_, p.first_element());
        fill_at_random(second_, p.second_element());
        fill_at_random(bias_, p.result_element());
        fill_at_random(result_, p.result_element());
        for (Memory* scales : {&first_scales_, &second_scales_}) {
            if (p.has_block_scales() && p.scaling == Fp8Scaling::mx)
                scales->fill(std::vector<uint8_t>{127});  // 2^0
            else
                scales->fill(std::vector<float>{1});
        }
    }
    ProductTensors tensors() const {
        return ProductTensors::of(product_, {result_.data(), first_.data(), second_.data(), bias_.data(),
                                             first_scales_.data(), second_scales_.data()});
    }

private:
    size_t scale_bytes_of(ScaleLayout layout, int rows) const {
        if (!product_.has_block_scales()) return sizeof(float);
        return scale_bytes(layout, static_cast<size_t>(rows), static_cast<size_t>(gemm_.inner));
    }

    const Product product_;
    const Gemm gemm_;
    Memory first_, second_, bias_, result_, first_scales_, second_scales_;
};

// The median time of a few runs in milliseconds, each with other memory in the L2 cache.
double cold_ms(stream_t stream, const std::function<void()>& run) {
    const size_t flushed = 2 * device_info().l2_cache;
    const Memory other(flushed, stream);
    const OwnedEvent begin = create_event(true), end = create_event(true);
    std::vector<double> times;
    for (int i = 0; i < kTimings; i++) {
        if (flushed > 0) set_bytes(other.data(), i, flushed, stream);
        record(begin, stream);
        run();
        record(end, stream);
        synchronize(end);
        times.push_back(static_cast<double>(elapsed_ms(begin, end)));
    }
    std::nth_element(times.begin(), times.begin() + kTimings / 2, times.end());
    return times[kTimings / 2];
}

class Tuner {
public:
    Tuner(Matmul& matmul, stream_t stream) : matmul_(matmul), stream_(stream) {}

    // An algorithm and its milliseconds; nothing if there is no choice.
    struct Choice {
        std::string algorithm;
        double ms;
    };
    std::optional<Choice> choose(const Product& product, int algorithms) {
        if (matmul_.emulates(product)) return std::nullopt;
        const std::vector<std::string> proposals = matmul_.proposals(product, algorithms);
        if (proposals.empty()) return std::nullopt;
        const Operands operands(product, stream_);
        std::optional<Choice> best;
        for (const std::string& algorithm : proposals) {
            const std::optional<double> ms = ms_of(product, operands, algorithm);
            if (ms && (!best || *ms < kWorthChanging * best->ms)) best = {algorithm, *ms};
        }
        return best;
    }

private:
    // Nothing if the library refuses this algorithm.
    std::optional<double> ms_of(const Product& product, const Operands& operands, const std::string& algorithm) {
        const auto run = [&] { matmul_.multiply(product, operands.tensors(), stream_); };
        matmul_.choose({{matmul_.key(product), algorithm}});
        matmul_.reset_counts();
        try {
            run();
        } catch (const Error&) {
            synchronize(stream_);  // throws if the device is lost
            return std::nullopt;
        }
        if (matmul_.counts().emulated > 0) return std::nullopt;
        const double end = monotonic_seconds() + (is_warm_ ? 0 : kWarmUpSeconds);
        is_warm_ = true;
        while (monotonic_seconds() < end) {
            run();
            synchronize(stream_);
        }
        return cold_ms(stream_, run);
    }

    Matmul& matmul_;
    const stream_t stream_;
    bool is_warm_ = false;
};

}  // namespace

bool is_of_products(const std::string& rate) { return rate == "fp32" || rate == "bf16" || rate == "fp8"; }

void raise(Rates& all, const Rates& more) {
    for (const auto& [name, rate] : more) all[name] = std::max(all[name], rate);
}

Tuned tune(const std::vector<Product>& products, int algorithms, Matmul& matmul, stream_t stream,
           const std::function<void()>& alive) {
    Tuned tuned;
    Tuner tuner(matmul, stream);
    for (const Product& product : products) {
        alive();
        try {
            const std::optional<Tuner::Choice> best = tuner.choose(product, algorithms);
            if (!best) continue;
            tuned.choices[matmul.key(product)] = best->algorithm;
            const double flops = 2.0 * product.N * product.C * product.OC;
            if (best->ms > 0)
                raise(tuned.rates, {{is_fp8(product.type) ? "fp8" : word_of(product.type), 1e3 * flops / best->ms}});
        } catch (const Error& error) {
            if (error.code() != ExitCode::no_resources) throw;  // no room: the library's first proposal is used
        }
    }
    synchronize(stream);
    matmul.choose({});
    return tuned;
}

double copy_rate(stream_t stream) {
    constexpr size_t kSmallest = size_t{64} << 20;     // bytes: at least this and twice the L2 cache,
    constexpr size_t kOfCache = 2, kOfFreeMemory = 4;  // at most a quarter of free memory
    constexpr int kInOne = 4;                          // a series of copies, so that a launch does not count
    const DeviceInfo device = device_info();
    size_t bytes = std::max(kSmallest, kOfCache * device.l2_cache);
    if (device.free_memory > 0) bytes = std::min(bytes, device.free_memory / kOfFreeMemory);
    if (bytes <= device.l2_cache) return 0;
    Memory from(bytes, stream);
    from.fill(std::vector<uint8_t>{1});
    const Memory to(bytes, stream);
    const double ms = cold_ms(stream, [&] {
        for (int copy = 0; copy < kInOne; copy++) copy_on_device(to.data(), from.data(), bytes, stream);
    });
    return ms > 0 ? 2e3 * kInOne * static_cast<double>(bytes) / ms : 0;
}

void load_products(const ProductUses& products, Matmul& matmul, stream_t stream) {
    const ProductCounts before = matmul.counts();
    for (const auto& [product, layers] : products) {
        try {
            const Operands operands(product, stream);
            matmul.multiply(product, operands.tensors(), stream);
        } catch (const Error& error) {
            if (error.code() != ExitCode::no_resources) throw;  // it is loaded in the first step instead
        }
    }
    synchronize(stream);
    matmul.reset_counts(before);
}

}  // namespace llmc
