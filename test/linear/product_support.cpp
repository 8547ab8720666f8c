// Which FP8 products cuBLASLt supports, by version and compute capability; and products whose library refuses
// algorithms: the order of attempts, the choice that is kept, and emulation as the last resort.
#include "llmc/linear/product_support.h"

#include <doctest/doctest.h>

#include <set>
#include <stdexcept>
#include <vector>

#include "llmc/linear/matmul.h"

using namespace llmc;

namespace {

bool native(Fp8Scaling scaling, size_t version, int capability) {
    return why_not_native(scaling, {version, version}, capability).empty();
}

}  // namespace

TEST_CASE("product support: scales of a tensor need Ada, and Blackwell needs CUDA 12.8") {
    for (const size_t version : {120001ul, 120400ul, 120803ul, 130100ul}) {
        CHECK_FALSE(native(Fp8Scaling::tensor, version, 80));
        CHECK_FALSE(native(Fp8Scaling::tensor, version, 86));
        CHECK(native(Fp8Scaling::tensor, version, 89));
        CHECK(native(Fp8Scaling::tensor, version, 90));
        CHECK(native(Fp8Scaling::tensor, version, 100) == (version >= 120800));
        CHECK(native(Fp8Scaling::tensor, version, 120) == (version >= 120800));
    }
}

TEST_CASE("product support: what a GPU needs for matmuls does not depend on the machine that plans") {
    const std::vector<Matmul::LinearShape> shapes = {{64, 32, 96}, {64, 128, 32}};
    CHECK(Matmul::planned_bytes(shapes, Fp8Scaling::tensor, 90) == kLtWorkspaceBytes);
    CHECK(Matmul::planned_bytes(shapes, Fp8Scaling::tensor, 80) ==
          kLtWorkspaceBytes);  // a product allocates when it runs
    CHECK(Matmul::planned_bytes(shapes, Fp8Scaling::block, 90) == kLtWorkspaceBytes);
    // Emulated: the largest first operand, inp (64, 128), and the largest second one, as large.
    CHECK(Matmul::planned_bytes(shapes, Fp8Scaling::block, 89) == kLtWorkspaceBytes + 2 * 64 * 128 * sizeof(bf16));
}

TEST_CASE("product support: blocks of 128 are Hopper's from CUDA 12.9 on, MX is Blackwell's from 12.8 on") {
    for (const int capability : {80, 86, 89, 90, 100, 103, 120}) {
        CAPTURE(capability);
        CHECK_FALSE(native(Fp8Scaling::block, 120803, capability));
        CHECK(native(Fp8Scaling::block, 120900, capability) == (capability == 90));
        CHECK(native(Fp8Scaling::block, 130100, capability) == (capability == 90));
        CHECK_FALSE(native(Fp8Scaling::mx, 120604, capability));
        CHECK(native(Fp8Scaling::mx, 120803, capability) == (capability >= 100));
    }
}

TEST_CASE(
    "product support: header and library must both support a product, and the reason names the one that does not") {
    CHECK(
        why_not_native(Fp8Scaling::block, {130100, 130100}, 89) ==
        "cuBLASLt has FP8 matmuls with one scale per 128 elements on GPUs of compute capability 9.0 (Hopper); this one "
        "has 8.9");
    CHECK(why_not_native(Fp8Scaling::block, {120900, 120604}, 90) ==
          "cuBLASLt has FP8 matmuls with one scale per 128 elements on this GPU from CUDA 12.9 on; the library found "
          "here "
          "is 12.6.4");
    CHECK(why_not_native(Fp8Scaling::mx, {120604, 120900}, 100) ==
          "cuBLASLt has FP8 matmuls with MX scales on this GPU from CUDA 12.8 on; this program was built with the "
          "headers of 12.6.4");
    CHECK(lt_version_text(120903) == "12.9.3");
}

TEST_CASE("product support: the note on a refused product names its shape, its types and the remedy") {
    const Product product{Product::dgrad, OperandType::e5m2_e4m3, 1024, 768, 2304, false, false};
    CHECK(emulation_note(product, "cuBLASLt refuses it") ==
          "note: matmul dgrad e5m2 x e4m3 N=1024 C=768 OC=2304: cuBLASLt refuses it; the same values are multiplied in "
          "BF16 instead, counted as `emulated`");
}

// ---- which algorithm ------------------------------------------------------------------------------------------------

namespace {

// A library that refuses some of its algorithms, and a count of emulated products.
struct Library {
    std::set<int> refused;
    std::vector<int> asked;
    int emulated = 0;

    bool run(ProductWay& way) {
        return way.run(
            [&](int i) {
                asked.push_back(i);
                return !refused.contains(i);
            },
            [&] { emulated++; });
    }
};

}  // namespace

TEST_CASE("product way: the first algorithm that runs is kept") {
    ProductWay way(8, true);
    Library library{{0, 1, 2}, {}};
    CHECK(library.run(way));
    CHECK(library.asked == std::vector<int>{0, 1, 2, 3});
    CHECK(way.algorithm() == 3);
    library.refused.clear();  // a refused algorithm is not tried again, because its bits would differ
    library.asked.clear();
    CHECK(library.run(way));
    CHECK(library.asked == std::vector<int>{3});
    CHECK_FALSE(way.emulated());
    CHECK(library.emulated == 0);
}

TEST_CASE("product way: emulation comes after the last algorithm, and stays") {
    for (const int proposed : {0, 1, 8}) {
        CAPTURE(proposed);
        ProductWay way(proposed, true);
        Library library{{0, 1, 2, 3, 4, 5, 6, 7}, {}};
        CHECK(library.run(way));
        CHECK(library.asked.size() == static_cast<size_t>(proposed));
        CHECK(way.emulated());
        CHECK(library.emulated == 1);
        CHECK(library.run(way));
        CHECK(library.asked.size() == static_cast<size_t>(proposed));
        CHECK(library.emulated == 2);
    }
}

TEST_CASE("product way: a product without emulation fails after the last algorithm") {
    ProductWay way(2, false);
    Library library{{0, 1}, {}};
    CHECK_FALSE(library.run(way));
    CHECK(library.asked == std::vector<int>{0, 1});
    CHECK_FALSE(way.emulated());
    CHECK(library.emulated == 0);
    ProductWay none;
    CHECK_FALSE(library.run(none));
}

TEST_CASE("product way: an algorithm that ran and is refused later is not replaced by one with other bits") {
    ProductWay way(4, true);
    Library library{{0}, {}};
    CHECK(library.run(way));
    library.refused = {0, 1};
    library.asked.clear();
    CHECK_FALSE(library.run(way));
    CHECK(library.asked == std::vector<int>{1});
    CHECK_FALSE(way.emulated());
    CHECK(library.emulated == 0);
}

TEST_CASE("product way: an error is not a refusal") {
    ProductWay way(4, true);
    CHECK_THROWS_AS(way.run([](int) -> bool { throw std::runtime_error("the device is lost"); }, [] {}),
                    std::runtime_error);
    CHECK(way.algorithm() == 0);
    CHECK_FALSE(way.emulated());
}
