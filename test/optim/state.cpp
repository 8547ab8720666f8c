// State that passes through the ring of --offload optimizer: bits as without it, in slices that do not divide the
// range. LLMC_STREAMS=lazy shows most waits that are missing. test/end_to_end/test_run_offload.py looks at all.
// build: per device
#include "llmc/optim/state.h"

#include "llmc/device/transfer.h"
#include "llmc/kernels/update.h"
#include "llmc/shard/state_values.h"
#include "test/model/gpt2_fixture.h"
#if !LLMC_CUDA
#include "llmc/device/host/settings.h"
#endif

using namespace llmc;
using namespace llmc::test;

namespace {

constexpr size_t kCounts[] = {1000, 80, 643};  // elements of ranges, each from a multiple of 64 on
constexpr size_t kElements = 1024 + 128 + 643, kSteps = 3;

struct Updated {
    std::vector<float> master, m, v;
    std::vector<bf16> working;
    float amax;
    bool operator==(const Updated& other) const {
        return same_bits(master, other.master) && same_bits(m, other.m) && same_bits(v, other.v) &&
               same_bits(working, other.working) && amax == other.amax;
    }
};

struct StateFormats {
    StateFormat master = StateFormat::fp32, m = StateFormat::fp32, v = StateFormat::fp32;
};

Updated updated(const StateFormats& formats, bool offload, size_t slice_elements) {
    const stream_t stream = test_stream();
    const ParameterTable table({{"unit", {{"weight", {1, 1024}, true}}}}, 1);
    StateRing ring(ShardLayout(table, Comm::self(), {.offload_state = offload}), slice_elements);
    Arena arena(offload ? MemoryKind::offloaded : MemoryKind::optimizer);
    StateArray master(nullptr, formats.master), m(nullptr, formats.m), v(nullptr, formats.v);
    for (StateArray* array : {&master, &m, &v}) arena.plan(array, kElements);
    arena.allocate();
    for (const StateArray* array : {&master, &m, &v}) {
        set_bytes(array->values, 0, kElements * bytes_of(array->format), stream);
        if (array->scales) set_bytes(array->scales, 0, div_up(kElements, kStateGroup) * sizeof(float), stream);
    }
    write_state(master, random_normal<float>(kElements, 1, 1).data(), kElements, stream);
    if (ring.bytes() > 0) {
        const size_t most = std::min<size_t>(slice_elements, 1024), scales = 12 * most / kStateGroup;
        CHECK(ring.bytes() ==
              StateRing::kSlots * (round_up(12 * most, device_alignment()) + round_up(scales, device_alignment())));
    }
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
            ring.update({master.from(at), m.from(at), v.from(at)}, count, stream, [&](const StateRing::Slice& slice) {
                const size_t first = at + slice.begin;
                adamw_update<bf16>(
                    {slice[0], slice[1], slice[2], working.get() + first, gradient.get() + first, {1337, first}},
                    fp8.get(), slice.count, slice.of_first(decayed), AdamWConfig{}, state.get(), stream);
            });
            at += round_up(count, kStateGroup);
        }
        ring.finish(stream);
    }
    return {read_state(master, kElements, stream), read_state(m, kElements, stream), read_state(v, kElements, stream),
            working.download(), std::bit_cast<float>(fp8.download()[0].amax_now)};
}

}  // namespace

TEST_CASE("offloaded state: updates in slices give the same bits as one update of the whole range") {
    for (const StateFormats& formats : {StateFormats{}, {StateFormat::bf16, StateFormat::fp8, StateFormat::bf16}}) {
        const Updated expected = updated(formats, false, 64);
        for (const size_t slice_elements : {size_t{64}, size_t{448}, size_t{4096}}) {
            CAPTURE(slice_elements);
            const size_t before = device_memory_use(MemoryKind::offloaded).bytes;
            CHECK(updated(formats, true, slice_elements) == expected);
            CHECK(device_memory_use(MemoryKind::offloaded).bytes == before);  // released
        }
    }
}

// While this exists, streams of the host device run as late as synchronisation allows.
class LazyStreams {
public:
    LazyStreams() { swap(); }
    ~LazyStreams() { swap(); }

private:
    void swap() {
        synchronize(test_stream());
#if !LLMC_CUDA
        std::swap(host::settings().lazy_streams, other_);
#endif
    }
    bool other_ = true;
};

// The copy of the first slice is as early as it can be, and the work that sets the state as late.
TEST_CASE("offloaded state: the first copies wait for work that sets the state") {
    const stream_t stream = test_stream();
    const LazyStreams lazy;
    DeviceArray<float> seen(64);
    const ParameterTable table({{"unit", {{"weight", {1, 64}, true}}}}, 1);
    StateRing ring(ShardLayout(table, Comm::self(), {.offload_state = true}));
    Arena arena(MemoryKind::offloaded);
    StateArray state;
    arena.plan(&state, 64);
    arena.allocate();
    ring.allocate(stream);
    set_bytes(state.values, 0, 64 * sizeof(float), stream);
    synchronize(stream);
    set_bytes(state.values, 1, 64 * sizeof(float), stream);
    ring.state_is_set(stream);
    ring.update({state}, 64, stream, [&](const StateRing::Slice& slice) {
        synchronize(ring.to_device());
        copy_on_device(seen.get(), slice[0].values, 64 * sizeof(float), stream);
    });
    ring.finish(stream);
    synchronize(stream);
    CHECK(same_bits(seen.download(), std::vector<float>(64, std::bit_cast<float>(0x01010101u))));
}

TEST_CASE("offloaded state: the first step waits for the initial weights") {
    const LazyStreams lazy;
    std::vector<std::vector<float>> weights[2];
    for (const bool offload : {false, true}) {
        TrainerConfig config = trainer_config(small_model(2, 32), 2, 32, Recompute::none);
        config.sharding.offload_state = offload;
        TestModel<float> test(config);
        test.trainer.initialize(1);
        const Batch batch = small_batch(0, 64);
        test.begin_step();
        test.trainer.micro_step(batch.tokens.data(), batch.targets.data());
        test.trainer.finish_step();
        if (offload) synchronize(test.optimizer.ring().to_device());  // copies the first slices
        weights[offload] = all_weights(test.weights, test.stream);
    }
    CHECK(same_bits(weights[0], weights[1]));
}
