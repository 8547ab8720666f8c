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

// One tensor's scale as the kernels leave it on the device.
struct Scale {
    float value;
    DeviceArray<Fp8State> state;
    explicit Scale(float scale_inv) : value(scale_inv), state(std::vector<Fp8State>{with(scale_inv)}) {}
    static Fp8State with(float scale_inv) {
        Fp8State state = {};
        state.scale_inv = scale_inv;
        state.scale = NAN;  // products must not use it
        return state;
    }
    void set(float scale_inv) {
        value = scale_inv;
        state.upload({with(scale_inv)});
    }
    const float* inv() const { return &state.get()->scale_inv; }
};

template <class F8>
void check_products(int N, int C, int OC, FastAccumulation fast = FastAccumulation::none) {
    CAPTURE(N);
    CAPTURE(C);
    CAPTURE(OC);
    CAPTURE(sizeof(F8));
    const size_t inp_size = static_cast<size_t>(N) * C, weight_size = static_cast<size_t>(OC) * C;
    const size_t out_size = static_cast<size_t>(N) * OC;
    const std::vector<e4m3> inp = random_normal<e4m3>(inp_size, 100.0f, 1),
                            weight = random_normal<e4m3>(weight_size, 60.0f, 2);
    const std::vector<F8> dout = random_normal<F8>(out_size, 130.0f, 3);
    const std::vector<bf16> bias = random_normal<bf16>(OC, 2.0f, 4);
    const std::vector<e4m3> weight_t = transposed(weight, OC, C), inp_t = transposed(inp, N, C);
    const std::vector<F8> dout_t = transposed(dout, N, OC);
    const Scale inp_scale(0.0127f), weight_scale(0.0031f), dout_scale(3.3e-7f);

    Matmul matmul(false, fast);
    matmul.reserve({N, C, OC});
    DeviceArray<e4m3> d_inp(inp), d_weight(weight), d_weight_t(weight_t), d_inp_t(inp_t);
    DeviceArray<F8> d_dout(dout), d_dout_t(dout_t);
    DeviceArray<bf16> d_bias(bias), out(out_size), out_plain(out_size), dinp(inp_size);
    DeviceArray<float> dweight(weight_size);
    matmul.forward_fp8(out, d_inp, inp_scale.inv(), d_weight, weight_scale.inv(), d_bias, N, C, OC, test_stream());
    matmul.forward_fp8(out_plain, d_inp, inp_scale.inv(), d_weight, weight_scale.inv(), nullptr, N, C, OC,
                       test_stream());
    matmul.dgrad_fp8<F8>(dinp, d_dout, dout_scale.inv(), d_weight_t, weight_scale.inv(), N, C, OC, test_stream());
    matmul.wgrad_fp8<F8>(dweight, d_dout_t, dout_scale.inv(), d_inp_t, inp_scale.inv(), N, C, OC, false, test_stream());

    const std::vector<double> x = to_doubles(inp), w = to_doubles(weight), d_t = to_doubles(dout_t);
    const double u = fp8_unit();
    const ExactSums forward(x, w, C, static_cast<double>(inp_scale.value) * weight_scale.value),
        dgrad(to_doubles(dout), to_doubles(weight_t), OC, static_cast<double>(dout_scale.value) * weight_scale.value),
        wgrad(d_t, to_doubles(inp_t), N, static_cast<double>(dout_scale.value) * inp_scale.value);
    CHECK(part_of_allowed(out_plain.download(), forward, u) <= 1);
    CHECK(part_of_allowed(out.download(), forward.plus(to_doubles(bias)), u) <= 1);
    CHECK(part_of_allowed(dinp.download(), dgrad, u) <= 1);
    CHECK(part_of_allowed(dweight.download(), wgrad, u) <= 1);

    matmul.wgrad_fp8<F8>(dweight, d_dout_t, dout_scale.inv(), d_inp_t, inp_scale.inv(), N, C, OC, true, test_stream());
    CHECK(part_of_allowed(dweight.download(), wgrad.twice(), u) <= 1);
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

}  // namespace

TEST_CASE("FP8 products equal FP64 products of the dequantized operands, for both types of gradients") {
    if (no_fp8()) return;
    const int shapes[][3] = {{16, 16, 16}, {16, 48, 80}, {112, 32, 16}, {208, 16, 144}, {48, 272, 112}};
    for (const auto& [N, C, OC] : shapes) {
        check_products<e5m2>(N, C, OC);
        check_products<e4m3>(N, C, OC);
    }
    check_products<e5m2>(272, 144, 304);  // large enough for several threads
    for (const FastAccumulation fast : {FastAccumulation::forward, FastAccumulation::all})
        check_products<e5m2>(64, 128, 96, fast);
}

TEST_CASE("every FP8 code has its exact value in a product") {
    if (no_fp8()) return;
    const int n = 16;
    const std::vector<e4m3> codes = all_codes<e4m3>();
    const std::vector<e5m2> gradients = all_codes<e5m2>();
    DeviceArray<e4m3> d_codes(codes), d_identity(identity16());
    DeviceArray<e5m2> d_gradients(gradients);
    DeviceArray<bf16> out(n * n);
    DeviceArray<float> dweight(n * n);
    const Scale one(1.0f);
    Matmul matmul(false);
    matmul.reserve({n, n, n});
    matmul.forward_fp8(out, d_codes, one.inv(), d_identity, one.inv(), nullptr, n, n, n, test_stream());
    matmul.wgrad_fp8<e5m2>(dweight, d_gradients, one.inv(), d_identity, one.inv(), n, n, n, false, test_stream());
    CHECK(to_doubles(out.download()) == to_doubles(codes));
    CHECK(to_doubles(dweight.download()) == to_doubles(gradients));
}

TEST_CASE("a NaN in an operand reaches the result") {
    if (no_fp8()) return;
    const int n = 16;
    std::vector<e4m3> codes(n * n, to_e4m3(1.0f));
    codes[5 * n + 3] = e4m3{kFp8NaN};
    DeviceArray<e4m3> d_codes(codes), d_identity(identity16());
    DeviceArray<bf16> out(n * n);
    const Scale one(1.0f);
    Matmul matmul(false);
    matmul.reserve({n, n, n});
    matmul.forward_fp8(out, d_codes, one.inv(), d_identity, one.inv(), nullptr, n, n, n, test_stream());
    const std::vector<bf16> result = out.download();
    for (int i = 0; i < n * n; i++) CHECK(std::isnan(to_float(result[i])) == (i / n == 5));
}

TEST_CASE("scales are read when the product runs, not when its plan is made") {
    if (no_fp8()) return;
    const int n = 16;
    const std::vector<e4m3> codes = all_codes<e4m3>();
    DeviceArray<e4m3> d_codes(codes), d_identity(identity16());
    DeviceArray<bf16> out(n * n);
    Scale inp_scale(1.0f), weight_scale(1.0f);
    Matmul matmul(false);
    matmul.reserve({n, n, n});
    const auto multiply = [&] {
        matmul.forward_fp8(out, d_codes, inp_scale.inv(), d_identity, weight_scale.inv(), nullptr, n, n, n,
                           test_stream());
    };
    multiply();
    for (const auto& [inp_inv, weight_inv] : {std::pair{2.0f, 8.0f}, std::pair{0.25f, 1.0f}, std::pair{1.0f, 0.5f}}) {
        inp_scale.set(inp_inv);
        weight_scale.set(weight_inv);
        multiply();
        std::vector<double> expected = to_doubles(codes);
        for (double& e : expected) e *= static_cast<double>(inp_inv * weight_inv);
        CHECK(to_doubles(out.download()) == expected);
    }
}

TEST_CASE("an FP8 product repeated has the same bits, in another buffer too") {
    if (no_fp8()) return;
    const int N = 304, C = 128, OC = 256;
    const std::vector<e4m3> inp = random_normal<e4m3>(N * C, 50.0f, 1), weight = random_normal<e4m3>(OC * C, 50.0f, 2);
    DeviceArray<e4m3> d_inp(inp), shifted_inp(N * C + 16), d_weight(weight);
    DeviceArray<bf16> out(N * OC), again(N * OC + 8);
    const Scale inp_scale(0.013f), weight_scale(0.7f);
    Matmul matmul(false);
    matmul.reserve({N, C, OC});
    copy_on_device(shifted_inp + 16, d_inp, N * C, test_stream());
    matmul.forward_fp8(out, d_inp, inp_scale.inv(), d_weight, weight_scale.inv(), nullptr, N, C, OC, test_stream());
    matmul.forward_fp8(again + 8, shifted_inp + 16, inp_scale.inv(), d_weight, weight_scale.inv(), nullptr, N, C, OC,
                       test_stream());
    const std::vector<bf16> first = out.download(), second = again.download();
    CHECK(std::memcmp(first.data(), second.data() + 8, first.size() * sizeof(bf16)) == 0);
}

TEST_CASE("what an FP8 product cannot do is refused with the value, and not counted") {
    if (no_fp8()) return;
    const int n = 32;
    DeviceArray<e4m3> x(n * n + 16);
    DeviceArray<bf16> out(n * n);
    DeviceArray<float> dweight(n * n), cells(8);
    const Scale one(1.0f);
    Matmul matmul(false);
    const auto forward = [&](int N, int C, int OC, const float* inp_inv, const float* weight_inv) {
        matmul.forward_fp8(out, x, inp_inv, x, weight_inv, nullptr, N, C, OC, test_stream());
    };
    if (device_info().is_host)
        CHECK_THROWS_WITH(forward(n, n, n, one.inv(), one.inv()),
                          "matmul forward e4m3 N=32 C=32 OC=32: call Matmul::reserve() for this layer");
    matmul.reserve({n, n, n});
    CHECK_THROWS_WITH(
        forward(24, n, n, one.inv(), one.inv()),
        "matmul forward e4m3 N=24 C=32 OC=32: N=24 is not a multiple of 16, as these FP8 matmuls need; change "
        "the shape or run this layer in BF16");
    CHECK_THROWS_WITH(forward(n, 8, n, one.inv(), one.inv()), doctest::Contains("C=8 is not a multiple of 16"));
    CHECK_THROWS_WITH(forward(n, n, 17, one.inv(), one.inv()), doctest::Contains("OC=17 is not a multiple of 16"));
    CHECK_THROWS_WITH(forward(n, n, n, nullptr, one.inv()), doctest::Contains("a scale is null"));
    CHECK_THROWS_WITH(forward(n, n, n, one.inv(), nullptr), doctest::Contains("a scale is null"));
    CHECK_THROWS_WITH(forward(n, n, n, cells + 1, one.inv()), doctest::Contains("not 16-byte aligned"));
    CHECK_THROWS_WITH(forward(n, n, n, one.inv(), cells + 3), doctest::Contains("not 16-byte aligned"));
    CHECK_THROWS_WITH(forward(16, 16, 1 << 30, one.inv(), one.inv()),
                      doctest::Contains("a row of 2147483648 bytes exceeds 2^31 - 1"));
    CHECK_THROWS_WITH(
        matmul.wgrad_fp8<e4m3>(dweight, x, one.inv(), x, one.inv(), 16, 1 << 29, 16, false, test_stream()),
        doctest::Contains("a row of 2147483648 bytes exceeds 2^31 - 1"));
    CHECK_THROWS_WITH(matmul.dgrad_fp8<e4m3>(out, x + 8, one.inv(), x, one.inv(), n, n, n, test_stream()),
                      doctest::Contains("not 16-byte aligned"));
    CHECK(matmul.counts().fp8 == 0);
}

TEST_CASE("FP8 products are counted as such") {
    if (no_fp8()) return;
    const int n = 16;
    DeviceArray<e4m3> x(identity16());
    DeviceArray<e5m2> gradient(all_codes<e5m2>());
    DeviceArray<bf16> out(n * n);
    DeviceArray<float> dweight(n * n);
    const Scale one(1.0f);
    Matmul matmul(false);
    matmul.reserve({n, n, n});
    matmul.forward_fp8(out, x, one.inv(), x, one.inv(), nullptr, n, n, n, test_stream());
    matmul.dgrad_fp8<e5m2>(out, gradient, one.inv(), x, one.inv(), n, n, n, test_stream());
    matmul.dgrad_fp8<e4m3>(out, x, one.inv(), x, one.inv(), n, n, n, test_stream());
    matmul.wgrad_fp8<e5m2>(dweight, gradient, one.inv(), x, one.inv(), n, n, n, false, test_stream());
    matmul.forward<bf16>(out, out, out, nullptr, n, n, n, test_stream());
    CHECK(matmul.counts().fp8 == 4);
    if (Matmul::emulated_because(Fp8Scaling::tensor).empty()) CHECK(matmul.counts().emulated == 0);
    CHECK(matmul.counts().bf16 == 1);
    CHECK(matmul.counts().fp32 == 0);
}

TEST_CASE("planned_bytes foretells reserved_bytes") {
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
