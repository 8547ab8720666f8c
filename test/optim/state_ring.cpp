// State that passes through the ring of --offload optimizer: bits as without it, in slices that do not divide the
// range. LLMC_STREAMS=lazy shows each wait that is missing.
#include "llmc/optim/state_ring.h"

#include "llmc/device/transfer.h"
#include "llmc/kernels/update.h"
#include "test/kernel_test.h"

using namespace llmc;
using namespace llmc::test;

namespace {

constexpr size_t kCounts[] = {1000, 80, 643};  // elements of ranges
constexpr size_t kElements = 1000 + 80 + 643, kSteps = 3;

struct Updated {
    std::vector<float> master, m, v;
    std::vector<bf16> working;
    float amax;
    bool operator==(const Updated& other) const {
        return same_bits(master, other.master) && same_bits(m, other.m) && same_bits(v, other.v) &&
               same_bits(working, other.working) && amax == other.amax;
    }
};

Updated updated(bool offload, size_t slice_elements) {
    const stream_t stream = test_stream();
    const ParameterTable table({{"unit", {{"weight", {1, 1024}, true}}}}, 1);
    StateRing ring(ShardLayout(table, Comm::self(), {.offload_state = offload}), slice_elements);
    Arena arena(offload ? MemoryKind::offloaded : MemoryKind::optimizer);
    float *master, *m, *v;
    for (float** array : {&master, &m, &v}) arena.plan(array, kElements);
    arena.allocate();
    write_through(master, random_normal<float>(kElements, 1, 1).data(), kElements, stream);
    for (float* array : {m, v}) set_bytes(array, 0, kElements * sizeof(float), stream);
    if (ring.bytes() > 0) CHECK(ring.bytes() == StateRing::kSlots * 12 * std::min<size_t>(slice_elements, 1024));
    CHECK((ring.bytes() > 0) == offload);
    ring.allocate(stream);

    StepState numbers{};
    numbers.learning_rate = 1e-2;
    numbers.grad_scale = numbers.bias_correction1 = numbers.bias_correction2 = 1;
    DeviceArray<StepState> state(std::vector<StepState>{numbers});
    DeviceArray<Fp8State> fp8(std::vector<Fp8State>(1));
    DeviceArray<bf16> working(kElements);
    for (size_t step = 0; step < kSteps; step++) {
        DeviceArray<float> gradient(random_normal<float>(kElements, 1, 10 + static_cast<uint32_t>(step)));
        size_t at = 0;
        for (const size_t count : kCounts) {
            const size_t decayed = count / 2;
            ring.update({{master + at, sizeof(float)}, {m + at, sizeof(float)}, {v + at, sizeof(float)}}, count, stream,
                        [&](const StateRing::Slice& slice) {
                            const size_t first = at + slice.begin;
                            adamw_update(slice.at<float>(0), slice.at<float>(1), slice.at<float>(2),
                                         working.get() + first, fp8.get(), gradient.get() + first, slice.count,
                                         slice.of_first(decayed), AdamWConfig{}, state.get(), stream);
                        });
            at += count;
        }
        ring.finish(stream);
    }
    return {read_back(master, kElements, stream), read_back(m, kElements, stream), read_back(v, kElements, stream),
            working.download(), std::bit_cast<float>(fp8.download()[0].amax_now)};
}

}  // namespace

TEST_CASE("offloaded state: slices give the bits of the whole") {
    const Updated expected = updated(false, 64);
    for (const size_t slice_elements : {size_t{64}, size_t{448}, size_t{4096}}) {
        CAPTURE(slice_elements);
        const size_t before = device_memory_use(MemoryKind::offloaded).bytes;
        CHECK(updated(true, slice_elements) == expected);
        CHECK(device_memory_use(MemoryKind::offloaded).bytes == before);  // released
    }
}
