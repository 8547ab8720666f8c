// Bulk copies and tensor maps: the data they move, by the documented address functions, and each rule broken once.
#include <cuda.h>
#include <cuda_runtime.h>

#include "dev/virtual_gpu/options.h"
#include "dev/virtual_gpu/ptx/tensor_map.h"
#include "dev/virtual_gpu/test/hopper_program.h"

namespace virtual_gpu::test {
namespace {

const std::string kShared = ".shared .align 8 .b64 bar[2]; .shared .align 1024 .b8 data[8192]; ";
// One thread makes the copies; %p0 selects it.
const std::string kStart =
    "mov.u32 %r0, %tid.x; setp.eq.u32 %p0, %r0, 0; @%p0 mbarrier.init.shared::cta.b64 [bar], 1; "
    "@%p0 fence.mbarrier_init.release.cluster; bar.sync 0; ";
const std::string kWait = wait("0");
const std::string kLoad = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes ";
const std::string kStore = "cp.async.bulk.global.shared::cta.bulk_group ";
const std::string kCommit = "cp.async.bulk.commit_group; ", kWaitRead = "cp.async.bulk.wait_group.read 0; ",
                  kWaitGroup = "cp.async.bulk.wait_group 0; ";

std::string expect(int bytes) { return ptx("@%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [bar], $1; ", bytes); }
// All threads store shared memory, 4 bytes each, to parameter 0.
std::string store_data(int parameter) {
    return element_address(9, parameter, 4) +
           "shl.b32 %r10, %r0, 2; mov.u32 %r11, data; add.u32 %r11, %r11, %r10; ld.shared.u32 %r12, [%r11]; "
           "st.global.u32 [%rd9], %r12; ";
}
std::string fill_data() {  // fills it with the thread's number
    return "shl.b32 %r10, %r0, 2; mov.u32 %r11, data; add.u32 %r11, %r11, %r10; st.shared.u32 [%r11], %r0; ";
}

template <class T>
std::vector<T> rising(size_t count) {
    std::vector<T> values(count);
    for (size_t n = 0; n < count; n++) values[n] = static_cast<T>(n + 1);
    return values;
}

}  // namespace

TEST_CASE("hopper: bulk copies move bytes both ways") {
    const Buffer in(rising<uint32_t>(256)), out(std::vector<uint32_t>(128, 0));
    run_snippet(kStart + expect(512) + "@%p0 " + kLoad + "[data], [%rd1+64], 256, [bar]; @%p0 " + kLoad +
                    "[data+256], [%rd1], 256, [bar]; " + kWait + store_data(0),
                {out.address(), in.address()}, threads(128), kShared);
    std::vector<uint32_t> expected;
    for (uint32_t n = 0; n < 64; n++) expected.push_back(17 + n);
    for (uint32_t n = 0; n < 64; n++) expected.push_back(1 + n);
    CHECK(out.read<uint32_t>() == expected);

    const Buffer stored(std::vector<uint32_t>(64, 7));
    run_snippet("mov.u32 %r0, %tid.x; setp.eq.u32 %p0, %r0, 0; " + fill_data() +
                    "fence.proxy.async.shared::cta; bar.sync 0; @%p0 " + kStore + "[%rd0+16], [data+32], 64; @%p0 " +
                    kCommit + "@%p0 " + kWaitRead,
                {stored.address()}, threads(128), kShared);
    std::vector<uint32_t> all(64, 7);
    for (uint32_t n = 0; n < 16; n++) all[4 + n] = 8 + n;
    CHECK(stored.read<uint32_t>() == all);
}

TEST_CASE("hopper: bulk copies' rules") {
    const Buffer written(std::vector<uint8_t>(1024, 1)), fresh(1024);
    const std::string load = kStart + expect(64) + "@%p0 " + kLoad, end = "\n" + kWait,
                      fill = "mov.u32 %r0, %tid.x; setp.eq.u32 %p0, %r0, 0; " + fill_data();
    const std::string one = "st.shared.v4.u32 [data], {%r1, %r1, %r1, %r1}; fence.proxy.async; ";
    check(
        {
            {load + "[data], [%rd0], {{72||64}}, [bar];" + end, {"bulk copy of 72 bytes, which is no multiple of 16"}},
            {load + "[data+{{8||16}}], [%rd0], 64, [bar];" + end, {"at shared 1032, which is not aligned to 16 bytes"}},
            {load + "[data], [%rd0+{{8||16}}], 64, [bar];" + end, {"which is not aligned to 16 bytes"}},
            {load + "[data], [%rd0+{{976||960}}], 64, [bar];" + end,
             {"bulk copy of 64 bytes at global", "past an allocation of 1024 bytes"}},
            {load + "[data+{{8144||8128}}], [%rd0], 64, [bar];" + end, {"bulk copy of 64 bytes at shared"}},
            {load + "[data], [{{%rd1||%rd0}}], 64, [bar];" + end, {"of which bytes were never written"}},
            {load + "[data], [%rd0], 64, [bar{{+8||}}];" + end, {"no mbarrier was initialized at shared 8"}},
            // Arrived data is read after the phase has completed.
            {load + "[data], [%rd0], 64, [bar]; bar.sync 0; {{||" + kWait + "}}ld.shared.u32 %r1, [data]; " + kWait,
             {"load of 4 bytes of shared memory", "asynchronous copy that has not been waited for"}},
            {kStart + "{{@%p0 mbarrier.arrive.shared::cta.b64 _, [bar];||" + expect(64) + "}} @%p0 " + kLoad +
                 "[data], [%rd0], 64, [bar]; " + kWait + "@%p0 ld.shared.u32 %r1, [data];",
             {"asynchronous copy that has not been waited for"}},
            {kStart + expect(64) + "@%p0 " + kLoad + "[data], [%rd0], {{80||64}}, [bar]; " + kWait +
                 "ld.shared.u32 %r1, [data];",
             {"every warp waits: warp 0 at the mbarrier at shared 0",
              "phase 0, which waits for 0 of 1 arrivals and -16"}},
            {kStart + expect(64) + "@%p0 " + kLoad + "[data], [%rd0], {{48||64}}, [bar]; " + kWait,
             {"every warp waits", "0 of 1 arrivals and 16 bytes"}},
            {load + "[data], [%rd0], 64, [bar]; {{||" + kWait + "}}@%p0 st.shared.u32 [data+60], 1; " + kWait,
             {"a write to shared 1084, which the bulk copy of PTX line ", "may still write"}},
            {load + "[data], [%rd0], 64, [bar]; {{||" + kWait + "}}",
             {"the block ends while this bulk copy may still"}},
            {load + "[data], [%rd0], 32, [bar]; @%p0 " + kLoad + "[data+{{16||32}}], [%rd0], 32, [bar];" + end,
             {"a write to shared 1040, which the bulk copy of PTX line "}},
            {kStart + expect(16) + "@%p0 " + kLoad + "[{{bar||data}}], [%rd0], 16, [bar];" + end,
             {"a bulk copy to shared 0, where an mbarrier lies"}},
            {"mov.u32 %r0, %tid.x; setp.eq.u32 %p0, %r0, 0; @%p0 mbarrier.init.shared::cta.b64 [bar], 1; "
             "{{||@%p0 fence.proxy.async; }}bar.sync 0; " +
                 expect(16) + "@%p0 " + kLoad + "[data], [%rd0], 16, [bar];" + end,
             {"the mbarrier's init (PTX line ", "has no fence.mbarrier_init or fence.proxy.async behind it"}},
            {kStart + "@%p0 st.shared.u32 [data+8], 1; {{||@%p0 fence.proxy.async.shared::cta; }}" + expect(16) +
                 "@%p0 " + kLoad + "[data], [%rd0], 16, [bar];" + end,
             {"bulk copy writes over shared 1032, which thread 0 wrote at PTX line "}},
            // Stores: the data must be written and fenced before, and stay until the wait.
            {fill + "{{||fence.proxy.async.shared::cta; }}bar.sync 0; @%p0 " + kStore + "[%rd1], [data], 128; " +
                 kCommit + kWaitRead,
             {"bulk copy reads shared 1024, which thread 0 wrote at PTX line ", "without fence.proxy.async between"}},
            {fill + "fence.proxy.async; bar.sync 0; @%p0 " + kStore + "[%rd1], [data+{{16||0}}], 128; " + kCommit +
                 kWaitRead,
             {"a bulk copy from shared 1152, a byte that was never written"}},
            {one + kStore + "[%rd1], [data], 16; " + kCommit + "{{||" + kWaitRead + "}}st.shared.u32 [data+4], 1; " +
                 kWaitRead,
             {"a write to shared 1028, which the bulk copy of PTX line ", "may still read"},
             kOneThread},
            {one + kStore + "[%rd1], [data], 16; " + kCommit + kStore + "[%rd1+16], [data], 16; " + kCommit +
                 "cp.async.bulk.wait_group.read {{1||0}}; st.shared.u32 [data], 1; " + kWaitRead,
             {"may still read"},
             kOneThread},
            {one + kStore + "[%rd1], [data], 16; {{||" + kCommit + "}}" + kWaitRead,
             {"the block ends while this bulk copy may still read its shared memory"},
             kOneThread},
            {one + kStore + "[%rd1+32], [data], 16; " + kCommit + "{{" + kWaitRead + "||" + kWaitGroup +
                 "}}ld.global.u32 %r1, [%rd1+32];",
             {"load of 4 bytes of global memory", "asynchronous copy that has not been waited for"},
             kOneThread},
            {one + kStore + "[%rd1+{{1016||1008}}], [data], 16; " + kCommit + kWaitGroup,
             {"which is not aligned to 16 bytes"},
             kOneThread},
            {one + kStore + "[%rd1+{{1024||1008}}], [data], 16; " + kCommit + kWaitGroup,
             {"0 bytes past an allocation of 1024 bytes"},
             kOneThread},
        },
        kShared, {written.address(), fresh.address()});
}

namespace {

// The arguments of a tensor map.
struct Tensor {
    std::vector<cuuint64_t> size, strides;
    std::vector<cuuint32_t> box;
    CUtensorMapSwizzle swizzle = CU_TENSOR_MAP_SWIZZLE_NONE;
    CUtensorMapDataType type = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    std::vector<cuuint32_t> element_strides = {1, 1, 1, 1, 1};
    CUtensorMapInterleave interleave = CU_TENSOR_MAP_INTERLEAVE_NONE;
};

CUresult encode(const Tensor& t, uint64_t address, CUtensorMap& map) {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
    REQUIRE(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found) ==
            cudaSuccess);
    REQUIRE(found == cudaDriverEntryPointSuccess);
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function)(
        &map, t.type, static_cast<cuuint32_t>(t.size.size()), reinterpret_cast<void*>(address), t.size.data(),
        t.strides.data(), t.box.data(), t.element_strides.data(), t.interleave, t.swizzle,
        CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
}

// A kernel whose first parameter is a tensor map, and the second a pointer in %rd0; %rd1 is the map's address.
void run_with_map(const CUtensorMap& map, uint64_t pointer, const std::string& snippet, const Shape& shape) {
    std::vector<unsigned char> parameters(136);
    std::memcpy(parameters.data(), &map, 128);
    std::memcpy(parameters.data() + 128, &pointer, 8);
    run_text(kModule + kShared + ".visible .entry test(.param .align 64 .b8 map[128], .param .u64 p)\n{ " + kRegisters +
                 "ld.param.u64 %rd0, [p]; mov.b64 %rd2, map; cvta.param.u64 %rd1, %rd2; " + snippet + "\nret; } ",
             parameters, shape);
}

std::string tensor_load(size_t rank, const std::string& coordinates, size_t bytes) {
    return kStart + expect(static_cast<int>(bytes)) +
           ptx("@%p0 cp.async.bulk.tensor.$1d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
               "[data], [%rd1, {$2}], [bar]; ",
               rank, coordinates) +
           kWait;
}

}  // namespace

TEST_CASE("hopper: a tensor copy loads a box, swizzled, with zeros beyond the tensor") {
    // 40 rows of 72 elements, the rows 80 apart. The box lies at various places, also across the edges.
    constexpr int kColumns = 72, kPitch = 80, kHeight = 40;
    const Buffer in(rising<uint16_t>(kPitch * kHeight));
    const std::pair<CUtensorMapSwizzle, uint32_t> swizzles[] = {{CU_TENSOR_MAP_SWIZZLE_NONE, 0},
                                                                {CU_TENSOR_MAP_SWIZZLE_32B, 32},
                                                                {CU_TENSOR_MAP_SWIZZLE_64B, 64},
                                                                {CU_TENSOR_MAP_SWIZZLE_128B, 128}};
    for (const auto& [swizzle, span] : swizzles)
        for (const auto& [x, y] : {std::pair{0, 0}, {8, 3}, {-5, 30}, {50, -7}, {100, 5}}) {
            const uint32_t width = span ? span / 2 : 24, height = 16, bytes = width * 2 * height;
            CUtensorMap map;
            REQUIRE(encode({{kColumns, kHeight}, {kPitch * 2}, {width, height}, swizzle}, in.address(), map) ==
                    CUDA_SUCCESS);
            const Buffer out(std::vector<uint16_t>(bytes / 2, 0));
            run_with_map(
                map, out.address(),
                ptx("mov.u32 %r20, $1; mov.u32 %r21, $2; ", x, y) + tensor_load(2, "%r20, %r21", bytes) + store_data(0),
                threads(bytes / 4));
            const std::vector<uint16_t> got = out.read<uint16_t>();
            bool all = true;
            for (uint32_t r = 0; r < height; r++)
                for (uint32_t c = 0; c < width; c++) {
                    const int row = y + static_cast<int>(r), column = x + static_cast<int>(c);
                    const bool inside = row >= 0 && row < kHeight && column >= 0 && column < kColumns;
                    // 16-byte piece p of row r lies at p ^ (log2(span / 16) bits of r'), where r' counts lines of 128
                    // bytes from the beginning of the pattern.
                    const uint32_t at = (r * width + c) * 2, line = at / 128;
                    const uint32_t moved = span ? at ^ ((line % (span / 16)) * 16) : at;
                    all &= got[moved / 2] == (inside ? static_cast<uint16_t>(row * kPitch + column + 1) : 0);
                }
            INFO("swizzle ", span, ", box at ", x, ", ", y);
            CHECK(all);
        }
}

TEST_CASE("hopper: tensor copies of one to five dimensions, both ways") {
    const Buffer in(rising<uint32_t>(8 * 4 * 3 * 2 * 2));
    const std::vector<cuuint64_t> size = {8, 4, 3, 2, 2}, strides = {32, 128, 384, 768};
    const std::vector<cuuint32_t> box = {4, 2, 2, 1, 2};
    for (size_t rank = 1; rank <= 5; rank++) {
        Tensor t{{size.begin(), size.begin() + static_cast<long>(rank)},
                 {strides.begin(), strides.begin() + static_cast<long>(rank) - 1},
                 {box.begin(), box.begin() + static_cast<long>(rank)},
                 CU_TENSOR_MAP_SWIZZLE_NONE,
                 CU_TENSOR_MAP_DATA_TYPE_UINT32};
        CUtensorMap from, to;
        REQUIRE(encode(t, in.address(), from) == CUDA_SUCCESS);
        uint32_t count = 1;
        std::string coordinates;
        for (size_t d = 0; d < rank; d++) {
            count *= box[d];
            coordinates += std::string(d ? ", " : "") + (d == 0 ? "4" : "1");
        }
        // Element (4 + i0, 1 + i1, ...) of the tensor; beyond its end in the dimensions of size 2 is zero.
        std::vector<uint32_t> expected(count);
        for (uint32_t n = 0; n < count; n++) {
            uint32_t left = n, at = 0, pitch = 1;
            bool inside = true;
            for (size_t d = 0; d < rank; d++) {
                const uint32_t i = left % box[d] + (d == 0 ? 4 : 1);
                left /= box[d];
                inside &= i < size[d];
                at += i * pitch;
                pitch *= static_cast<uint32_t>(size[d]);
            }
            expected[n] = inside ? at + 1 : 0;
        }
        const Buffer out(std::vector<uint32_t>(count, 9));
        run_with_map(from, out.address(), tensor_load(rank, coordinates, count * 4) + store_data(0), threads(count));
        INFO("rank ", rank);
        CHECK(out.read<uint32_t>() == expected);

        // Stores the same box: thread n's number goes to the place from which the load took element n, and nothing else
        // changes.
        const Buffer whole(std::vector<uint32_t>(8 * 4 * 3 * 2 * 2, 1000));
        REQUIRE(encode(t, whole.address(), to) == CUDA_SUCCESS);
        run_with_map(to, 0,
                     "mov.u32 %r0, %tid.x; setp.eq.u32 %p0, %r0, 0; " + fill_data() +
                         "fence.proxy.async; bar.sync 0; " +
                         ptx("@%p0 cp.async.bulk.tensor.$1d.global.shared::cta.tile.bulk_group [%rd1, {$2}], [data]; ",
                             rank, coordinates) +
                         "@%p0 " + kCommit + "@%p0 " + kWaitRead,
                     threads(count));
        std::vector<uint32_t> stored(8 * 4 * 3 * 2 * 2, 1000);
        for (uint32_t n = 0; n < count; n++)
            if (expected[n]) stored[expected[n] - 1] = n;
        CHECK(whole.read<uint32_t>() == stored);
    }
}

TEST_CASE("hopper: cuTensorMapEncodeTiled's rules") {
    const Buffer memory(4096);
    const Tensor good{{64, 8}, {128}, {64, 8}, CU_TENSOR_MAP_SWIZZLE_128B};
    alignas(64) char room[192];
    const auto result = [&](auto change, uint64_t offset = 0, size_t map_offset = 0) {
        Tensor t = good;
        change(t);
        return encode(t, memory.address() + offset, *reinterpret_cast<CUtensorMap*>(room + map_offset));
    };
    const auto same = [](Tensor&) {};
    CHECK(result(same) == CUDA_SUCCESS);
    CHECK(result(same, 16) == CUDA_SUCCESS);
    CHECK(result(same, 8) == CUDA_ERROR_INVALID_VALUE);
    CHECK(result(same, 0, 16) == CUDA_ERROR_INVALID_VALUE);
    CHECK(result([](Tensor& t) { t.size = t.strides = {}; }) == CUDA_ERROR_INVALID_VALUE);
    CHECK(result([](Tensor& t) {
              t.size = {8, 1, 1, 1, 1, 1}, t.strides = {16, 16, 16, 16, 16}, t.box = {8, 1, 1, 1, 1, 1};
          }) == CUDA_ERROR_INVALID_VALUE);
    CHECK(result([](Tensor& t) { t.size[1] = 0; }) == CUDA_ERROR_INVALID_VALUE);
    CHECK(result([](Tensor& t) { t.size[1] = cuuint64_t{1} << 32; }) == CUDA_SUCCESS);
    CHECK(result([](Tensor& t) { t.size[1] = (cuuint64_t{1} << 32) + 1; }) == CUDA_ERROR_INVALID_VALUE);
    CHECK(result([](Tensor& t) { t.strides[0] = 136; }) == CUDA_ERROR_INVALID_VALUE);
    CHECK(result([](Tensor& t) { t.size = {64, 8, 2}, t.strides = {256, 128}, t.box = {64, 8, 1}; }) == CUDA_SUCCESS);
    CHECK(result([](Tensor& t) { t.strides[0] = (cuuint64_t{1} << 40) - 16; }) == CUDA_SUCCESS);
    CHECK(result([](Tensor& t) { t.strides[0] = cuuint64_t{1} << 40; }) == CUDA_ERROR_INVALID_VALUE);
    CHECK(result([](Tensor& t) { t.box[1] = 256; }) == CUDA_SUCCESS);
    CHECK(result([](Tensor& t) { t.box[1] = 257; }) == CUDA_ERROR_INVALID_VALUE);
    CHECK(result([](Tensor& t) { t.box[1] = 65536 + 8; }) == CUDA_ERROR_INVALID_VALUE);
    CHECK(result([](Tensor& t) { t.box[1] = 0; }) == CUDA_ERROR_INVALID_VALUE);
    CHECK(result([](Tensor& t) { t.box[0] = 60; }) == CUDA_ERROR_INVALID_VALUE);
    CHECK(result([](Tensor& t) { t.box[0] = 72; }) == CUDA_ERROR_INVALID_VALUE);
    CHECK(result([](Tensor& t) { t.swizzle = CU_TENSOR_MAP_SWIZZLE_64B; }) == CUDA_ERROR_INVALID_VALUE);
    CHECK(result([](Tensor& t) { t.swizzle = CU_TENSOR_MAP_SWIZZLE_128B_ATOM_32B; }) == CUDA_ERROR_INVALID_VALUE);
    CHECK(result([](Tensor& t) { t.element_strides[1] = 0; }) == CUDA_ERROR_INVALID_VALUE);
    CHECK(result([](Tensor& t) { t.element_strides[1] = 2; }) == CUDA_ERROR_INVALID_VALUE);
    CHECK(result([](Tensor& t) { t.element_strides[0] = 2; }) == CUDA_SUCCESS);  // ignored
    CHECK(result([](Tensor& t) { t.interleave = CU_TENSOR_MAP_INTERLEAVE_16B; }) == CUDA_ERROR_INVALID_VALUE);
    CHECK(result([](Tensor& t) { t.type = CU_TENSOR_MAP_DATA_TYPE_16U4_ALIGN8B; }) == CUDA_ERROR_INVALID_VALUE);
    void* function = &room;
    cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSuccess;
    CHECK(cudaGetDriverEntryPointByVersion("cuNotThere", &function, 12000, cudaEnableDefault, &found) == cudaSuccess);
    CHECK(found == cudaDriverEntryPointSymbolNotFound);
    CHECK(function == nullptr);
}

TEST_CASE("hopper: tensor copies' rules") {
    const Buffer in(rising<uint16_t>(64 * 64));
    CUtensorMap map, half;
    REQUIRE(encode({{64, 64}, {128}, {64, 8}, CU_TENSOR_MAP_SWIZZLE_128B}, in.address(), map) == CUDA_SUCCESS);
    REQUIRE(encode({{64, 64}, {128}, {32, 8}, CU_TENSOR_MAP_SWIZZLE_128B}, in.address(), half) == CUDA_SUCCESS);
    const auto message = [&](const CUtensorMap& m, const std::string& snippet) {
        return fault_of([&] { run_with_map(m, 0, snippet, threads(32)); });
    };
    const std::string good = tensor_load(2, "0, 0", 1024);
    const auto with = [&](const std::string& what, const std::string& by) {
        std::string s = good;
        return s.replace(s.find(what), what.size(), by);
    };
    CHECK(message(map, good) == "");
    CHECK(contains(message(map, with("[data]", "[data+64]")), "at shared 1088, which is not aligned to 128 bytes"));
    CHECK(
        contains(message(map, with("[data]", "[data+7296]")), "bulk copy of 1024 bytes at shared 8320; the block has"));
    CHECK(contains(message(map, tensor_load(1, "0", 1024)), "a tensor map of 2 dimensions in a copy of 1"));
    CHECK(contains(message(map, with("{0, 0}", "{0}")), "another number of coordinates"));
    CHECK(contains(message(map, with("[%rd1, {", "[%rd1+16, {")), "which is not aligned to 64 bytes"));
    CHECK(contains(message(map, with("[%rd1, {", "[%rd1+64, {")), "a tensor map past the parameters' end"));
    CHECK(contains(message(CUtensorMap{}, good), "no tensor map of cuTensorMapEncodeTiled is there"));
    CHECK(contains(message(half, good), "not known here: rows of 64 bytes with a swizzle of 128"));
    CHECK(contains(message(map, with(".mbarrier", ".multicast::cluster.mbarrier")), "instruction not known"));
    // A map that makes the tensor longer than its memory.
    REQUIRE(encode({{64, 65}, {128}, {64, 8}, CU_TENSOR_MAP_SWIZZLE_128B}, in.address(), map) == CUDA_SUCCESS);
    CHECK(contains(message(map, tensor_load(2, "0, 60", 1024)), "past an allocation of 8192 bytes"));
}

}  // namespace virtual_gpu::test
