// The model with its linear layers in FP8: against PyTorch's FP64 gradients, against itself in BF16, and rules of
// scaling that only a whole step shows.
#include "test/helpers.h"
#include "test/model/fp8_training.h"

using namespace llmc;
using namespace llmc::test;

namespace {

// Checks every gradient of the fixture's first batch, with scales from a previous step.
void check_gradients(const Fp8Config& config, const std::string& layers) {
    CAPTURE(static_cast<int>(config.recipe));
    CAPTURE(layers);
    Fp8Training run(config, "off", Recompute::gelu, layers);
    const Batch batch = fixture_batch(run.fixture, 0);
    for (int i = 0; i < 2; i++) {  // twice, so that delayed scaling has its scales from a step before
        for (size_t u = 0; u < run.test.table.units().size();
             u++) {  // clears the first pass's results, so that they cannot be reused
            run.test.gradients.acquire(u, run.test.stream);
            set_bytes(run.test.gradients.gradient(u, 0), 0xFF, run.test.table.unit(u).count * sizeof(float),
                      run.test.stream);
            run.test.gradients.reduce(u, run.test.stream);
        }
        run.test.model.train_micro_step({batch.tokens.data(), batch.targets.data()},
                                        {1.0f / static_cast<float>(run.B * run.T)}, run.test.stream);
        run.test.fp8->finish_step(run.optimizer.loss_scale_change(), run.test.stream);
    }
    const auto gradients = run.test.all_gradients();
    size_t i = 0;
    for (const Unit& unit : run.test.table.units())
        for (const ParameterTensor& tensor : unit.tensors) {
            CAPTURE(tensor.name);
            std::vector<float> expected = run.fixture.gradient(tensor.name);
            expected.resize(tensor.count(), 0.0f);
            const std::vector<float>& actual = gradients[i++];
            CHECK(cosine(actual, expected) > 0.975);
            CHECK(norm(actual) / norm(expected) == doctest::Approx(1).epsilon(0.08));
        }
}

}  // namespace

TEST_CASE("gpt2 fp8: gradients are right whichever neighbours are in BF16") {
    for (const char* layers :
         {"all,-first", "all,-last", "all,-qkv", "all,-attn_proj", "all,-fc", "all,-fc_proj", "none,qkv",
          "none,attn_proj", "none,fc", "none,fc_proj", "none,lm_head", "all,+lm_head", "all,-forward"})
        check_gradients(recipe(Fp8Recipe::delayed), layers);
    for (const char* layers : {"all,-attn_proj", "none,fc_proj", "all,-forward"})
        check_gradients(recipe(Fp8Recipe::current), layers);
}

// Products take tokens in blocks of 16, 32 or 128, so the last ones of other contexts need padding without positions.
// It must not affect the results: a model with spare positions, whose padding is token 0, gives the same bits.
TEST_CASE("gpt2 fp8: the next token is predicted up to the end of any context") {
    ModelConfig narrow = fixture_config(Gpt2Fixture());
    narrow.channels = 128, narrow.heads = 2, narrow.context = 24;
    ModelConfig wide = narrow;
    wide.context = 128;
    const int B = 16, T = 24;
    std::vector<int> tokens(B * T), targets(B * T);
    for (size_t i = 0; i < tokens.size(); i++) tokens[i] = 1 + static_cast<int>((i * i + 7) % 90);
    for (size_t i = 0; i < tokens.size(); i++) targets[i] = tokens[(i + 1) % tokens.size()];
    for (const Fp8Recipe kind : {Fp8Recipe::delayed, Fp8Recipe::current, Fp8Recipe::mxfp8, Fp8Recipe::block}) {
        CAPTURE(static_cast<int>(kind));
        const Fp8Config config = recipe(kind);
        Fp8Model small(narrow, B, T, Recompute::gelu, &config), large(wide, B, T, Recompute::gelu, &config);
        for (Fp8Model* test : {&small, &large}) {
            for (const TensorRow& row : all_tensors(narrow)) {
                std::vector<float> values = first_values(narrow, row, 7);
                if (row.name == "wte") std::fill_n(values.begin(), narrow.channels, 0.0f);  // token 0
                test->trainer.set_weight(row.name, values);                                 // spare positions are 0
            }
            test->trainer.weights_are_set();
            test->model.train_micro_step({tokens.data(), targets.data()}, {1.0f / (B * T)}, test->stream);
            test->fp8->finish_step(nullptr, test->stream);  // gives delayed scaling its scales
        }
        for (const int length : {1, 16, 17, 23, 24}) {
            CAPTURE(length);
            const std::vector<float> logits = small.model.next_token_logits(tokens.data(), length, small.stream);
            CHECK(logits == large.model.next_token_logits(tokens.data(), length, large.stream));
            for (const float x : logits) REQUIRE(std::isfinite(x));
        }
    }
}

// Sequences that attention cannot cast itself, because they do not fill pieces of a transposed row.
TEST_CASE("gpt2 fp8: sequences of any length train if the tokens of a micro-batch are a multiple of 16") {
    const Gpt2Fixture fixture;
    const Fp8Config config = recipe(Fp8Recipe::delayed);
    const int B = 4, T = 36;
    TestModel<bf16> fp8(fixture_config(fixture), B, T, Recompute::block, &config);
    TestModel<bf16> plain(fixture_config(fixture), B, T, Recompute::block);
    std::vector<int> tokens(B * T), targets(B * T);
    for (size_t i = 0; i < tokens.size(); i++) tokens[i] = static_cast<int>(i * i % 97);
    for (size_t i = 0; i < tokens.size(); i++) targets[i] = tokens[(i + 1) % tokens.size()];
    for (TestModel<bf16>* test : {&fp8, &plain}) {
        test->load(fixture);
        for (int i = 0; i < 2; i++) {
            test->model.train_micro_step({tokens.data(), targets.data()}, {1.0f / (B * T)}, test->stream);
            if (test->fp8) test->fp8->finish_step(nullptr, test->stream);
        }
    }
    CHECK(fp8.mean_train_loss() == doctest::Approx(plain.mean_train_loss()).epsilon(0.01));
    const auto a = fp8.all_gradients(), b = plain.all_gradients();
    for (size_t i = 0; i < a.size(); i++) CHECK(cosine(a[i], b[i]) > 0.96);
}

TEST_CASE("gpt2 fp8: twelve products per block, minus excluded ones, plus recomputed ones; every element is counted") {
    const int blocks = 2;
    const auto products_of = [](const Fp8Config& config, Recompute recompute, const std::string& layers) {
        Fp8Training run(config, "off", recompute, layers);
        run.step(0);
        CHECK(run.test.matmul.counts().fp8 == run.test.trainer.expected_fp8_products());
        return run.test.matmul.counts();
    };
    const auto products = [&](Recompute recompute, const std::string& layers) {
        return products_of(recipe(Fp8Recipe::delayed), recompute, layers);
    };
    CHECK(products(Recompute::gelu, "all").fp8 == 12 * blocks);
    CHECK(products(Recompute::gelu, "all").bf16 == 3);  // the head's products
    CHECK(products(Recompute::block, "all").fp8 == (12 + 3) * blocks);
    CHECK(products(Recompute::gelu, "all,-first").fp8 == 12 * (blocks - 1));
    CHECK(products(Recompute::gelu, "all,-fc_proj").fp8 == 9 * blocks);
    CHECK(products(Recompute::gelu, "none,block1.qkv").fp8 == 3);
    CHECK(products(Recompute::gelu, "all,+lm_head").fp8 == 12 * blocks + 2);
    for (const Recompute recompute : {Recompute::none, Recompute::gelu, Recompute::norm, Recompute::block})
        CHECK(products(recompute, "all,-forward").fp8 == 8 * blocks);

    Fp8Training run(recipe(Fp8Recipe::delayed), "off");
    run.step(0);
    run.step(1);
    const std::vector<Fp8State> states = run.states();
    for (int i = 0; i < run.test.fp8->count(); i++) {
        CAPTURE(run.test.fp8->name(i));
        const uint64_t elements = fp8_elements(run.test.model.linear(), *run.test.fp8, i, run.B * run.T);
        CHECK(states[i].elements == elements * (role_of(i) == Fp8Role::w ? 3 : 2));  // weights once more, before step 1
        CHECK(states[i].nonfinite == 0);
        CHECK(states[i].last_amax > 0);
    }
}

TEST_CASE("gpt2 fp8: lost values are counted in the steps that ask for it, which changes nothing else") {
    for (const Fp8Recipe kind : {Fp8Recipe::delayed, Fp8Recipe::current}) {
        CAPTURE(static_cast<int>(kind));
        Fp8Training always(recipe(kind), "off"), once(recipe(kind), "off");
        for (int i = 0; i < 4; i++) {
            always.test.fp8->clear_counts(always.test.stream);
            always.step(i);
            once.step(i, i == 2);
            const auto counted = always.states(), expected_once = once.states();
            for (size_t t = 0; t < counted.size() && i == 2; t++) {
                CAPTURE(always.test.fp8->name(static_cast<int>(t)));
                const bool weight = role_of(static_cast<int>(t)) == Fp8Role::w;  // and once before the first step
                CHECK(expected_once[t].elements == counted[t].elements * (weight ? 2 : 1));
                if (!weight) CHECK(expected_once[t].underflowed == counted[t].underflowed);
            }
            for (size_t t = 0; t < counted.size(); t++) CHECK(expected_once[t].scale == counted[t].scale);
        }
        CHECK(same_bits(once.weights(), always.weights()));
    }
    Fp8Config falling_back = recipe(Fp8Recipe::delayed);
    falling_back.fallback = {0.5f, 0.5f, 2};
    Fp8Training watched(falling_back, "off");
    watched.step(0, false);
    CHECK(watched.states()[0].elements > 0);  // a rule needs counts of every step
}

TEST_CASE("gpt2 fp8: every recompute level gives the same bits") {
    for (const Fp8Recipe kind : {Fp8Recipe::delayed, Fp8Recipe::current}) {
        const Fp8Config config = recipe(kind);
        Fp8Training reference(config, "off", Recompute::none);
        for (int i = 0; i < 3; i++) reference.step(i);
        for (const Recompute level : {Recompute::gelu, Recompute::norm, Recompute::block}) {
            Fp8Training run(config, "off", level);
            for (int i = 0; i < 3; i++) run.step(i);
            CHECK(same_bits(run.weights(), reference.weights()));
            CHECK(same_states(run, reference));
        }
    }
}

TEST_CASE("gpt2 fp8: any loss scale gives the same bits") {
    for (const Fp8Recipe kind : {Fp8Recipe::delayed, Fp8Recipe::current}) {
        const auto run = [&](const char* scale) {
            return Fp8Training(recipe(kind), scale, Recompute::gelu, "all,+lm_head");
        };
        Fp8Training plain = run("off"), scaled = run("65536"), dynamic = run("dynamic");
        for (int i = 0; i < 6; i++) {
            plain.step(i);
            scaled.step(i);
            dynamic.step(i);
        }
        CHECK(same_bits(plain.weights(), scaled.weights()));
        CHECK(same_bits(plain.weights(), dynamic.weights()));
    }
}

TEST_CASE("gpt2 fp8: evaluation leaves no trace in scales, histories and counters") {
    for (const Fp8Recipe kind : {Fp8Recipe::delayed, Fp8Recipe::current}) {
        Fp8Training quiet(recipe(kind), "off", Recompute::gelu, "all,+lm_head");
        Fp8Training evaluated(recipe(kind), "off", Recompute::gelu, "all,+lm_head");
        for (int i = 0; i < 4; i++) {
            quiet.step(i);
            const Batch batch = fixture_batch(evaluated.fixture, 7);
            evaluated.test.model.evaluate(batch.tokens.data(), batch.targets.data(), evaluated.test.stream);
            evaluated.step(i);
        }
        CHECK(quiet.states().size() == 2 * 12 + 3);
        CHECK(same_states(quiet, evaluated));
        CHECK(same_bits(quiet.weights(), evaluated.weights()));
    }
}

TEST_CASE("gpt2 fp8: weight scales from the optimizer's update equal those of a measuring pass") {
    Fp8Training updated(recipe(Fp8Recipe::delayed), "off"), measured(recipe(Fp8Recipe::delayed), "off");
    for (int i = 0; i < 4; i++) {
        updated.step(i);
        measured.step(i);
        // The same weights, set by hand, must be measured again.
        for (size_t u = 0; u < measured.test.table.units().size(); u++)
            for (size_t t = 0; t < measured.test.table.unit(u).tensors.size(); t++)
                measured.test.weights.set_tensor(u, t, measured.test.weights.get_tensor(u, t, measured.test.stream),
                                                 measured.test.stream);
        REQUIRE(measured.test.weights.to_be_measured());
        REQUIRE(!updated.test.weights.to_be_measured());
        measured.test.model.prepare_weights(measured.test.stream);
        const auto a = updated.states(), b = measured.states();
        for (size_t k = 0; k < a.size(); k++) {
            CHECK(a[k].scale == b[k].scale);
            CHECK(a[k].scale_inv == b[k].scale_inv);
            if (role_of(static_cast<int>(k)) == Fp8Role::w) CHECK(a[k].scale != 1.0f);
        }
    }
    CHECK(same_bits(updated.weights(), measured.weights()));
}

TEST_CASE("gpt2 fp8: weights in FP8 have no BF16 copy unless their layers may leave FP8") {
    Fp8Config may_leave = recipe(Fp8Recipe::delayed);
    may_leave.fallback = {1, 1, 1};
    Fp8Training run(recipe(Fp8Recipe::delayed), "off"), copied(may_leave, "off");
    size_t in_fp8 = 0;
    for (size_t u = 0; u < run.test.table.units().size(); u++) {
        run.test.weights.gather(u, run.test.stream);
        for (size_t t = 0; t < run.test.table.unit(u).tensors.size(); t++) {
            const ParameterTensor& tensor = run.test.table.unit(u).tensors[t];
            const std::string error = error_of([&] { run.test.weights.weight(u, t); });
            if (tensor.codes == CodesFrom::masters) {
                in_fp8 += tensor.count();
                CHECK(error == tensor.name + " exists in FP8 alone");
            } else {
                CHECK(error == "");
            }
        }
        run.test.weights.release(u, run.test.stream);
    }
    CHECK(in_fp8 > 0);
    CHECK(copied.test.weights.working_bytes() - run.test.weights.working_bytes() == 2 * in_fp8);
    for (int i = 0; i < 3; i++) {
        run.step(i);
        copied.step(i);
    }
    CHECK(same_bits(run.weights(), copied.weights()));

    const auto place = run.test.table.find("h.1.qkv.weight");
    CHECK(error_of([&] {
              run.test.weights.leave_fp8(place.unit, place.tensor, run.test.stream);
          }).find("layer h.1.qkv has left FP8, but this run keeps no BF16 copy") == 0);
}

TEST_CASE("gpt2 fp8: a step neither reads nor writes the BF16 copies that layers keep for leaving FP8") {
    Fp8Config config = recipe(Fp8Recipe::delayed);
    config.fallback = {1, 1, 1};
    Fp8Training run(config, "off"), untouched(config, "off");
    const size_t unit = block_unit(1);
    const std::vector<ParameterTensor>& tensors = run.test.table.unit(unit).tensors;  // matrices first
    run.test.weights.gather(unit, run.test.stream);
    for (size_t t = 0; tensors[t].decay; t++)
        set_bytes(const_cast<bf16*>(run.test.weights.weight(unit, t)), 0xFF, tensors[t].count() * sizeof(bf16),
                  run.test.stream);
    run.test.weights.release(unit, run.test.stream);
    for (int i = 0; i < 3; i++) {
        run.step(i);
        untouched.step(i);
    }
    CHECK(same_bits(run.weights(), untouched.weights()));
    run.test.weights.gather(unit, run.test.stream);
    for (size_t t = 0; t < tensors.size(); t++)
        CHECK((run.test.read(run.test.weights.weight(unit, t)).bits == 0xFFFF) == tensors[t].decay);
}
