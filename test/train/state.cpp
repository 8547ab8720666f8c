// A trainer's state between two steps: text and files preserve every bit, and a trainer that begins from it makes the
// same steps as one that continues.
#include "llmc/train/state.h"
#include "llmc/base/json.h"
#include "llmc/train/staging.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>

#include "llmc/shard/state_values.h"
#include "test/helpers.h"
#include "test/model/gpt2_fixture.h"

using namespace llmc;
using namespace llmc::test;

namespace {

TrainerConfig config_of(const Fp8Config* fp8) {
    TrainerConfig config = trainer_config(small_model(1, 16), 1, 16, Recompute::gelu, fp8);
    config.schedule = {ScheduleKind::linear, 1e-3, 2, 100, 0};
    config.clip = 1.0;
    config.loss_scale.dynamic = true;
    config.loss_scale.initial = 1024;
    config.loss_scale.growth_interval = 3;
    return config;
}

template <class Real>
void short_step(TestModel<Real>& test, int index, float weight_of_loss = 1) {
    std::vector<int> tokens, targets;
    for (int i = 0; i < 17; i++) tokens.push_back((index * 31 + i * i + 7) % 101);
    targets.assign(tokens.begin() + 1, tokens.end());
    tokens.pop_back();
    test.begin_step();
    test.trainer.micro_step(tokens.data(), targets.data(), weight_of_loss);
    test.finish_step();
}

float largest_of(const std::vector<float>& values) {
    float largest = 0;
    for (const float value : values) largest = std::max(largest, std::fabs(value));
    return largest;
}

// {"h.0.fc.weight.m": values}
template <class Real>
std::map<std::string, std::vector<float>> slices_of(TestModel<Real>& test) {
    std::map<std::string, std::vector<float>> values;
    for (const DeviceSlice& part : test.trainer.state_slices())
        values[part.slice.name()] = read_state(part.values, part.slice.count, test.stream);
    return values;
}

template <class Real>
bool restore(TestModel<Real>& to, TestModel<Real>& from) {
    const auto values = slices_of(from);
    const std::string text = json_text(state_json(from.trainer.read_state()));
    TrainerState state = state_from_json(parse_json(text));
    state.step = from.trainer.steps();
    return to.trainer.restore(
        state, [&](const std::string& tensor, const std::string& part, uint64_t start, uint64_t count, float* out) {
            std::copy_n(values.at(tensor + "." + part).begin() + static_cast<ptrdiff_t>(start), count, out);
        });
}

template <class Real>
std::string state_text(TestModel<Real>& test) {
    return json_text(state_json(test.trainer.read_state()));
}

}  // namespace

TEST_CASE_TEMPLATE("state: a restored trainer makes the same steps", Real, float, bf16) {
    Fp8Config delayed, current;
    current.recipe = Fp8Recipe::current;
    delayed.fallback = {1.0f, 1e-6f, 2};  // some layer leaves FP8 on the way
    delayed.history = 3;
    for (const Fp8Config* fp8 :
         {static_cast<const Fp8Config*>(nullptr), &std::as_const(delayed), &std::as_const(current)}) {
        if (fp8 && std::is_same_v<Real, float>) continue;
        TestModel<Real> whole(config_of(fp8)), begun(config_of(fp8));
        whole.trainer.initialize(1);
        for (int i = 0; i < 4; i++) short_step(whole, i);
        CHECK(restore(begun, whole));
        CHECK(begun.trainer.steps() == 4);
        CHECK(state_text(begun) == state_text(whole));
        CHECK(slices_of(begun) == slices_of(whole));
        for (int i = 4; i < 8; i++) {
            short_step(whole, i);
            short_step(begun, i);
            CHECK(state_text(begun) == state_text(whole));
            CHECK(slices_of(begun) == slices_of(whole));
        }
        // A control: without the step's number in the state, or with another moment, the bits differ.
        TestModel<Real> other(config_of(fp8));
        restore(other, whole);
        const auto parts = other.trainer.state_slices();
        for (const DeviceSlice& part : parts)
            if (part.slice.part == "v")
                write_state(part.values, std::vector<float>(part.slice.count, 1.0f).data(), part.slice.count,
                            other.stream);
        short_step(whole, 8);
        short_step(other, 8);
        CHECK(slices_of(other) != slices_of(whole));
    }
}

TEST_CASE("state: a trainer restored after a skipped step counts on, and has the same FP8 scales") {
    const Fp8Config delayed;
    for (const Fp8Config* fp8 : {static_cast<const Fp8Config*>(nullptr), &delayed}) {
        TrainerConfig config = config_of(fp8);
        config.loss_scale.hysteresis = 2;
        TestModel<bf16> whole(config), begun(config);
        whole.trainer.initialize(1);
        short_step(whole, 0);
        short_step(whole, 1, INFINITY);
        CHECK(whole.trainer.read_state().optimizer.loss_scale.scale == 1024);
        CHECK(restore(begun, whole));
        CHECK(state_text(begun) == state_text(whole));
        for (TestModel<bf16>* test : {&whole, &begun}) {
            short_step(*test, 2, INFINITY);
            CHECK(test->trainer.read_state().optimizer.step.consecutive_skips == 2);
            CHECK(test->trainer.read_state().optimizer.loss_scale.scale == 512);
            short_step(*test, 3);
        }
        CHECK(slices_of(begun) == slices_of(whole));
    }
}

TEST_CASE("state: every optimizer continues with the same bits, and keeps the moments that it lists") {
    const auto config_with = [](OptimizerKind kind, double momentum, StateFormat format = StateFormat::fp32,
                                StateFormat masters = StateFormat::fp32) {
        TrainerConfig config = config_of(nullptr);
        config.optimizer.kind = kind;
        config.optimizer.momentum = momentum;
        config.optimizer.adam_moments = format;
        config.optimizer.masters = masters;
        return config;
    };
    const std::pair<TrainerConfig, std::vector<std::string>> cases[] = {
        {config_with(OptimizerKind::adamw, 0.9), {"master", "m", "v"}},
        {config_with(OptimizerKind::lion, 0.9), {"master", "m"}},
        {config_with(OptimizerKind::sgd, 0.9), {"master", "m"}},
        {config_with(OptimizerKind::sgd, 0), {"master"}},
        {config_with(OptimizerKind::muon, 0), {}},  // by tensor
        {config_with(OptimizerKind::normuon, 0), {}},
        {config_with(OptimizerKind::adamw, 0.9, StateFormat::bf16), {"master", "m", "v"}},
        {config_with(OptimizerKind::muon, 0, StateFormat::bf16), {}},
        {config_with(OptimizerKind::adamw, 0.9, StateFormat::fp32, StateFormat::bf16), {"master", "m", "v"}},
        {config_with(OptimizerKind::adamw, 0.9, StateFormat::bf16, StateFormat::bf16), {"master", "m", "v"}},
        {config_with(OptimizerKind::lion, 0.9, StateFormat::fp32, StateFormat::bf16), {"master", "m"}},
        {config_with(OptimizerKind::sgd, 0.9, StateFormat::fp32, StateFormat::bf16), {"master", "m"}},
        {config_with(OptimizerKind::muon, 0, StateFormat::fp32, StateFormat::bf16), {}},
        {config_with(OptimizerKind::adamw, 0.9, StateFormat::fp8), {"master", "m", "v"}},
        {config_with(OptimizerKind::muon, 0, StateFormat::fp8, StateFormat::bf16), {}},
    };
    std::vector<std::map<std::string, std::vector<float>>> results;
    for (const auto& [config, parts] : cases) {
        CAPTURE(results.size());
        TestModel<bf16> whole(config), begun(config);
        whole.trainer.initialize(1);
        for (int i = 0; i < 3; i++) short_step(whole, i);
        size_t kept = 0, narrow = 0, lines = 0;  // elements; bytes that narrow formats save; elements
        for (const DeviceSlice& part : whole.trainer.state_slices())
            narrow += part.slice.count * (sizeof(float) - bytes_of(part.values.format));
        for (const StateTensor& tensor : whole.trainer.state_tensors()) {
            kept += tensor.parts.size() * tensor.elements();
            const bool matrix = tensor.name.starts_with("h.") && tensor.shape.size() == 2;
            if (tensor.name.find(".lines.") != std::string::npos) {
                CHECK(tensor.parts == std::vector<std::string>{"second"});
                lines += tensor.elements();
            } else if (is_muon(config.optimizer.kind)) {
                CHECK(tensor.parts == (matrix ? std::vector<std::string>{"master", "m"}
                                              : std::vector<std::string>{"master", "m", "v"}));
            } else {
                CHECK(tensor.parts == parts);
            }
        }
        CHECK(lines == (config.optimizer.kind == OptimizerKind::normuon ? 3 * 64 + 64 + 2 * 256u : 0));
        const size_t moments = kept * sizeof(float) - narrow;
        CHECK((narrow > 0) ==
              (config.optimizer.adam_moments != StateFormat::fp32 || config.optimizer.masters != StateFormat::fp32));
        CHECK(whole.trainer.memory().optimizer >= moments);
        CHECK(whole.trainer.memory().optimizer < moments + moments / 8);
        CHECK(restore(begun, whole));
        for (int i = 3; i < 5; i++) short_step(whole, i), short_step(begun, i);
        CHECK(slices_of(begun) == slices_of(whole));
        for (const auto& other : results)
            CHECK(slices_of(whole).at("h.0.fc.weight.master") != other.at("h.0.fc.weight.master"));
        results.push_back(slices_of(whole));
    }
}

TEST_CASE("state: a run can change between masters or moments in BF16, FP8 and FP32") {
    bool masters = false;
    StateFormat format = StateFormat::bf16;
    SUBCASE("moments") {}
    SUBCASE("masters") { masters = true; }
    SUBCASE("moments in FP8") { format = StateFormat::fp8; }
    TrainerConfig narrow_config = config_of(nullptr);
    (masters ? narrow_config.optimizer.masters : narrow_config.optimizer.adam_moments) = format;
    TestModel<bf16> wide(config_of(nullptr)), narrow(narrow_config), back(config_of(nullptr)), again(narrow_config);
    wide.trainer.initialize(1);
    for (int i = 0; i < 3; i++) short_step(wide, i);
    CHECK(restore(narrow, wide));
    CHECK(restore(back, narrow));
    CHECK(restore(again, back));
    CHECK(slices_of(back) == slices_of(narrow));  // as FP32
    CHECK(slices_of(again) == slices_of(narrow));
    for (const auto& [name, values] : slices_of(wide)) {
        const std::vector<float> found = slices_of(narrow).at(name);
        const bool is_master = name.ends_with(".master");
        size_t wrong = 0;
        const bool in_fp8 = format == StateFormat::fp8 && name.ends_with(".m");
        for (size_t i = 0; i < values.size(); i++)
            if (in_fp8)  // half a step of E4M3, where the largest of the group's values is below 448 steps of 2^-9
                wrong += std::fabs(found[i] - values[i]) >
                         std::max(std::fabs(values[i]) / 16, largest_of(values) * 0x1p-17f);
            else
                wrong += found[i] != (is_master == masters ? to_float(to_bf16(values[i])) : values[i]);
        CHECK(wrong == 0);
    }
    for (TestModel<bf16>* test : {&wide, &narrow, &back, &again}) short_step(*test, 3);
    CHECK(slices_of(again) == slices_of(narrow));
    const char* const rounded = masters ? "h.0.fc.weight.master" : "h.0.fc.weight.v";
    CHECK(slices_of(narrow).at(rounded) != slices_of(back).at(rounded));
}

TEST_CASE("state: FP8 scales are found again if the recipe or the loss scale has changed") {
    Fp8Config delayed, other;
    other.margin = 1;
    TestModel<bf16> whole(config_of(&delayed)), same(config_of(&delayed)), changed(config_of(&other));
    TrainerConfig unscaled = config_of(&delayed);
    unscaled.loss_scale = {};
    TestModel<bf16> without(unscaled);
    whole.trainer.initialize(1);
    for (int i = 0; i < 3; i++) short_step(whole, i);
    CHECK(restore(same, whole));
    CHECK(same.trainer.fp8()->uses_history());
    CHECK(!restore(changed, whole));
    CHECK(!changed.trainer.fp8()->uses_history());
    CHECK(!restore(without, whole));
    short_step(changed, 3);  // calibrates
    CHECK(changed.trainer.fp8()->uses_history());
}

TEST_CASE("state: numbers that JSON cannot hold, and all others, keep their bits") {
    TrainerState state;
    state.optimizer = {12, 3, 2, 65536.0f, 5, {}};
    SpikeState& spikes = state.optimizer.spikes;
    for (int i = 0; i < kSpikeWindow; i++) spikes.loss[i] = std::exp(i * 0.77) / 3, spikes.norm[i] = 1.0 / (i + 3);
    spikes.accepted = 1000;
    spikes.in_a_row = 7;
    spikes.loss_limit = std::numeric_limits<double>::infinity();
    spikes.norm_limit = -std::numeric_limits<double>::infinity();
    Fp8SavedTensor tensor;
    tensor.name = "h.0.fc.x";
    tensor.state.scale = 1.0f / 3;
    tensor.state.amax = std::numeric_limits<float>::infinity();
    tensor.state.elements = 18446744073709551615u;
    tensor.watch = {18446744073709551614u, 1, 2, 3, 4};
    tensor.verdict = {1, 0.1f};
    tensor.history = {0.0f, 1e-45f, 3.4e38f};
    state.fp8 = Fp8Saved{"rule", true, true, {"h.1.qkv"}, {tensor}};
    const std::string text = json_text(state_json(state));
    const TrainerState back = state_from_json(parse_json(text));
    CHECK(json_text(state_json(back)) == text);
    CHECK(back.optimizer.spikes.loss_limit == spikes.loss_limit);
    CHECK(back.optimizer.spikes.loss[100] == spikes.loss[100]);
    CHECK(back.fp8->tensors[0].history == tensor.history);
    CHECK(back.fp8->tensors[0].watch.elements == 18446744073709551614u);
    CHECK(back.fp8->left == state.fp8->left);
}

TEST_CASE("state: residuals continue only with the same ranks and places, and earlier versions saved no places") {
    TrainerState state;
    CHECK(!contains(json_text(state_json(state)), "residual"));
    state.residuals = 2;
    state.residual_alignment = 64;
    nlohmann::ordered_json json = parse_json(json_text(state_json(state)));
    CHECK(state_from_json(json).residual_alignment == 64);
    json.erase("residual_alignment");
    CHECK(state_from_json(json).residual_alignment == 0);
    TrainerConfig fp8 = config_of(nullptr);
    fp8.optimizer.adam_moments = StateFormat::fp8;
    TestModel<bf16> narrow(fp8), wide(config_of(nullptr));
    const auto continued = [&](int ranks, uint64_t alignment) {
        state.residuals = ranks;
        state.residual_alignment = alignment;
        return std::pair(narrow.trainer.continues_residuals(state), wide.trainer.continues_residuals(state));
    };
    CHECK(continued(1, 64) == std::pair(true, false));
    CHECK(continued(1, 8) == std::pair(false, true));
    CHECK(continued(2, 64) == std::pair(false, false));
    CHECK(continued(1, 0) == std::pair(false, false));
}

TEST_CASE("state: an error names the field that is missing or has the wrong type") {
    TrainerState state{0, {}, Fp8Saved{"r", true, false, {}, {Fp8SavedTensor{}}}};
    state.optimizer.averaged = 3;
    const nlohmann::ordered_json good = parse_json(json_text(state_json(state)));
    CHECK_NOTHROW(state_from_json(good));
    for (const auto& [name, value] : good.items()) {
        for (const nlohmann::ordered_json& bad : {nlohmann::ordered_json(), nlohmann::ordered_json("x"),
                                                  nlohmann::ordered_json(-1), nlohmann::ordered_json::array()}) {
            nlohmann::ordered_json changed = good;
            if (bad.is_null())
                changed.erase(name);
            else
                changed[name] = bad;
            if ((name == "fp8" || name == "average") && bad.is_null()) continue;  // a run without it
            CAPTURE(json_text(changed));
            CHECK(contains(checkpoint_error([&] { state_from_json(changed); }), "manifest.json: its \"state\""));
        }
    }
    nlohmann::ordered_json changed = good;
    changed["spikes"]["loss"].erase(0);
    CHECK(contains(checkpoint_error([&] { state_from_json(changed); }), "127 numbers in \"loss\""));
    changed = good;
    CHECK(state_from_json(changed).optimizer.averaged == 3);
    changed["average"]["kind"] = "last";  // of an earlier version: not an average that a run can go on with
    CHECK(state_from_json(changed).optimizer.averaged == 0);
    changed = good;
    changed["fp8"]["outliers"] = {{1, 2, 3, 4, 5}};  // as in states of earlier versions, which recorded them
    changed["fp8"]["probed"] = {{1, 2, 3}};
    CHECK(state_from_json(changed).fp8->tensors.size() == 1);
}

TEST_CASE("staging: memory, none of it, or a local file give the same bytes") {
    TemporaryDirectory folder;
    TestModel<float> test(config_of(nullptr));
    test.trainer.initialize(1);
    short_step(test, 0);
    const auto values = slices_of(test);
    Staging memory(test.trainer.state_slices(), "", size_t{1} << 30), none(test.trainer.state_slices(), "", 1000),
        file(test.trainer.state_slices(), folder / "local", 0);
    CHECK(memory.is_apart());
    CHECK(memory.note() == "");
    CHECK(!none.is_apart());
    CHECK(contains(none.note(), "host memory"));
    CHECK(file.is_apart());
    const SliceBytes taken[] = {none.take(test.stream), memory.take(test.stream), file.take(test.stream)};
    Staging* const stagings[] = {&none, &memory, &file};
    for (int i = 0; i < 3; i++) {
        const Staging* staging = stagings[i];
        const SliceBytes& bytes = taken[i];
        if (staging->is_apart()) short_step(test, 1);  // the copy does not change
        for (size_t s = 0; s < staging->slices().size(); s++) {
            const StateSlice& slice = staging->slices()[s];
            const std::vector<float>& expected = values.at(slice.name());
            const void* half = bytes(s, slice.count / 2 * 4, (slice.count - slice.count / 2) * 4);
            CHECK(std::memcmp(half, expected.data() + slice.count / 2, (slice.count - slice.count / 2) * 4) == 0);
        }
    }
    CHECK(available_host_memory() > size_t{1} << 20);
    CHECK(std::filesystem::is_empty(folder / "local"));  // although the file is in use
    make_file(folder / "text", "mine");
    for (const std::string& place : {folder / "text", folder / "text/below", std::string("/proc")})
        CHECK(contains(error_of([&] { Staging(test.trainer.state_slices(), place, 0); }, ExitCode::bad_flags),
                       "--checkpoint-local " + place + ": cannot create a file in it: "));
}

TEST_CASE("staging: room in control groups is the least of the process's own groups and their parents") {
    TemporaryDirectory root;
    constexpr size_t kNoLimit = std::numeric_limits<size_t>::max();
    const auto make = [&](const std::string& group, const std::map<std::string, std::string>& files) {
        std::filesystem::create_directories(root / group);
        for (const auto& [name, text] : files) make_file(root / group + "/" + name, text + "\n");
    };
    const auto room = [&](const std::string& groups) { return room_in_control_groups(root / "", groups); };
    CHECK(room("0::/\n") == kNoLimit);
    CHECK(room("") == kNoLimit);
    // Version 2, as on a Slurm node: the job has a limit, its step a higher one, and the task none.
    make("job", {{"memory.max", "1000"}, {"memory.current", "400"}});
    make("job/step", {{"memory.max", "5000"}, {"memory.current", "300"}});
    make("job/step/task", {{"memory.max", "max"}, {"memory.current", "200"}});
    CHECK(room("0::/job/step/task\n") == 600);
    CHECK(room("0::/job\n") == 600);
    CHECK(room("0::/other\n") == kNoLimit);
    make("job/step", {{"memory.current", "4900"}});
    CHECK(room("0::/job/step/task\n") == 100);
    make("job/step", {{"memory.current", "5100"}});
    CHECK(room("0::/job/step/task\n") == 0);
    // The cache of files is no obstacle.
    make("job/step", {{"memory.stat", "anon 100\nfile 4000\ninactive_file 700\nactive_file 50\nshmem 3000"}});
    CHECK(room("0::/job/step/task\n") == 600);
    make("job", {{"memory.stat", "anon 1\ninactive_file 3"}});
    CHECK(room("0::/job/step/task\n") == 603);
    // In a container the root has the limit.
    make("", {{"memory.max", "90"}, {"memory.current", "30"}});
    CHECK(room("0::/\n") == 60);
    CHECK(room("0::/path/on/the/host\n") == 60);
    CHECK(room("0::/job/step/task\n") == 60);
    // Version 1: other controllers have other groups.
    make("memory/job", {{"memory.limit_in_bytes", "70"},
                        {"memory.usage_in_bytes", "50"},
                        {"memory.stat", "inactive_file 1\ntotal_inactive_file 5"}});
    make("memory/job/task", {{"memory.limit_in_bytes", "9223372036854771712"}, {"memory.usage_in_bytes", "40"}});
    make("memory/other", {{"memory.limit_in_bytes", "7"}, {"memory.usage_in_bytes", "7"}});
    CHECK(room("5:cpu,cpuacct:/other\n4:cpu,memory:/job/task\n1:name=systemd:/other\n") == 25);
    CHECK(room("4:memory:/job/task\n0::/job\n") == 25);
    CHECK(room("4:memory:/other\n0::/job\n") == 0);
}

TEST_CASE("state: first moments in FP8 are staged as BF16 without loss, in pieces of any size") {
    TrainerConfig config = config_of(nullptr);
    config.optimizer.adam_moments = StateFormat::fp8;
    TestModel<bf16> test(config);
    test.trainer.initialize(1);
    for (int i = 0; i < 3; i++) short_step(test, i);
    for (const size_t memory : {size_t{1} << 30, size_t{0}}) {
        Staging staging(test.trainer.state_slices(), "", memory);
        CHECK(staging.is_apart() == (memory > 0));
        const SliceBytes bytes = staging.take(test.stream);
        size_t found = 0;
        for (size_t slice = 0; slice < staging.slices().size(); slice++) {
            const DeviceSlice part = test.trainer.state_slices()[slice];
            if (part.values.format != StateFormat::fp8) continue;
            found++;
            CHECK(part.slice.dtype == "BF16");
            const std::vector<float> expected = read_state(part.values, part.slice.count, test.stream);
            CHECK(largest_of(expected) > 0);
            std::vector<bf16> values(part.slice.count);
            for (uint64_t at = 0; at < part.slice.bytes(); at += 1000) {
                const size_t count = std::min<uint64_t>(1000, part.slice.bytes() - at);
                std::memcpy(reinterpret_cast<char*>(values.data()) + at, bytes(slice, at, count), count);
            }
            size_t wrong = 0;
            for (size_t i = 0; i < values.size(); i++) wrong += to_float(values[i]) != expected[i];
            CHECK(wrong == 0);
        }
        CHECK(found > 0);
    }
}
