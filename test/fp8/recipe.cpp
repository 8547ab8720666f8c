// --fp8-layers: examples, refusals, and random lists of terms against a plain set of layers.
#include "llmc/fp8/recipe.h"

#include <doctest/doctest.h>

#include <random>
#include <set>

#include "llmc/base/error.h"
#include "llmc/base/text.h"
#include "test/helpers.h"

using namespace llmc;
using namespace llmc::test;

namespace {

using Layer = std::pair<int, int>;  // block, linear

const char* const kNames[] = {"qkv", "attn_proj", "fc", "fc_proj"};

Fp8Layers parse(const std::string& text, int blocks, Fp8Scaling scaling = Fp8Scaling::tensor) {
    return fp8_layers(fp8_layers_from_text(text), blocks, {std::begin(kNames), std::end(kNames)}, scaling);
}

std::set<Layer> layers_of(const std::string& text, int blocks) {
    const Fp8Layers layers = parse(text, blocks);
    std::set<Layer> result;
    for (int block = 0; block < blocks; block++)
        for (int l = 0; l < 4; l++)
            if (layers.contains("h." + std::to_string(block) + "." + kNames[l])) result.insert({block, l});
    CHECK(layers.names.size() == result.size() + layers.contains(kHeadLayer));
    return result;
}

std::string refusal(const std::string& text, int blocks = 4) {
    return error_of([&] { parse(text, blocks); }, ExitCode::bad_flags);
}

}  // namespace

TEST_CASE("--fp8-layers: examples") {
    CHECK(layers_of("all", 3).size() == 12);
    CHECK(layers_of("none", 3).empty());
    CHECK(layers_of("auto", 3) == layers_of("all,-first", 3));
    CHECK(layers_of("auto", 1).size() == 4);
    CHECK(layers_of("auto,-last,+block0.fc", 3) == std::set<Layer>{{0, 2}, {1, 0}, {1, 1}, {1, 2}, {1, 3}});
    CHECK(parse("auto", 3).contains(kHeadLayer));
    CHECK(parse("all,-fc,-forward", 3).names == parse("all,-fc", 3).names);
    CHECK(parse("all", 3).forward);
    CHECK(!parse("-forward,all", 3).forward);
    CHECK(parse("all,-forward,+forward", 3).forward);
    for (const Fp8Scaling scaling : {Fp8Scaling::block, Fp8Scaling::mx})
        CHECK(parse("auto", 3, scaling) == parse("all,-first", 3, scaling));
    CHECK(layers_of("fc", 3) == std::set<Layer>{{0, 2}, {1, 2}, {2, 2}});
    CHECK(layers_of("none,+block1.fc_proj", 3) == std::set<Layer>{{1, 3}});
    CHECK(layers_of("none,block2", 3) == std::set<Layer>{{2, 0}, {2, 1}, {2, 2}, {2, 3}});
    CHECK(layers_of("all,-first,-last", 3) == std::set<Layer>{{1, 0}, {1, 1}, {1, 2}, {1, 3}});
    CHECK(layers_of("all,-first,-last,-block1.qkv,-fc_proj", 3) == std::set<Layer>{{1, 1}, {1, 2}});
    CHECK(layers_of("all,-fc_proj,+block0.fc_proj,-last,-block1", 3) ==
          std::set<Layer>{{0, 0}, {0, 1}, {0, 2}, {0, 3}});
    CHECK(layers_of("all,-all", 2).empty());
    CHECK(layers_of("+first", 1).size() == 4);
    CHECK(layers_of("none,+block11.fc", 12) == std::set<Layer>{{11, 2}});  // not block1
    CHECK(layers_of("all,+lm_head", 3).size() == 12);
    CHECK(parse("all,+lm_head", 3).contains(kHeadLayer));
    CHECK(parse("lm_head", 3).contains(kHeadLayer));
    for (const char* text : {"all", "qkv", "none", "all,+lm_head,-lm_head", "lm_head,none"})
        CHECK(!parse(text, 3).contains(kHeadLayer));
    CHECK(refusal("lm_heads").find("lm_head") != std::string::npos);
}

TEST_CASE("--fp8-layers refuses unknown layers and names them") {
    for (const std::string& text :
         split("|,|all,|all,,-first|none,-|none,+|all,-lm_heads|all,-block4|all,block|all,-block1.|"
               "all,-block1.up|all,-block-1|all,-block-0|all,-blockone|all,-block1x|all,-block99999999999|all -first|"
               "all, -first|--first|first.fc|ALL|-auto|auto -last|autos",
               '|')) {
        CAPTURE(text);
        CHECK(refusal(text).find("--fp8-layers") == 0);
        CHECK(refusal(text).find(": unknown layer '") != std::string::npos);
    }
    CHECK(refusal("all,-block4").find("'block4'") != std::string::npos);
    CHECK(refusal("all,-block4").find("block0 to block3") != std::string::npos);
    CHECK(refusal("all,-block3") == "");
}

TEST_CASE("--fp8-layers: random lists of terms give the same layers as a plain set") {
    std::mt19937 engine(7);
    for (int round = 0; round < 300; round++) {
        const int blocks = 1 + static_cast<int>(engine() % 12);
        std::set<Layer> expected;
        std::string text;
        const size_t terms = 1 + engine() % 6;
        for (size_t t = 0; t < terms; t++) {
            const char* sign = engine() % 3 == 0 ? "" : engine() % 2 ? "+" : "-";
            const int block = static_cast<int>(engine() % static_cast<unsigned>(blocks));
            const int linear = static_cast<int>(engine() % 4);
            const unsigned kind = engine() % 7;
            const std::string number = "block" + std::to_string(block);
            const std::string terms_text[] = {
                "all", "none", "first", "last", number, kNames[linear], number + "." + kNames[linear]};
            text += (t ? "," : "") + std::string(sign) + terms_text[kind];
            for (int b = 0; b < blocks; b++)
                for (int l = 0; l < 4; l++) {
                    const bool meant[] = {
                        true, true, b == 0, b == blocks - 1, b == block, l == linear, b == block && l == linear};
                    if (!meant[kind]) continue;
                    if (*sign == '-' || kind == 1)
                        expected.erase({b, l});
                    else
                        expected.insert({b, l});
                }
        }
        CAPTURE(text);
        CAPTURE(blocks);
        CHECK(layers_of(text, blocks) == expected);
    }
}

TEST_CASE("--fp8-fallback: accepted and refused values") {
    CHECK(fp8_fallback_from_text("off").steps == 0);
    const Fp8FallbackRule rule = fp8_fallback_from_text("0.01,0.5,10");
    CHECK(rule.saturated == 0.01f);
    CHECK(rule.underflowed == 0.5f);
    CHECK(rule.steps == 10);
    CHECK(fp8_fallback_from_text("1,1,1").steps == 1);
    for (const char* text : {"", "on", "0.01", "0.01,0.5", "0,0.5,10", "0.01,0,10", "-0.1,0.5,1", "1.1,0.5,1",
                             "0.1,1.5,1", "nan,0.5,1", "0.1,0.5,0", "0.1,0.5,-3", "0.1,0.5,10x", "0.1,0.5,10,"}) {
        CAPTURE(text);
        CHECK_THROWS_AS(fp8_fallback_from_text(text), Error);
    }
}

TEST_CASE("--fp8-until: accepted and refused values") {
    CHECK(fp8_until_from_text("off").step(1000) == Fp8Until::kNever);
    CHECK(fp8_until_from_text("9400").step(1000) == 9400);
    CHECK(fp8_until_from_text("94%").step(1000) == 940);
    CHECK(fp8_until_from_text("99.9%").step(1001) == 999);
    CHECK(fp8_until_from_text("100%").step(7) == 7);
    CHECK(fp8_until_from_text("94%").step(-1) < Fp8Until::kNever);
    for (const char* text :
         {"", "on", "0", "0%", "-1", "1.5", "101%", "94 %", "%", "94%%", "nan", "inf", "1e16", "94%:forward"}) {
        CAPTURE(text);
        CHECK_THROWS_AS(fp8_until_from_text(text), Error);
    }
}
