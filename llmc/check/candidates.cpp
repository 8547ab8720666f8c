// Kernels that are not known to be faster than those they replace, at the shape of a run: Hopper's products with GELU
// next to a product of the library and the separate kernel.
#include <bit>
#include <cmath>

#include "llmc/check/product_checks.h"
#include "llmc/check/specifications.h"
#include "llmc/kernels/hopper/matmul_gelu.h"

namespace llmc::check {
namespace {

// Runs a candidate and what it replaces on the same numbers. Of each pair of arrays, the library's product and the
// separate kernel write the first, and the candidate writes the second. d is the gradient of GELU(h), which the product
// passes to the separate kernel; a candidate keeps it in registers.
template <class F8, bool kBackward>
class Candidate {
public:
    Candidate(const KernelUse& use, stream_t stream)
        : stream_(stream),
          N_(use.tokens),
          K_(use.channels),
          F_(use.hidden),
          product_(product_of(use)),
          matmul_(false),
          first_(size_t{1} * N_ * K_, stream),
          second_(size_t{1} * F_ * K_, stream),
          bias_(F_, stream),
          h_or_d_(elements(), stream),
          h_(elements(), stream),
          row_{GuardedArray<F8>(elements(), stream), GuardedArray<F8>(elements(), stream)},
          transposed_{GuardedArray<F8>(elements(), stream), GuardedArray<F8>(elements(), stream)},
          state_{GuardedArray<Fp8State>(1, stream), GuardedArray<Fp8State>(1, stream)},
          dbias_{GuardedArray<float>(F_, stream), GuardedArray<float>(F_, stream)},
          scratch_(quantize_scratch(N_, F_), stream),
          scales_(std::vector<float>(8), stream),
          place_(2, stream) {
        matmul_.reserve({product_.N, product_.C, product_.OC});
    }
    static Product product_of(const KernelUse& use) {
        const OperandType type = kBackward ? fp8_operand_type<F8> : OperandType::e4m3;
        const int N = use.tokens, K = use.channels, F = use.hidden;
        if (kBackward) return {Product::dgrad, type, N, F, K, false, false};
        return {Product::forward, type, N, K, F, true, false};
    }

    // Whole numbers, whose sums are exact, must give the same bytes; sums of real numbers must repeat their bits. Where
    // h is 32, GELU's derivative is 1, so that sums of columns are exact, too.
    std::string problem() {
        fill(false, 0);
        if (const std::string wrong = compare(); !wrong.empty()) return wrong;
        if (kBackward) {
            fill(false, 32);
            run_separately();
            run_candidate();
            if (dbias_[0].read() != dbias_[1].read()) return "the bias gradient is another than that of whole numbers";
        }
        fill(true, 0);
        run_candidate();
        copy_on_device(row_[0].data(), row_[1].data(), elements(), stream_);
        run_candidate();
        return difference("codes, computed again,", row_[0].data(), row_[1].data(), elements() / 2);
    }
    // A card at its power limit lowers its clock. So the card warms up with the candidate and the separate kernels in
    // turn: a candidate that had warmed up alone would be timed at a lower clock than a run has, and than what it
    // replaces.
    CandidateTimes times() {
        fill(true, 0);
        const auto candidate = [&] { run_candidate(); }, separate = [&] { run_separately(); };
        warm_up(stream_, [&] {
            candidate();
            separate();
        });
        const std::vector<double> ms = cold_ms(stream_, {candidate, separate});
        return {ms[0], ms[1]};
    }

private:
    size_t elements() const { return size_t{1} * N_ * F_; }

    // Numbers of about 1 in h and d. `constant`: the number in all of h, backward; 0: random ones.
    void fill(bool real, int constant) {
        const KnownProduct known(product_);
        const auto numbers = [&](KnownNumbers n) { return KnownNumbers{n.seed, real ? 0 : n.largest}; };
        fill_known(first_.data(), product_.first_element(), first_.size(), numbers(known.first), stream_);
        fill_known(second_.data(), product_.second_element(), second_.size(), numbers(known.second), stream_);
        fill_known(bias_.data(), Product::Element::bf16, bias_.size(), {known.bias.seed, 1}, stream_);
        const float of_sums = std::exp2(-std::round(std::log2(std::sqrt(static_cast<float>(K_)))));
        std::vector<float> scales(8);  // 16 bytes each
        scales[0] = of_sums;
        scales[4] = 1;
        scales_.write(scales);
        if (kBackward) {
            if (constant)
                h_.write(std::vector<bf16>(elements(), to<bf16>(static_cast<float>(constant))));
            else
                fill_known(h_.data(), Product::Element::bf16, elements(), {19, 0}, stream_);
        }
        Fp8State state{};
        state.scale = kBackward ? 16 : 64;
        for (int i = 0; i < 2; i++) state_[i].write({state});
    }
    Quantized<F8> codes(int i) const { return {row_[i].data(), transposed_[i].data(), state_[i].data()}; }
    BiasGradient bias_gradient(int i) const { return {dbias_[i].data(), scratch_.data()}; }
    hopper::Codes<F8> first() const { return {first_.data(), scales_.data()}; }
    hopper::Codes<e4m3> second() const { return {second_.data(), scales_.data() + 4}; }

    void run_separately() {
        matmul_.multiply(product_,
                         {h_or_d_.data(), first_.data(), second_.data(), kBackward ? nullptr : bias_.data(),
                          scales_.data(), scales_.data() + 4},
                         stream_);
        if constexpr (kBackward)
            activation_backward_fp8<F8>(Activation::gelu, codes(0), bias_gradient(0), h_or_d_, h_, N_, F_, kPass,
                                        stream_);
        else
            activation_forward_fp8(Activation::gelu, codes(0), h_or_d_, N_, F_, kPass, stream_);
    }
    void run_candidate() {
        if constexpr (kBackward)
            hopper::multiply_gelu_backward<F8>(codes(1), bias_gradient(1), first(), second(), h_, N_, K_, F_, kPass,
                                               stream_);
        else
            hopper::multiply_gelu_forward(codes(1), h_, first(), second(), bias_, N_, K_, F_, kPass, stream_);
    }

    std::string compare() {
        run_separately();
        run_candidate();
        for (const std::string& wrong :
             {row_[1].trespass(), transposed_[1].trespass(), h_.trespass(), dbias_[1].trespass(),
              kBackward ? "" : difference("h", h_or_d_.data(), h_.data(), elements()),
              difference("codes", row_[0].data(), row_[1].data(), elements() / 2),
              difference("transposed codes", transposed_[0].data(), transposed_[1].data(), elements() / 2)})
            if (!wrong.empty()) return wrong;
        const Fp8State expected = state_[0].read()[0];
        return wrong_state(state_[1].read()[0], {expected, expected});
    }
    // Compares bytes two at a time.
    std::string difference(const char* what, const void* a, const void* b, size_t n) {
        find_difference(place_.data(), a, b, Product::Element::bf16, n, stream_);
        const std::vector<uint32_t> found = place_.read();
        if (found[0] == 0) return "";
        return fmt::format("{} differ from the separate kernels' in {} of {} places, the first is {}", what, found[0],
                           n, found[1]);
    }

    static constexpr QuantizePass kPass = QuantizePass::train;
    const stream_t stream_;
    const int N_, K_, F_;
    const Product product_;
    Matmul matmul_;
    GuardedArray<F8> first_;
    GuardedArray<e4m3> second_;
    GuardedArray<bf16> bias_, h_or_d_, h_;
    GuardedArray<F8> row_[2], transposed_[2];
    GuardedArray<Fp8State> state_[2];
    GuardedArray<float> dbias_[2], scratch_, scales_;
    GuardedArray<uint32_t> place_;
};

template <class F8, bool kBackward>
void add_candidate(Items& items, const KernelUse& use, KernelVariant variant) {
    using Kind = Candidate<F8, kBackward>;
    const std::string name =
        fmt::format("{} {} N={} K={} F={} next to the separate kernels", kernel_variant(variant).name, type_name<F8>(),
                    use.tokens, use.channels, use.hidden);
    items.push_back({name, "kernels", kernel_variant(variant).name,
                     [use](stream_t stream) { return Kind(use, stream).problem(); }});
    items.back().times = [use](stream_t stream) { return Kind(use, stream).times(); };
    items.back().product = Kind::product_of(use);
}

}  // namespace

void add_candidates(Items& items, const KernelUse& use) {
    if (use.kernels.has(KernelVariant::hopper_matmul_gelu))
        add_candidate<e4m3, false>(items, use, KernelVariant::hopper_matmul_gelu);
    if (use.kernels.has(KernelVariant::hopper_matmul_gelu_backward))
        with_type<e4m3, e5m2>(use.e4m3_gradients, [&]<class F8>(F8) {
            add_candidate<F8, true>(items, use, KernelVariant::hopper_matmul_gelu_backward);
        });
}

}  // namespace llmc::check
