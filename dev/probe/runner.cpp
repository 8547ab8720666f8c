// Runs, checks and times the probe's cases (runner.h).
#include "dev/probe/runner.h"

#include <algorithm>
#include <cmath>

#include "dev/probe/reference.h"
#include "llmc/kernels/quantize_blocks.h"

namespace llmc::probe {
namespace {

constexpr int kSampledRows = 16, kSampledColumns = 32;
constexpr size_t kSweepBytes = size_t{256} << 20;  // several times the size of the L2 cache
constexpr const char* kSuccess = "CUBLAS_STATUS_SUCCESS";

FastAccumulation accumulation_of(const Case& c) { return c.fast ? FastAccumulation::all : FastAccumulation::none; }

size_t scale_cells(const Product& p, ScaleLayout layout, int lines) {
    return p.has_block_scales()
               ? scale_bytes(layout, static_cast<size_t>(lines), static_cast<size_t>(Gemm(p).inner)) / sizeof(float)
               : 1;
}

double median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
}

}  // namespace

Runner::Runner(const std::vector<Case>& cases, stream_t stream) : stream_(stream) {
    size_t first = 1, second = 1, result = 1, bias = 1, first_scales = 1, second_scales = 1, line = 64;
    for (const Case& c : cases) {
        const Product& p = c.product;
        const Gemm g(p);
        first = std::max(first, g.first_size() * bytes_of(p.first_element()));
        second = std::max(second, g.second_size() * bytes_of(p.second_element()));
        result = std::max(result, g.result_size() * bytes_of(p.result_element()));
        line = std::max(line, static_cast<size_t>(g.columns) * bytes_of(p.result_element()));
        bias = std::max(bias, static_cast<size_t>(g.columns) * sizeof(float));
        first_scales = std::max(first_scales, scale_cells(p, p.first_scales(), g.rows));
        second_scales = std::max(second_scales, scale_cells(p, p.second_scales(), g.columns));
    }
    memory_.first = device_malloc(first);
    memory_.second = device_malloc(second);
    memory_.result = device_malloc(result);
    memory_.bias = device_malloc(bias);
    memory_.first_scales = static_cast<float*>(device_malloc(first_scales * sizeof(float)));
    memory_.second_scales = static_cast<float*>(device_malloc(second_scales * sizeof(float)));
    memory_.summary = static_cast<Summary*>(device_malloc(sizeof(Summary)));
    memory_.staging = pinned_malloc(line * kSampledRows);
    memory_.sweep_bytes = device_info().is_host ? 256 : kSweepBytes;
    memory_.sweep = device_malloc(memory_.sweep_bytes);
    if (LtDirect::available()) lt_ = std::make_unique<LtDirect>();
}

Runner::~Runner() {
    try {
        synchronize_device();
        for (void* p : {memory_.first, memory_.second, memory_.result, memory_.bias, memory_.sweep,
                        static_cast<void*>(memory_.first_scales), static_cast<void*>(memory_.second_scales),
                        static_cast<void*>(memory_.summary)})
            device_free(p);
        pinned_free(memory_.staging);
    } catch (...) {  // the device is already lost and its error reported
    }
}

Matmul& Runner::matmul_for(const Case& c) {
    auto& made = matmuls_[{accumulation_of(c), c.product.scaling}];
    if (!made) made = std::make_unique<Matmul>(false, accumulation_of(c), c.product.scaling);
    return *made;
}

ProductTensors Runner::fill_operands(const Product& p) {
    const Gemm g(p);
    fill_values(memory_.first, p.first_element(), g.first_size(), kFirst, stream_);
    fill_values(memory_.second, p.second_element(), g.second_size(), kSecond, stream_);
    ProductTensors t{memory_.result, memory_.first, memory_.second};
    if (p.bias) {
        fill_values(memory_.bias, bias_element(p), static_cast<size_t>(g.columns), kBias, stream_);
        t.bias = memory_.bias;
    }
    if (!is_fp8(p.type)) return t;
    t.first_scale_inv = memory_.first_scales;
    t.second_scale_inv = memory_.second_scales;
    if (p.has_block_scales()) {
        fill_scales(memory_.first_scales, scale_cells(p, p.first_scales(), g.rows), kFirst, stream_);
        fill_scales(memory_.second_scales, scale_cells(p, p.second_scales(), g.columns), kSecond, stream_);
        return t;
    }
    float* staging = static_cast<float*>(memory_.staging);
    staging[0] = kFirstScale, staging[1] = kSecondScale;
    copy_to_device(memory_.first_scales, staging, sizeof(float), stream_);
    copy_to_device(memory_.second_scales, staging + 1, sizeof(float), stream_);
    synchronize(stream_);
    return t;
}

// Fills the result with NaN, which no product may leave or read, or with the formula that a product adds to.
void Runner::reset_result(const Product& p) {
    const size_t n = Gemm(p).result_size();
    if (p.accumulate)
        fill_values(memory_.result, p.result_element(), n, kResult, stream_);
    else
        set_bytes(memory_.result, 0xFF, n * bytes_of(p.result_element()), stream_);
}

void Runner::make(const Case& c, const ProductTensors& t, Outcome& outcome) {
    const Product& p = c.product;
    const int N = p.N, C = p.C, OC = p.OC;
    if (idle) return;
    if (outcome.through != "matmul") {
        outcome.status = lt_->run(t, stream_);
        return;
    }
    Matmul& m = matmul_for(c);
    const auto* a16 = static_cast<const bf16*>(t.first);
    const auto* b16 = static_cast<const bf16*>(t.second);
    const auto* a8 = static_cast<const e4m3*>(t.first);
    const auto* a52 = static_cast<const e5m2*>(t.first);
    const auto* b8 = static_cast<const e4m3*>(t.second);
    auto* out16 = static_cast<bf16*>(t.result);
    auto* out32 = static_cast<float*>(t.result);
    const auto* bias = static_cast<const bf16*>(t.bias);
    const bf16* const addend = p.accumulate ? out16 : nullptr;
    const bool e5 = p.type == OperandType::e5m2_e4m3;
    if (p.kind == Product::forward)
        is_fp8(p.type)
            ? m.forward_fp8(out16, a8, t.first_scale_inv, b8, t.second_scale_inv, {bias, addend}, N, C, OC, stream_)
            : m.forward(out16, a16, b16, bias, N, C, OC, stream_, addend);
    else if (p.kind == Product::dgrad)
        !is_fp8(p.type) ? m.dgrad(out16, a16, b16, N, C, OC, stream_)
        : e5            ? m.dgrad_fp8(out16, a52, t.first_scale_inv, b8, t.second_scale_inv, N, C, OC, stream_)
                        : m.dgrad_fp8(out16, a8, t.first_scale_inv, b8, t.second_scale_inv, N, C, OC, stream_);
    else
        !is_fp8(p.type) ? m.wgrad(out32, a16, b16, N, C, OC, p.accumulate, stream_)
        : e5 ? m.wgrad_fp8(out32, a52, t.first_scale_inv, b8, t.second_scale_inv, N, C, OC, p.accumulate, stream_)
             : m.wgrad_fp8(out32, a8, t.first_scale_inv, b8, t.second_scale_inv, N, C, OC, p.accumulate, stream_);
}

Summary Runner::summary_of(const Product& p) {
    summarize(memory_.summary, memory_.result, p.result_element(), Gemm(p).result_size(), stream_);
    copy_to_host(memory_.staging, memory_.summary, sizeof(Summary), stream_);
    synchronize(stream_);
    return *static_cast<const Summary*>(memory_.staging);
}

std::vector<double> Runner::download(const Product& p, const std::vector<int>& rows, const std::vector<int>& columns) {
    const size_t element = bytes_of(p.result_element()), line = static_cast<size_t>(Gemm(p).columns) * element;
    char* staging = static_cast<char*>(memory_.staging);
    for (size_t r = 0; r < rows.size(); r++)
        copy_to_host(staging + r * line, static_cast<const char*>(memory_.result) + static_cast<size_t>(rows[r]) * line,
                     line, stream_);
    synchronize(stream_);
    std::vector<double> values;
    for (size_t r = 0; r < rows.size(); r++)
        for (const int column : columns) {
            const char* at = staging + r * line + static_cast<size_t>(column) * element;
            values.push_back(static_cast<double>(p.result_element() == Product::Element::fp32
                                                     ? *reinterpret_cast<const float*>(at)
                                                     : to_float(*reinterpret_cast<const bf16*>(at))));
        }
    return values;
}

void Runner::check(const Case& c, const ProductTensors& t, Outcome& outcome) {
    const Product& p = c.product;
    const Gemm g(p);
    const auto once = [&] {
        reset_result(p);
        make(c, t, outcome);
        if (tamper) tamper(memory_.result, p, stream_);
        return summary_of(p);
    };
    const Summary first = once();
    if (outcome.status != kSuccess && outcome.through == "cublaslt") {
        outcome.supported = false;
        outcome.call = lt_->call();
        return;
    }
    const std::vector<int> rows = sample_of(g.rows, kSampledRows, kFirst);
    const std::vector<int> columns = sample_of(g.columns, kSampledColumns, kSecond);
    outcome.nonfinite = first.nonfinite;
    outcome.error = relative_error(download(p, rows, columns), reference(p, rows, columns));
    outcome.repeatable = once().checksum == first.checksum;
    if (outcome.through == "matmul" && outcome.algorithm) {
        reset_result(p);
        lt_->run(t, stream_);
        outcome.same_as_lt = summary_of(p).checksum == first.checksum;
    }
}

void Runner::time(const Case& c, const ProductTensors& t, Outcome& outcome) {
    const bool host = device_info().is_host;
    const event_t begin = create_event(true), end = create_event(true);
    const auto measure = [&](bool sweep) {
        if (sweep) set_bytes(memory_.sweep, 0, memory_.sweep_bytes, stream_);
        record(begin, stream_);
        make(c, t, outcome);
        record(end, stream_);
        synchronize(end);
        return static_cast<double>(elapsed_ms(begin, end)) * 1e3;
    };
    const double estimate = std::max(1.0, measure(true));
    // About 10 ms for each product that training makes, and 3 ms for the others.
    outcome.repeats = host ? 1 : std::clamp(static_cast<int>((c.used ? 1e4 : 3e3) / estimate), 3, c.used ? 20 : 5);
    std::vector<double> cold;
    for (int i = 0; i < outcome.repeats; i++) cold.push_back(measure(true));
    outcome.us = median(cold);
    record(begin, stream_);
    for (int i = 0; i < outcome.repeats; i++) make(c, t, outcome);
    record(end, stream_);
    synchronize(end);
    outcome.us_warm = static_cast<double>(elapsed_ms(begin, end)) * 1e3 / outcome.repeats;
    destroy_event(begin);
    destroy_event(end);
}

Outcome Runner::run(const Case& c) {
    Outcome outcome;
    outcome.through = c.in_matmul() ? "matmul" : "cublaslt";
    if (!lt_ && !c.in_matmul()) {
        outcome.status = "not asked: the host device has what llmc::Matmul has, no more";
        return outcome;
    }
    const ProductTensors t = fill_operands(c.product);
    outcome.status = lt_ ? kSuccess : "run by llmc::Matmul";
    if (lt_) {
        outcome.status = lt_->prepare(c, t);
        if (outcome.status == kSuccess)
            outcome.algorithm = lt_->algorithm();
        else
            outcome.call = lt_->call();
    }
    if (!c.in_matmul() && outcome.status != kSuccess) return outcome;
    outcome.supported = true;
    if (c.in_matmul()) {
        Matmul& matmul = matmul_for(c);
        matmul.reserve({c.product.N, c.product.C, c.product.OC});
        matmul.reset_counts();
        check(c, t, outcome);
        outcome.emulated = matmul.counts().emulated > 0;
    } else {
        check(c, t, outcome);
    }
    if (outcome.supported) time(c, t, outcome);
    return outcome;
}

}  // namespace llmc::probe
