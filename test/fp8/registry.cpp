// The registry of FP8 tensors: names, numbers, refusals, and layers that leave FP8.
#include "llmc/fp8/registry.h"

#include "llmc/kernels/quantize.h"
#include "test/kernel_test.h"

using namespace llmc;
using namespace llmc::test;

namespace {

// A registry with its memory.
struct AllocatedRegistry : Fp8Registry {
    Arena arena{MemoryKind::activations};

    AllocatedRegistry(const Fp8Config& config, const std::vector<std::string>& layers)
        : Fp8Registry(config, Comm::self()) {
        for (const std::string& layer : layers) add(layer);
        plan(arena);
        arena.allocate();
        allocate(test_stream());
    }
};

}  // namespace

TEST_CASE("fp8 registry: a layer has three tensors, numbered in the order in which layers were added") {
    Fp8Registry registry({}, Comm::self());
    CHECK(registry.add("h.0.up") == 0);
    CHECK(registry.add("lm_head") == 1);
    CHECK(registry.count() == 6);
    CHECK(registry.name(0) == "h.0.up.x");
    CHECK(registry.name(4) == "lm_head.w");
    for (int i = 0; i < registry.count(); i++) {
        CHECK(registry.find(registry.name(i)) == i);
        CHECK(Fp8Registry::tensor(i / 3, role_of(i)) == i);
    }
    CHECK_THROWS_WITH_AS(registry.find("h.0.up"), "no FP8 tensor is called h.0.up", Error);
}

TEST_CASE("fp8 registry: without layers it does nothing and reports no bad tensor") {
    AllocatedRegistry registry({}, {});
    registry.check(test_stream());
    registry.finish_step(nullptr, test_stream());
    registry.clear_counts(test_stream());
    CHECK(registry.take_fallbacks().empty());
    CHECK(read_back(registry.bad_flag(), test_stream()) == 0);
}

TEST_CASE("fp8 registry: block scales fix the settings that do not apply to them, and refuse a fallback rule") {
    Fp8Config config;
    config.recipe = Fp8Recipe::block;
    config.history = 16;
    config.margin = 3;
    const Fp8Registry blocks(config, Comm::self());
    CHECK(blocks.config().history == 1);
    CHECK(blocks.config().margin == 0);
    CHECK(blocks.config().grad == Fp8Grad::e4m3);
    CHECK(!blocks.uses_history());
    config.fallback = {0.5f, 0.5f, 2};
    CHECK_THROWS_AS(Fp8Registry(config, Comm::self()), Error);
}

TEST_CASE("fp8 registry: a layer leaves once, two steps after it lost too many values, with the first such tensor") {
    Fp8Config config;
    config.fallback = {0.25f, 1.0f, 1};
    AllocatedRegistry registry(config, {"a", "b"});
    Fp8State* states = const_cast<Fp8State*>(registry.states());
    for (int step = 0; step < 4; step++) {
        CAPTURE(step);
        for (const char* name : {"b.w", "b.dout"}) {  // half of 8 elements saturate in every step
            Fp8State state = read_back(states + registry.find(name), test_stream());
            state.elements += 8;
            state.saturated += 4;
            write_through(states + registry.find(name), state, test_stream());
        }
        registry.check(test_stream());
        registry.finish_step(nullptr, test_stream());
        const std::vector<Fp8Fallback> left = registry.take_fallbacks();
        REQUIRE(left.size() == (step == 1 ? 1 : 0));
        if (step != 1) continue;
        CHECK(registry.layer_name(left[0].layer) == "b");
        CHECK(left[0].role == Fp8Role::w);
        CHECK(left[0].reason == Fp8Reason::saturated);
        CHECK(left[0].fraction == 0.5f);
        CHECK(registry.has_left(1));
        CHECK(!registry.has_left(0));
    }
}

TEST_CASE("fp8 registry: a value that is not finite spoils the scale of one evaluation, not of the next") {
    Fp8Config config;
    config.recipe = Fp8Recipe::current;
    AllocatedRegistry registry(config, {"a"});
    Fp8State* const state = registry.state(0, Fp8Role::x, PassKind::evaluation);
    DeviceArray<e4m3> codes(16 * 16);
    const auto scale_for = [&](float value) {
        DeviceArray<bf16> x(std::vector<bf16>(16 * 16, to_bf16(value)));
        QuantizePass run = registry.first_run(PassKind::evaluation);
        quantize<e4m3>({codes.get(), nullptr, state}, nullptr, nullptr, x.get(), nullptr, 16, 16, false, run,
                       test_stream());
        CHECK(!registry.finish_run(run, 0, Fp8Role::x, PassKind::evaluation, test_stream()));
        CHECK(run == QuantizePass::replay);
        return read_back(state, test_stream()).scale;
    };
    CHECK(scale_for(2) == 224);
    CHECK(scale_for(NAN) == 224);
    CHECK(scale_for(4) == 112);
}
