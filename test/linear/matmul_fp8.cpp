// Tests of the FP8 matrix products against FP64 sums of the dequantized operands: every pair of types, odd but legal
// shapes, every code, scales read at the right time, accumulation, counts, refusals.
#include <cstring>

#include "llmc/kernels/fp8_state.h"
#include "llmc/linear/matmul.h"
#include "test/linear/sums.h"

using namespace llmc;
using namespace llmc::test;

namespace {

// True on a GPU without FP8, where there is nothing to test.
bool no_fp8() {
    test_stream();
    return !device_info().has_fp8;
}

template <class F8>
void check_fp8_products(int N, int C, int OC, FastAccumulation fast = FastAccumulation::none) {
    CAPTURE(N);
    CAPTURE(C);
    CAPTURE(OC);
    CAPTURE(sizeof(F8));
    const size_t n = N, c = C, oc = OC;
    const Fp8Operands<F8> o(N, C, OC, random_normal<e4m3>(n * c, 100.0f, 1), random_normal<e4m3>(oc * c, 60.0f, 2),
                            random_normal<F8>(n * oc, 130.0f, 3));
    Matmul matmul(false, fast);
    const auto results = o.multiply(matmul);

    const double u = fp8_unit(), x_scale = o.x_scale.value, weight_scale = o.weight_scale.value,
                 dout_scale = o.dout_scale.value;
    const ExactSums forward(to_doubles(o.x), to_doubles(o.weight), C, x_scale * weight_scale),
        dgrad(to_doubles(o.dout), to_doubles(o.weight_transposed), OC, dout_scale * weight_scale),
        wgrad(to_doubles(o.dout_transposed), to_doubles(o.x_transposed), N, dout_scale * x_scale);
    CHECK(part_of_allowed(results.out_without_bias, forward, u) <= 1);
    CHECK(part_of_allowed(results.out, forward.plus(to_doubles(o.bias)), u) <= 1);
    const ExactSums added = forward.plus(to_doubles(o.bias)).plus(to_doubles(results.out_without_bias));
    CHECK(part_of_allowed(results.out_added, added, u) <= most_of_added());
    CHECK(part_of_allowed(results.dinp, dgrad, u) <= 1);
    CHECK(part_of_allowed(results.dweight, wgrad, u) <= 1);
    CHECK(part_of_allowed(results.dweight_twice, wgrad.twice(), u) <= 1);
    CHECK(matmul.counts().fp8 == 6);
    CHECK(matmul.counts().bf16 == 0);
    if (Matmul::emulated_because(Fp8Scaling::tensor).empty()) CHECK(matmul.counts().emulated == 0);
}

// All 256 codes, with non-finite ones replaced by zero.
template <class F8>
std::vector<F8> all_codes() {
    std::vector<F8> codes;
    for (int code = 0; code < 256; code++) {
        const F8 value{static_cast<uint8_t>(code)};
        codes.push_back(std::isfinite(to_float(value)) ? value : F8{0});
    }
    return codes;
}

std::vector<e4m3> identity16() {
    std::vector<e4m3> values(256, e4m3{0});
    for (int i = 0; i < 16; i++) values[17 * i] = to_e4m3(1.0f);
    return values;
}

// Multiplies codes (16, 16) by the identity.
struct TimesIdentity {
    TensorScale scale{1}, identity_scale{1};
    DeviceArray<e4m3> identity{identity16()};
    Matmul matmul{false};

    TimesIdentity() { matmul.reserve({16, 16, 16}); }
    std::vector<bf16> forward(const std::vector<e4m3>& codes) {
        DeviceArray<e4m3> x(codes);
        DeviceArray<bf16> out(256);
        matmul.forward_fp8(out, x, scale.inv(), identity, identity_scale.inv(), {}, 16, 16, 16, test_stream());
        return out.download();
    }
    std::vector<float> wgrad(const std::vector<e5m2>& codes) {
        DeviceArray<e5m2> dout(codes);
        DeviceArray<float> dweight(256);
        matmul.wgrad_fp8<e5m2>(dweight, dout, scale.inv(), identity, identity_scale.inv(), 16, 16, 16, false,
                               test_stream());
        return dweight.download();
    }
};

}  // namespace

TEST_CASE("FP8 products equal FP64 products of the dequantized operands, for both types of gradients") {
    if (no_fp8()) return;
    const int shapes[][3] = {{16, 16, 16}, {16, 48, 80}, {112, 32, 16}, {208, 16, 144}, {48, 272, 112}};
    for (const auto& [N, C, OC] : shapes) {
        check_fp8_products<e5m2>(N, C, OC);
        check_fp8_products<e4m3>(N, C, OC);
    }
    check_fp8_products<e5m2>(272, 144, 304);  // large enough for several threads
    for (const FastAccumulation fast : {FastAccumulation::forward, FastAccumulation::all})
        check_fp8_products<e5m2>(64, 128, 96, fast);
}

TEST_CASE("every FP8 code has its exact value in a product") {
    if (no_fp8()) return;
    TimesIdentity times;
    CHECK(to_doubles(times.forward(all_codes<e4m3>())) == to_doubles(all_codes<e4m3>()));
    CHECK(to_doubles(times.wgrad(all_codes<e5m2>())) == to_doubles(all_codes<e5m2>()));
}

TEST_CASE("a NaN in an operand reaches the result") {
    if (no_fp8()) return;
    std::vector<e4m3> codes(256, to_e4m3(1.0f));
    codes[5 * 16 + 3] = e4m3{kFp8NaN};
    const std::vector<bf16> result = TimesIdentity().forward(codes);
    for (int i = 0; i < 256; i++) CHECK(std::isnan(to_float(result[i])) == (i / 16 == 5));
}

TEST_CASE("scales are read when the product runs, not when its plan is made") {
    if (no_fp8()) return;
    const std::vector<e4m3> codes = all_codes<e4m3>();
    TimesIdentity times;
    times.forward(codes);
    for (const auto& [scale_inv, identity_inv] :
         {std::pair{2.0f, 8.0f}, std::pair{0.25f, 1.0f}, std::pair{1.0f, 0.5f}}) {
        times.scale.set(scale_inv);
        times.identity_scale.set(identity_inv);
        std::vector<double> expected = to_doubles(codes);
        for (double& e : expected) e *= static_cast<double>(scale_inv * identity_inv);
        CHECK(to_doubles(times.forward(codes)) == expected);
    }
}

TEST_CASE("an FP8 product repeated has the same bits, in another buffer too") {
    if (no_fp8()) return;
    const int N = 304, C = 128, OC = 256;
    const std::vector<e4m3> inp = random_normal<e4m3>(N * C, 50.0f, 1), weight = random_normal<e4m3>(OC * C, 50.0f, 2);
    DeviceArray<e4m3> d_inp(inp), shifted_inp(N * C + 16), d_weight(weight);
    DeviceArray<bf16> out(N * OC), again(N * OC + 8);
    const TensorScale inp_scale(0.013f), weight_scale(0.7f);
    Matmul matmul(false);
    matmul.reserve({N, C, OC});
    copy_on_device(shifted_inp + 16, d_inp, N * C, test_stream());
    matmul.forward_fp8(out, d_inp, inp_scale.inv(), d_weight, weight_scale.inv(), {}, N, C, OC, test_stream());
    matmul.forward_fp8(again + 8, shifted_inp + 16, inp_scale.inv(), d_weight, weight_scale.inv(), {}, N, C, OC,
                       test_stream());
    const std::vector<bf16> first = out.download(), second = again.download();
    CHECK(std::memcmp(first.data(), second.data() + 8, first.size() * sizeof(bf16)) == 0);
}

TEST_CASE("an FP8 product with a shape, scale or pointer that it cannot have is refused, and not counted") {
    if (no_fp8()) return;
    const int n = 32;
    DeviceArray<e4m3> x(n * n + 16);
    DeviceArray<bf16> out(n * n);
    DeviceArray<float> dweight(n * n), cells(8);
    const TensorScale one(1);
    Matmul matmul(false);
    const auto forward = [&](int N, int C, int OC, const float* inp_inv, const float* weight_inv) {
        matmul.forward_fp8(out, x, inp_inv, x, weight_inv, {}, N, C, OC, test_stream());
    };
    if (device_info().is_host)
        CHECK_THROWS_WITH(forward(n, n, n, one.inv(), one.inv()),
                          "matmul forward e4m3 N=32 C=32 OC=32: call Matmul::reserve() for this layer");
    matmul.reserve({n, n, n});
    CHECK_THROWS_WITH(
        forward(24, n, n, one.inv(), one.inv()),
        "matmul forward e4m3 N=24 C=32 OC=32: N=24 is not a multiple of 16, as these FP8 matmuls need; change "
        "the shape or run this layer in BF16");
    CHECK(contains(error_of([&] { forward(n, 8, n, one.inv(), one.inv()); }), "C=8 is not a multiple of 16"));
    CHECK(contains(error_of([&] { forward(n, n, 17, one.inv(), one.inv()); }), "OC=17 is not a multiple of 16"));
    CHECK(contains(error_of([&] { forward(n, n, n, nullptr, one.inv()); }), "a scale is null"));
    CHECK(contains(error_of([&] { forward(n, n, n, one.inv(), nullptr); }), "a scale is null"));
    CHECK(contains(error_of([&] { forward(n, n, n, cells + 1, one.inv()); }), "not 16-byte aligned"));
    CHECK(contains(error_of([&] { forward(n, n, n, one.inv(), cells + 3); }), "not 16-byte aligned"));
    CHECK(contains(error_of([&] { forward(16, 16, 1 << 30, one.inv(), one.inv()); }),
                   "a row of 2147483648 bytes exceeds 2^31 - 1"));
    CHECK(contains(error_of([&] {
                       matmul.wgrad_fp8<e4m3>(dweight, x, one.inv(), x, one.inv(), 16, 1 << 29, 16, false,
                                              test_stream());
                   }),
                   "a row of 2147483648 bytes exceeds 2^31 - 1"));
    CHECK(
        contains(error_of([&] { matmul.dgrad_fp8<e4m3>(out, x + 8, one.inv(), x, one.inv(), n, n, n, test_stream()); }),
                 "not 16-byte aligned"));
    CHECK(matmul.counts().fp8 == 0);
}

TEST_CASE("planned_bytes() predicts reserved_bytes()") {
    test_stream();
    std::vector<Matmul::LinearShape> shapes = {{64, 32, 96}, {64, 128, 32}, {16, 32, 1008}};
    std::vector<size_t> planned;
    for (const OperandType type : {OperandType::fp32, OperandType::bf16, OperandType::e4m3}) {
        Matmul matmul(false);
        for (Matmul::LinearShape& s : shapes) {
            s.type = type;
            matmul.reserve(s);
        }
        matmul.allocate();
        planned.push_back(Matmul::planned_bytes(shapes));
        CHECK(planned.back() == matmul.reserved_bytes());
    }
    if (device_info().is_host) {
        // The largest of all inp and dout, of all weights and inp, and of all out and dinp: (16, 1008) and (64, 128).
        const size_t first = 16 * 1008, second = 1008 * 32, result = 16 * 1008;
        const size_t widened = (first + second + result) * sizeof(float);
        CHECK(planned[0] == 0);
        if (planned[1] == widened)  // without BF16 instructions everything is FP32
            CHECK(planned[2] == widened);
        else
            CHECK(planned[2] >= planned[1] + (first + second) * sizeof(bf16));
    }
}
