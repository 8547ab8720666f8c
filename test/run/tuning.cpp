// The peak that MFU refers to.
#include "llmc/run/tuning.h"

#include <doctest/doctest.h>

using namespace llmc;

TEST_CASE("tuning: MFU is relative to the data sheet, and on an unknown card to the highest rate measured on it") {
    const Rates rates = {{"bf16", 400e12}, {"fp8", 700e12}};
    DeviceInfo h100;
    h100.name = "NVIDIA H100 80GB HBM3";
    CHECK(peak_tflops(h100, Precision::bf16, rates) == peak_tflops(h100, Precision::bf16));
    CHECK(peak_tflops(h100, Precision::bf16).value() > 900);

    DeviceInfo unknown;
    unknown.name = "NVIDIA Z9";
    CHECK(!peak_tflops(unknown, Precision::fp8));
    CHECK(peak_tflops(unknown, Precision::fp8, rates) == doctest::Approx(700));
    CHECK(peak_tflops(unknown, Precision::bf16, rates) == doctest::Approx(400));
    CHECK(!peak_tflops(unknown, Precision::fp32, rates));
    CHECK(!peak_tflops(unknown, Precision::fp8, {}));
}
