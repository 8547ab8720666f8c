// The table of FP8 tensors against a simulation on the host: scales, histories, values that never enter them, and when
// layers leave FP8.
#include "llmc/fp8/scaling.h"

#include <algorithm>
#include <cfloat>
#include <cstring>
#include <deque>
#include <random>
#include <set>

#include "test/kernel_test.h"

using namespace llmc;
using namespace llmc::test;

namespace {

constexpr int kTensors = 12 * kFp8Roles;

bool same_state(const Fp8State& a, const Fp8State& b) { return std::memcmp(&a, &b, sizeof a) == 0; }

// The rules written a second time, in double and with a deque.
struct Simulated {
    Fp8State state{};
    std::deque<float> history;  // amaxes that have entered, the newest last
    Fp8Role role;

    explicit Simulated(int index) : role(static_cast<Fp8Role>(index % 3)) { state.scale = state.scale_inv = 1.0f; }

    void set_scale(double amax, const Fp8Config& config, double factor = 1) {
        const double largest = role == Fp8Role::dout && config.grad == Fp8Grad::e5m2 ? 57344.0 : 448.0;
        double scale = std::clamp(factor * largest / std::ldexp(amax, config.margin), static_cast<double>(FLT_MIN),
                                  static_cast<double>(FLT_MAX));
        if (config.pow2_scales)
            scale = std::exp2(std::floor(std::log2(static_cast<double>(static_cast<float>(scale)))));
        state.scale = static_cast<float>(scale);
        state.scale_inv = 1.0f / state.scale;
    }
    void set_current(const Fp8Config& config, int64_t updates) {
        const double turns = static_cast<double>(updates) * (std::sqrt(5.0) - 1) / 2;
        const double fraction = std::floor((turns - std::floor(turns)) * 0x1p24) * 0x1p-24;
        const double factor = role == Fp8Role::w && !config.pow2_scales ? 1 - fraction / 2 : 1;
        if (state.amax_now > 0 && !state.bad) set_scale(state.amax_now, config, factor);
        state.amax = std::max(state.amax, state.amax_now);
        state.amax_now = 0;
    }
    double window(const Fp8Config& config) const {
        if (config.algorithm == AmaxAlgorithm::most_recent) return history.back();
        if (config.algorithm == AmaxAlgorithm::max) return *std::max_element(history.begin(), history.end());
        double average = history.front();
        for (size_t i = 1; i < history.size(); i++) average += 2.0 / (config.history + 1) * (history[i] - average);
        return std::max<double>(average, history.back());
    }
    void finish_step(const Fp8Config& config, float change) {
        enter_history(config);
        if (role != Fp8Role::dout) return;
        for (float& amax : history) amax *= change;
        state.scale /= change;
        state.scale_inv = 1.0f / state.scale;
    }
    void enter_history(const Fp8Config& config) {
        const float amax = state.amax;
        state.last_amax = amax;
        const bool enters = amax > 0 && std::isfinite(amax) && !state.bad && role != Fp8Role::w;
        state.amax = 0;
        state.bad = 0;
        if (!enters) return;
        history.push_back(amax);
        if (static_cast<int>(history.size()) > config.history) history.pop_front();
        set_scale(window(config), config);
    }
};

// The table on the device and its simulation.
struct Table {
    Fp8Config config;
    DeviceArray<Fp8State> states;
    DeviceArray<float> history;
    std::vector<Simulated> expected;

    explicit Table(const Fp8Config& c)
        : config(c), states(kTensors), history(static_cast<size_t>(kTensors * c.history)) {
        fp8_reset(states, history, kTensors, config, test_stream());
        for (int i = 0; i < kTensors; i++) expected.emplace_back(i);
    }
    template <class F>
    void change(F&& f) {  // applies f(state, index) to both
        std::vector<Fp8State> now = states.download();
        for (int i = 0; i < kTensors; i++) {
            f(now[i], i);
            f(expected[i].state, i);
        }
        states.upload(now);
    }
    void set_current(int first, int count, int64_t updates = 0) {
        const DeviceArray<int64_t> on_device(std::vector<int64_t>{updates});
        fp8_set_current(states, first, count, config, updates > 0 ? on_device.get() : nullptr, test_stream());
        for (int i = first; i < first + count; i++) expected[i].set_current(config, updates);
        synchronize(test_stream());
    }
    // Without `change` it passes a null pointer.
    void finish_step(float change = 0.0f) {
        DeviceArray<float> on_device(std::vector<float>{change});
        fp8_finish_step(states, history, kTensors, config, change != 0.0f ? on_device.get() : nullptr, test_stream());
        for (Simulated& s : expected) s.finish_step(config, change != 0.0f ? change : 1.0f);
    }
    // The number of tensors with a different state or history. Scales may be one ulp off: the simulation rounds once,
    // the kernel twice.
    int wrong() {
        const std::vector<Fp8State> now = states.download();
        const std::vector<float> entries = history.download();
        const size_t length = static_cast<size_t>(config.history);
        int count = 0;
        for (size_t i = 0; i < kTensors; i++) {
            std::vector<float> window(length, 0.0f);
            std::copy(expected[i].history.rbegin(), expected[i].history.rend(), window.rbegin());
            bool ok = std::memcmp(window.data(), &entries[i * length], length * 4) == 0;
            Fp8State want = expected[i].state;
            ok = ok && std::fabs(now[i].scale - want.scale) <= 2.5e-7f * want.scale &&
                 now[i].scale_inv == 1.0f / now[i].scale && (!config.pow2_scales || now[i].scale == want.scale);
            want.scale = now[i].scale;
            want.scale_inv = now[i].scale_inv;
            ok = ok && same_state(now[i], want);
            expected[i].state = want;  // an ulp must not accumulate
            count += !ok;
        }
        return count;
    }
};

std::vector<Fp8Config> configurations() {
    std::vector<Fp8Config> result;
    for (const AmaxAlgorithm algorithm : {AmaxAlgorithm::max, AmaxAlgorithm::most_recent, AmaxAlgorithm::ema})
        for (const int history : {1, 2, 5, 16}) {
            Fp8Config c;
            c.algorithm = algorithm;
            c.history = history;
            c.margin = history % 3;
            c.pow2_scales = history == 2 || history == 16;
            if (history == 5) c.grad = Fp8Grad::e4m3;
            result.push_back(c);
        }
    return result;
}

Fp8Config config_of(int margin, bool pow2) {
    Fp8Config c;
    c.margin = margin;
    c.pow2_scales = pow2;
    return c;
}

// The scale that a tensor gets for an amax.
float scale_for(float amax, Fp8Role role, const Fp8Config& config) {
    Table t(config);
    const int tensor = 6 * kFp8Roles + static_cast<int>(role);
    t.change([&](Fp8State& s, int i) {
        if (i == tensor) s.amax_now = amax;
    });
    t.set_current(tensor, 1);
    CHECK(t.wrong() == 0);
    const Fp8State state = t.states.download()[tensor];
    CHECK(state.amax_now == 0.0f);
    CHECK(std::isfinite(state.scale_inv));
    return state.scale;
}

}  // namespace

TEST_CASE("scales: formats, margin, powers of two, and the ends of FP32") {
    CHECK(scale_for(2.0f, Fp8Role::x, config_of(0, false)) == 224.0f);
    CHECK(scale_for(2.0f, Fp8Role::w, config_of(0, false)) == 224.0f);
    CHECK(scale_for(2.0f, Fp8Role::dout, config_of(0, false)) == 28672.0f);
    CHECK(scale_for(2.0f, Fp8Role::x, config_of(3, false)) == 28.0f);
    CHECK(scale_for(2.0f, Fp8Role::x, config_of(0, true)) == 128.0f);
    CHECK(scale_for(1.75f, Fp8Role::x, config_of(0, true)) == 256.0f);  // a power of two already
    CHECK(scale_for(1e-42f, Fp8Role::x, config_of(0, false)) == FLT_MAX);
    CHECK(scale_for(1e-42f, Fp8Role::x, config_of(0, true)) == 0x1p127f);
    CHECK(scale_for(FLT_MAX, Fp8Role::x, config_of(0, false)) > 0.0f);
    CHECK(scale_for(FLT_MAX, Fp8Role::x, config_of(2, false)) > 0.0f);  // 4 * amax overflows
    CHECK(scale_for(FLT_MAX, Fp8Role::x, config_of(40, false)) == FLT_MIN);
    CHECK(scale_for(0.0f, Fp8Role::x, config_of(0, false)) == 1.0f);  // stays
    Fp8Config gradients = config_of(0, false);
    gradients.grad = Fp8Grad::e4m3;
    CHECK(scale_for(2.0f, Fp8Role::dout, gradients) == 224.0f);
}

TEST_CASE("the largest value of a tensor just fits") {
    for (const bool pow2 : {false, true})
        for (int k = 0; k < 200; k++) {
            const float amax = std::exp2f(0.37f * static_cast<float>(k - 100));
            const float scaled = amax * scale_for(amax, Fp8Role::x, config_of(0, pow2));
            CHECK(scaled <= 448.0f * 1.0000002f);
            CHECK(scaled >= (pow2 ? 223.9f : 447.999f));
            if (k > 20 && !pow2) break;
        }
}

TEST_CASE("the rounding errors of weights average out over a few updates") {
    constexpr int kUpdates = 32;
    const int w = static_cast<int>(Fp8Role::w);
    Table t(Fp8Config{});
    const std::vector<float> weights = random_normal<float>(1000, 1.0f, 7);
    std::vector<double> mean(weights.size(), 0.0);
    float amax = 0;
    for (const float x : weights) amax = std::max(amax, std::fabs(x));
    double squares = 0, squares_of_mean = 0;
    for (int updates = 1; updates <= kUpdates; updates++) {
        t.change([&](Fp8State& s, int i) { s.amax_now = i == w ? amax : 0.0f; });
        t.set_current(0, kTensors, updates);
        REQUIRE(t.wrong() == 0);
        const float scale = t.states.download()[w].scale;
        for (size_t i = 0; i < weights.size(); i++) {
            const double error = static_cast<double>(to_float(to<e4m3>(weights[i] * scale))) / scale - weights[i];
            squares += error * error / kUpdates;
            mean[i] += error / kUpdates;
        }
    }
    for (const double error : mean) squares_of_mean += error * error;
    // Independent errors would leave 1 / 32 of the power, evenly spread ones less. A constant scale would leave all.
    CHECK(squares_of_mean < squares / kUpdates);
}

TEST_CASE("random steps give the states and histories of a simulation") {
    std::mt19937 engine(5);
    for (const Fp8Config& config : configurations()) {
        CAPTURE(config.history);
        CAPTURE(static_cast<int>(config.algorithm));
        Table t(config);
        CHECK(t.wrong() == 0);
        for (int step = 0; step < 40; step++) {
            CAPTURE(step);
            const int micro_steps = 1 + static_cast<int>(engine() % 3);
            for (int m = 0; m < micro_steps; m++) {
                float amax[kTensors];
                bool bad[kTensors];
                for (int i = 0; i < kTensors; i++) {
                    amax[i] = std::exp2f(static_cast<float>(engine() % 1000) * 0.02f - 10.0f);
                    if (engine() % 5 == 0) amax[i] = 0.0f;  // not used, or all zero
                    if (engine() % 40 == 0) amax[i] = std::numeric_limits<float>::infinity();
                    bad[i] = engine() % 12 == 0;
                }
                const bool current = engine() % 3 == 0;
                t.change([&](Fp8State& s, int i) {
                    float& into = current ? s.amax_now : s.amax;
                    if (!current || std::isfinite(amax[i])) into = std::max(into, amax[i]);
                    s.bad |= bad[i];
                    s.elements += 100, s.saturated += 3;
                });
                if (current) {
                    const int first = static_cast<int>(engine() % kTensors);
                    t.set_current(first, 1 + static_cast<int>(engine() % static_cast<unsigned>(kTensors - first)),
                                  engine() % 2 == 0 ? 0 : engine() % 1000000);
                    CHECK(t.wrong() == 0);
                }
            }
            const float changes[] = {0.0f, 1.0f, 2.0f, 0.5f, 0.125f};
            t.finish_step(changes[engine() % 5]);
            CHECK(t.wrong() == 0);
        }
    }
}

TEST_CASE("a changed loss scale moves the gradients' scales and histories exactly") {
    for (const Fp8Config& config : configurations()) {
        // If gradients are half as large from the third step on, the same steps give the same scales.
        Table plain(config), halved(config);
        std::mt19937 engine(3);
        for (int step = 0; step < 20; step++) {
            float amax[kTensors];
            for (float& a : amax) a = static_cast<float>(engine() % 1000 + 1) * 0.01f;
            const bool half = step >= 3;
            plain.change([&](Fp8State& s, int i) { s.amax = amax[i]; });
            halved.change(
                [&](Fp8State& s, int i) { s.amax = amax[i] * (half && role_of(i) == Fp8Role::dout ? 0.5f : 1.0f); });
            plain.finish_step();
            halved.finish_step(step == 2 ? 0.5f : 1.0f);
            const auto a = plain.states.download(), b = halved.states.download();
            for (size_t i = 0; i < kTensors; i++) {
                const bool moved = step >= 2 && role_of(static_cast<int>(i)) == Fp8Role::dout;
                CHECK(b[i].scale == a[i].scale * (moved ? 2.0f : 1.0f));
                CHECK(b[i].scale_inv == 1.0f / b[i].scale);
            }
        }
    }
}

TEST_CASE("a gradient's scale does not move out of FP32") {
    Table t(Fp8Config{});
    t.change([](Fp8State& s, int) { s.amax = 1e-36f; });
    t.finish_step();
    const auto before = t.states.download();
    REQUIRE(before[2].scale == FLT_MAX);
    for (int k = 0; k < 3; k++) t.finish_step(0.5f);
    const auto after = t.states.download();
    for (size_t i = 0; i < kTensors; i++) CHECK(after[i].scale == before[i].scale);
}

TEST_CASE("an outlier leaves the window after its length in steps; steps without a usable amax do not count") {
    Fp8Config config;
    config.history = 3;
    Table t(config);
    const int x = static_cast<int>(Fp8Role::x);  // the first layer's
    const auto scale = [&] { return t.states.download()[x].scale; };
    const auto step = [&](float amax, uint32_t bad) {
        t.change([&](Fp8State& s, int i) {
            if (i == x) s.amax = amax, s.bad = bad;
        });
        t.finish_step();
        CHECK(t.wrong() == 0);
        return scale();
    };
    CHECK(step(448.0f, 0) == 1.0f);
    CHECK(step(1.0f, 0) == 1.0f);
    CHECK(step(0.0f, 0) == 1.0f);  // not used: no roll
    CHECK(step(1e4f, 1) == 1.0f);  // contained Inf or NaN: its finite part is not accepted either
    CHECK(step(1.0f, 0) == 1.0f);
    CHECK(step(1.0f, 0) == 448.0f);  // the outlier has left the window
    CHECK(step(std::numeric_limits<float>::infinity(), 0) == 448.0f);
    CHECK(step(std::numeric_limits<float>::quiet_NaN(), 0) == 448.0f);
}

TEST_CASE("an amax that is not finite marks its tensor as bad and changes nothing else") {
    for (const float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
        Table t(Fp8Config{});
        t.change([&](Fp8State& s, int i) { s.amax_now = i == 4 ? bad : 0.0f, s.amax = 1.0f; });
        fp8_set_current(t.states, 0, kTensors, t.config, nullptr, test_stream());
        const auto states = t.states.download();
        for (int i = 0; i < kTensors; i++) {
            const Fp8State& s = states[i];
            CHECK(s.bad == (i == 4));
            CHECK(s.amax == 1.0f);
            CHECK(s.amax_now == 0.0f);
            CHECK(s.scale == 1.0f);
        }
    }
}

TEST_CASE("fp8_any_bad finds a bad tensor at any index") {
    for (const int count : {1, 31, 300}) {
        DeviceArray<int> flag(1);
        std::vector<Fp8State> none(static_cast<size_t>(count));
        DeviceArray<Fp8State> states(none);
        fp8_any_bad(flag, states, count, test_stream());
        CHECK(flag.download()[0] == 0);
        for (const int i : {0, count / 2, count - 1}) {
            auto one = none;
            one[i].bad = 1;
            states.upload(one);
            fp8_any_bad(flag, states, count, test_stream());
            CHECK(flag.download()[0] == i + 1);
        }
    }
}

TEST_CASE("fp8_any_bad names the first one in the order of a step") {
    constexpr int kLayers = 120, kCount = kLayers * kFp8Roles;
    // Every pair: only the later one, then both.
    const auto tensor = [](int layer, Fp8Role role) { return layer * kFp8Roles + static_cast<int>(role); };
    const int order[] = {tensor(0, Fp8Role::w),      tensor(119, Fp8Role::w),   tensor(0, Fp8Role::x),
                         tensor(2, Fp8Role::x),      tensor(116, Fp8Role::x),   tensor(119, Fp8Role::dout),
                         tensor(118, Fp8Role::dout), tensor(15, Fp8Role::dout), tensor(1, Fp8Role::dout),
                         tensor(0, Fp8Role::dout)};
    DeviceArray<int> flag(1);
    DeviceArray<Fp8State> states(static_cast<size_t>(kCount));
    for (size_t late = 0; late < std::size(order); late++)
        for (size_t early = 0; early <= late; early++) {
            std::vector<Fp8State> bad(kCount);
            bad[order[late]].bad = 1;
            bad[order[early]].bad = 1;
            states.upload(bad);
            fp8_any_bad(flag, states, kCount, test_stream());
            CHECK(flag.download()[0] - 1 == order[early]);
        }
}

TEST_CASE("fp8_reset and fp8_clear_counts") {
    Table t(Fp8Config{});  // poison before
    for (const Fp8State& s : t.states.download()) {
        Fp8State fresh{};
        fresh.scale = fresh.scale_inv = 1.0f;
        CHECK(same_state(s, fresh));
    }
    for (const float entry : t.history.download()) CHECK(entry == 0.0f);
    t.change([](Fp8State& s, int i) {
        s.amax = 1.0f, s.amax_now = 2.0f, s.bad = 1, s.scale = 4.0f, s.scale_inv = 0.25f;
        s.elements = 1, s.saturated = 2, s.underflowed = 3, s.nonfinite = static_cast<uint64_t>(i);
    });
    fp8_clear_counts(t.states, nullptr, kTensors, test_stream());
    for (Simulated& s : t.expected) s.state.elements = s.state.saturated = s.state.underflowed = s.state.nonfinite = 0;
    CHECK(t.wrong() == 0);
}

// The rule of --fp8-fallback, written a second time, on random counts.
TEST_CASE("fp8 fallback: streaks and verdicts equal those of a simulation") {
    constexpr int kCount = 301, kSteps = 60;
    const Fp8FallbackRule rule{0.25f, 0.5f, 3};
    std::mt19937 random(5);
    std::vector<Fp8State> states(kCount);
    std::vector<Fp8Watch> watches(kCount, Fp8Watch{});
    std::vector<int> saturating(kCount), underflowing(kCount);
    std::vector<double> pending[3];  // counted but not evaluated yet
    for (auto& list : pending) list.resize(kCount);
    int fired[3] = {}, cleared = 0;
    const stream_t stream = test_stream();
    const auto count_something = [&](int i) {
        const uint64_t n = 1 + random() % 1000;
        const uint64_t s = random() % 4 ? n / 2 : n / 10, u = random() % 4 ? n / 5 * 4 : n / 4;
        const uint64_t added[3] = {n, i % 3 == 0 ? s : 0, i % 3 == 1 ? u : 0};
        states[i].elements += added[0], states[i].saturated += added[1], states[i].underflowed += added[2];
        for (int k = 0; k < 3; k++) pending[k][i] += static_cast<double>(added[k]);
    };
    for (int step = 0; step < kSteps; step++) {
        for (int i = 0; i < kCount; i++)
            if (random() % 16) count_something(i);
        const int bad = random() % 8 == 0;
        DeviceArray<Fp8State> device_states(states);
        DeviceArray<Fp8Watch> device_watches(watches);
        DeviceArray<float> packed(3 * kCount);
        DeviceArray<Fp8Verdict> verdicts(kCount);
        DeviceArray<int> bad_flag(std::vector<int>{bad});
        fp8_pack_counts(packed.get(), device_watches.get(), device_states.get(), kCount, stream);
        fp8_judge(verdicts.get(), device_watches.get(), packed.get(), bad_flag.get(), kCount, rule, stream);
        const auto result = verdicts.download();
        for (int i = 0; i < kCount; i++) {
            const double n = pending[0][i], s = n > 0 ? pending[1][i] / n : 0, u = n > 0 ? pending[2][i] / n : 0;
            if (!bad) {
                saturating[i] = s > 0.25 ? saturating[i] + 1 : 0;
                underflowing[i] = u > 0.5 ? underflowing[i] + 1 : 0;
            }
            const int expected = bad ? 0 : saturating[i] >= 3 ? 1 : underflowing[i] >= 3 ? 2 : 0;
            CHECK(result[i].reason == expected);
            if (expected) CHECK(result[i].fraction == doctest::Approx(expected == 1 ? s : u));
            fired[expected]++;
            for (auto& list : pending) list[i] = 0;
        }
        if (step % 7 == 3) {  // the log takes the counts in between
            for (int i = 0; i < kCount; i++)
                if (i % 2) count_something(i);
            DeviceArray<Fp8State> counted(states);
            fp8_clear_counts(counted.get(), device_watches.get(), kCount, stream);
            states = counted.download();
            cleared++;
        }
        watches = device_watches.download();
    }
    CHECK(cleared > 5);
    for (const int count : fired) CHECK(count > 100);
}
