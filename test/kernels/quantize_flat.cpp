// The two halves of a sharded weight's quantization give the bits of quantize_weight().
#include "llmc/kernels/quantize.h"

#include <algorithm>

#include "test/kernels/quantized.h"

using namespace llmc;
using namespace llmc::test;

TEST_CASE("a weight quantized slice by slice and transposed equals the whole one's quantization") {
    for (const auto& [R, C] : {std::pair{16, 16}, {48, 144}, {272, 128}, {144, 1600}}) {
        CAPTURE(R);
        CAPTURE(C);
        const size_t n = static_cast<size_t>(R) * C;
        const auto values = wide_values<float>(n, static_cast<uint32_t>(R + C));
        DeviceArray<float> master(values);
        QuantizedArrays<e4m3> whole(n, used_state(23.0f)), sliced(n, used_state(23.0f));
        for (const QuantizePass pass :
             {QuantizePass::measure, QuantizePass::write, QuantizePass::write_counted, QuantizePass::replay}) {
            quantize_weight(whole.both(), master.get(), R, C, pass, test_stream());
            const size_t cut = std::min<size_t>(n, n / 3 / 64 * 64 + 64);
            quantize_flat(sliced.row.get(), master.get(), cut, sliced.state.get(), pass, test_stream());
            quantize_flat(sliced.row.get() + cut, master.get() + cut, n - cut, sliced.state.get(), pass, test_stream());
            CHECK(same_bits(sliced.state.download(), whole.state.download()));
        }
        transpose_codes(sliced.transposed.get(), sliced.row.get(), R, C, test_stream());
        CHECK(same_bits(sliced.row.download(), whole.row.download()));
        CHECK(same_bits(sliced.transposed.download(), whole.transposed.download()));
    }
}

TEST_CASE("quantize_flat takes any count, and sees what is not finite") {
    for (const size_t n : {size_t{1}, size_t{7}, size_t{8}, size_t{9}, size_t{4095}, size_t{4097}}) {
        CAPTURE(n);
        auto values = random_normal<float>(n, 1.0f, 3);
        values[n / 2] = INFINITY;
        DeviceArray<float> master(values);
        DeviceArray<e4m3> codes(n + 1);
        DeviceArray<Fp8State> state(std::vector<Fp8State>{used_state(2.0f)});
        const e4m3 before = codes.download()[n];
        quantize_flat(codes.get(), master.get(), n, state.get(), QuantizePass::write, test_stream());
        const QuantizedReference<e4m3> reference(values, 2.0f);
        const auto actual = codes.download();
        CHECK(wrong_codes(std::vector<e4m3>(actual.begin(), actual.end() - 1), reference.row, Known::exactly) == 0);
        CHECK(actual[n].bits == before.bits);
        CHECK(state_matches(state.download()[0], reference.after(used_state(2.0f), QuantizePass::write), Known::exactly,
                            0));
    }
    DeviceArray<float> master(64);
    DeviceArray<e4m3> codes(64);
    DeviceArray<Fp8State> state(std::vector<Fp8State>{used_state(2.0f)});
    CHECK(refusal([&] {
              quantize_flat(codes.get(), master.get(), 64, state.get(), QuantizePass::train, test_stream());
          }).find("measured, then written") != std::string::npos);
    CHECK(refusal([&] { transpose_codes(codes.get(), codes.get(), 8, 8, test_stream()); }).find("multiples of 16") !=
          std::string::npos);
}
