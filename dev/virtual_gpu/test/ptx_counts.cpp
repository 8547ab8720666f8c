// The counts of VIRTUAL_GPU_COUNTS: exact, and the same for every order and number of threads. Occupancy is compared
// with cuda_occupancy.h.
#include <cuda_occupancy.h>
#include <doctest/doctest.h>

#include "dev/virtual_gpu/card.h"
#include "dev/virtual_gpu/occupancy.h"
#include "dev/virtual_gpu/options.h"
#include "dev/virtual_gpu/test/counts_file.h"
#include "dev/virtual_gpu/test/ptx_program.h"
#include "dev/virtual_gpu/work.h"

namespace virtual_gpu::test {
namespace {

using nlohmann::json;

cudaOccDeviceProp properties_of(const Card& c) {
    cudaOccDeviceProp p;
    p.computeMajor = c.capability / 10;
    p.computeMinor = c.capability % 10;
    p.maxThreadsPerBlock = 1024;
    p.maxThreadsPerMultiprocessor = c.threads_per_multiprocessor;
    p.regsPerBlock = p.regsPerMultiprocessor = kRegistersPerMultiprocessor;
    p.warpSize = 32;
    p.sharedMemPerBlock = kSharedWithoutOptIn;
    p.sharedMemPerMultiprocessor = static_cast<size_t>(c.shared_per_multiprocessor);
    p.numSms = c.multiprocessors;
    p.sharedMemPerBlockOptin = static_cast<size_t>(c.shared_per_block);
    p.reservedSharedMemPerBlock = kSharedReserved;
    return p;
}

int blocks_by_cuda(const Card& c, int registers, int threads, size_t shared) {
    const cudaOccDeviceProp properties = properties_of(c);
    cudaOccFuncAttributes function;
    function.maxThreadsPerBlock = 1024;
    function.numRegs = registers;
    function.sharedSizeBytes = 0;
    function.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN;
    function.maxDynamicSharedSizeBytes = static_cast<size_t>(c.shared_per_block);
    cudaOccDeviceState state;
    state.carveoutConfig = SHAREDMEM_CARVEOUT_MAX_SHARED;
    cudaOccResult result{};
    REQUIRE(cudaOccMaxActiveBlocksPerMultiprocessor(&result, &properties, &function, &state, threads, shared) ==
            CUDA_OCC_SUCCESS);
    return result.activeBlocksPerMultiprocessor;
}

// 4 blocks of 64 threads. Each thread reads its 4 bytes twice (1024 bytes in total) and one word of another buffer, the
// same for all. Every other block (ctaid & 1) writes the bytes at a distance of 32 bytes. All threads make an atomic
// operation on one word.
const char* const kSnippet =
    "ld.global.u32 %r0, [%rd20]; ld.global.u32 %r1, [%rd20]; ld.global.u32 %r2, [%rd1]; add.s32 %r0, %r0, %r1; "
    "add.s32 %r0, %r0, %r2; and.b32 %r3, %r60, 1; setp.eq.u32 %p0, %r3, 1; @!%p0 bra NEXT; st.global.u32 [%rd21], %r0; "
    "NEXT: mov.u32 %r4, 1; atom.global.add.u32 %r5, [%rd3], %r4; ";

}  // namespace

// The case below runs this one with counts.
TEST_CASE("ptx counted: sectors" * doctest::skip()) {
    const Buffer in(std::vector<uint32_t>(256, 1)), one(std::vector<uint32_t>(1, 1)),
        out(std::vector<uint32_t>(2048, 0)), sum(std::vector<uint32_t>(1, 0));
    for (int times = 0; times < 2; times++)
        run_snippet(element_address(20, 0, 4) + element_address(21, 2, 32) + kSnippet,
                    {in.address(), one.address(), out.address(), sum.address()}, threads(64, 4));
    CHECK(sum.read<uint32_t>()[0] == 512);
    if (counting()) write_counts(options().counts);  // without a stream, whose end would write them
}

TEST_CASE("ptx counts: sectors and requests of a launch, whatever the order and the threads") {
    const std::string name = "ptx counted: sectors";
    const json one = counts_of(name);
    // For one of the two launches, which are separate modules. 8 warps: 4 sectors for each of two loads, and 1 each for
    // the shared word and the atomic; 4 warps write 32 each.
    CHECK(one["global_sectors"] == 8 * (4 + 4 + 1 + 1) + 4 * 32);
    CHECK(one["global_requests"] == 8 * 4 + 4);
    CHECK(one["launches"] == 1);
    REQUIRE(one["shapes"].size() == 1);
    CHECK(one["shapes"][0]["grid"] == json::array({4, 1, 1}));
    CHECK(one["shapes"][0]["block"] == json::array({64, 1, 1}));
    CHECK(one["shapes"][0]["waves"] == 1);
    for (const char* order : {"ascending", "descending", "random"}) {
        INFO(order);
        CHECK(
            counts_of(name, {{"VIRTUAL_GPU_THREADS", "3"}, {"VIRTUAL_GPU_ORDER", order}, {"VIRTUAL_GPU_SEED", "9"}}) ==
            one);
    }
}

TEST_CASE("occupancy: agrees with cuda_occupancy.h") {
    const Card& c = card();
    for (const int registers : {16, 24, 32, 40, 41, 48, 64, 72, 96, 128, 168, 255})
        for (const int threads : {1, 32, 96, 128, 160, 256, 384, 512, 768, 1024})
            for (const size_t shared : {0, 1, 1000, 5000, 16384, 20096, 33000, 49152, 80000, 100000}) {
                if (shared > static_cast<size_t>(c.shared_per_block)) continue;
                const Occupancy o = occupancy_of(registers, static_cast<uint32_t>(threads), shared);
                INFO(registers << " registers, " << threads << " threads, " << shared
                               << " bytes: " << std::string(o.limit));
                CHECK(o.blocks == blocks_by_cuda(c, registers, threads, shared));
            }
    CHECK(occupancy_of(32, 256, 0).waves(0) == 0);
    const auto at_once = static_cast<uint64_t>(occupancy_of(32, 256, 0).blocks * c.multiprocessors);
    CHECK(occupancy_of(32, 256, 0).waves(at_once) == 1);
    CHECK(occupancy_of(32, 256, 0).waves(at_once + 1) == 2);
}

TEST_CASE("occupancy: on every card") {
    if (options().card != "sm_90a") return;
    for (const char* name : {"sm_80", "sm_89", "sm_100", "sm_120"})
        expect_cases("occupancy: agrees", {{"VIRTUAL_GPU_CARD", name}});
}

}  // namespace virtual_gpu::test
