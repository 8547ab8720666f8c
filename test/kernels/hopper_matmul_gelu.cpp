// Hopper's products with GELU: their specifications, and refusals. Skipped where the device is no Hopper card.
#include "llmc/kernels/hopper/matmul_gelu.h"

#include "test/kernels/check_specifications.h"
#include "test/kernels/quantized.h"

using namespace llmc;
using namespace llmc::test;

TEST_CASE("Hopper's products with GELU write the bytes of a product and a separate kernel") {
    test_stream();
    if (!is_hopper()) return;
    check_specifications(check::add_product_with_gelu_tests);
}

namespace {

// Runs the products of one type on some of N rows.
template <class T>
struct Products {
    static constexpr bool kIsFp8 = sizeof(T) == 1;
    using Forward = std::conditional_t<kIsFp8, e4m3, bf16>;
    const int N, K, F;
    const size_t results = static_cast<size_t>(N) * F;
    DeviceArray<Forward> x{random_normal<Forward>(static_cast<size_t>(N) * K, 1.0f, 1)},
        weight{random_normal<Forward>(static_cast<size_t>(F) * K, 0.1f, 2)};
    DeviceArray<T> dout{random_normal<T>(static_cast<size_t>(N) * K, 1.0f, 3)};
    DeviceArray<bf16> bias{random_normal<bf16>(static_cast<size_t>(F), 1.0f, 4)}, h{results};
    DeviceArray<float> scale_inv{std::vector<float>{1}}, dbias{static_cast<size_t>(F)},
        scratch{static_cast<size_t>(N / 128) * F};
    DeviceArray<Forward> out{results}, out_transposed{results};
    DeviceArray<T> dh{results}, dh_transposed{results};
    DeviceArray<Fp8State> states{std::vector<Fp8State>(2, used_state(100.0f))};
    DeviceArray<unsigned> tickets{std::vector<unsigned>(1)};

    Products(int N_, int K_, int F_) : N(N_), K(K_), F(F_) {}

    // Transposed codes are written for all rows only.
    void run(int first, int rows) {
        const auto from = [&](auto& array) { return array.get() + array.size() / N * first; };
        const BiasGradient sums{dbias, scratch.get() + static_cast<size_t>(first / 128) * F, false};
        const bool turns = kIsFp8 && rows == N;
        hopper::multiply_gelu_forward<Forward>({from(out), turns ? out_transposed.get() : nullptr, states}, from(h),
                                               {from(x), scale_inv}, {weight, scale_inv}, bias, rows, K, F,
                                               QuantizePass::train_counted, tickets, test_stream());
        hopper::multiply_gelu_backward<T>({from(dh), turns ? dh_transposed.get() : nullptr, states + 1}, sums,
                                          {from(dout), scale_inv}, {weight, scale_inv}, from(h), rows, K, F,
                                          QuantizePass::train, tickets, test_stream());
    }
};

}  // namespace

// The specifications have so few tiles that no block of a card takes a second one. Here each takes four.
TEST_CASE_TEMPLATE("Hopper's products with GELU have the same bits for many rows in one launch as for 128 at a time", T,
                   e5m2, bf16) {
    test_stream();
    if (!is_hopper()) return;
    const int N = 2 * 128 * device_info().multiprocessors, K = 272, F = 512;
    Products<T> together(N, K, F), apart(N, K, F);
    together.run(0, N);
    for (int first = 0; first < N; first += 128) apart.run(first, 128);
    const auto same = [](const auto& a, const auto& b) { return same_bits(a.download(), b.download()); };
    CHECK(same(together.h, apart.h));
    CHECK(same(together.out, apart.out));
    CHECK(same(together.dh, apart.dh));
    CHECK(same(together.scratch, apart.scratch));
    CHECK(same(together.states, apart.states));
    if (sizeof(T) == 1) {
        CHECK(same_bits(together.out_transposed.download(), reference::turned(together.out.download(), N, F)));
        CHECK(same_bits(together.dh_transposed.download(), reference::turned(together.dh.download(), N, F)));
    }
    CHECK(together.tickets.download()[0] == 0);
}

TEST_CASE("Hopper's products with GELU refuse other shapes, and passes that only measure") {
    test_stream();
    if (!is_hopper()) return;
    const auto refusal = [](int N, int K, int F, QuantizePass pass) {
        Fp8State* const never_read = reinterpret_cast<Fp8State*>(64);
        return error_of(
            [&] {
                hopper::multiply_gelu_forward<e4m3>({nullptr, nullptr, never_read}, nullptr, {}, {}, nullptr, N, K, F,
                                                    pass, nullptr, test_stream());
            },
            ExitCode::failure);
    };
    for (const auto& [N, K, F] : {std::tuple{64, 128, 256}, {128, 128, 384}, {128, 24, 256}, {0, 128, 256}})
        CHECK(refusal(N, K, F, QuantizePass::train).find("must be a multiple of 128") != std::string::npos);
    CHECK(refusal(128, 128, 256, QuantizePass::measure).find("measures nothing") != std::string::npos);
}
