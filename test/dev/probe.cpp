// The probe's own parts: its list of cases, its reference, its comparison (which must see a broken result), its file.
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "dev/probe/ceilings.h"
#include "dev/probe/record.h"
#include "dev/probe/reference.h"
#include "dev/probe/result_file.h"
#include "llmc/base/json.h"
#include "test/helpers.h"
#include "test/kernel_test.h"

using namespace llmc;
using namespace llmc::probe;
using llmc::test::test_stream;

namespace {

std::vector<Case> some_cases(const std::string& text) {
    std::vector<Case> found;
    for (const Case& c : all_cases(Shapes::tiny))
        if (c.used && c.key().find(text) != std::string::npos) found.push_back(c);
    return found;
}

bool can_run(const Case& c) { return !is_fp8(c.product.type) || device_info().has_fp8; }

}  // namespace

TEST_CASE("probe: every layer is asked for every combination, those of training first") {
    const std::vector<Case> cases = all_cases(Shapes::layers);
    std::set<std::string> keys;
    std::map<std::string, int> of_layer, used_of_layer;
    bool others = false;
    for (const Case& c : cases) {
        CHECK(keys.insert(c.key()).second);
        CHECK_FALSE((c.used && others));
        others |= !c.used;
        if (c.used) CHECK(c.in_matmul());
        const std::string layer = fmt::format("{} {} {}", c.model, c.layer, c.product.N);
        of_layer[layer]++;
        used_of_layer[layer] += c.used;
    }
    // Three products: four combinations of BF16, and of each FP8 pair eight with tensor scales and eight with blocks.
    const int combinations = 3 * (4 + 2 * 16);
    // bf16: forward, dgrad, wgrad twice. FP8: forward; dgrad and wgrad twice, from E5M2 and E4M3; with blocks the four
    // of BF16. The head has neither FP8's forward nor blocks.
    const int tensor_scales = 1 + 2 * 3, blocks = 4;
    for (const char* model : {"124M", "355M", "774M", "1558M", "6.7B"})
        for (const char* layer : {"qkv", "attn_proj", "fc", "fc_proj", "lm_head"})
            for (const int N : {16384, 4096, 1040, 1000, 1001}) {
                const std::string name = fmt::format("{} {} {}", model, layer, N);
                CAPTURE(name);
                const bool head = std::string(layer) == "lm_head";
                // 1600 is no multiple of 128, but its 6400 are: no layer of the 1558M model has blocks.
                const bool has_blocks = N % 128 == 0 && std::string(model) != "1558M";
                const int used = 4 + (N % 16 != 0 ? 0 : tensor_scales - head + (has_blocks && !head ? blocks : 0));
                CHECK(used_of_layer[name] == used);
                CHECK(of_layer[name] == (N == 4096 || N == 1001 ? used : combinations));
            }
    CHECK(used_of_layer["square square 8192"] == 4 + tensor_scales + blocks);
}

TEST_CASE("probe: a sample has both ends and a place in every part") {
    CHECK(sample_of(5, 16, 1) == std::vector<int>{0, 1, 2, 3, 4});
    const std::vector<int> sample = sample_of(50304, 32, 1);
    REQUIRE(sample.size() == 32);
    CHECK(sample.front() == 0);
    CHECK(sample.back() == 50303);
    for (size_t i = 1; i < sample.size(); i++) {
        CHECK(sample[i] > sample[i - 1]);
        CHECK(sample[i] - sample[i - 1] < 2 * 50304 / 30);
    }
    CHECK(sample_of(50304, 32, 1) == sample);
    CHECK(sample_of(50304, 32, 2) != sample);
}

TEST_CASE("probe: the products of training are right, and repeatable") {
    test_stream();
    const std::vector<Case> cases = some_cases("");
    Runner runner(cases, test_stream());
    for (const Case& c : cases) {
        if (!can_run(c)) continue;
        const Outcome outcome = runner.run(c);
        CAPTURE(json_text(record_of(c, outcome)));
        CHECK(outcome.right(c));
        CHECK(outcome.repeatable);
        CHECK(outcome.us > 0);
        CHECK(outcome.through == "matmul");
        CHECK(record_of(c, outcome)["right"] == true);
    }
}

TEST_CASE("probe: a broken result is seen") {
    test_stream();
    for (const char* text : {"tiny fc forward bf16 N=128", "tiny fc wgrad e4m3 N=128 C=128 OC=256 none beta=1"}) {
        const Case c = some_cases(text).at(0);
        if (!can_run(c)) continue;
        Runner runner({c}, test_stream());
        CHECK(runner.run(c).right(c));
        SUBCASE("a line is missing") {
            runner.tamper = [](void* result, const Product& p, stream_t stream) {
                const size_t line = static_cast<size_t>(Gemm(p).columns) * bytes_of(p.result_element());
                set_bytes(static_cast<char*>(result) + (static_cast<size_t>(Gemm(p).rows) - 1) * line, 0, line, stream);
            };
            const Outcome outcome = runner.run(c);
            CHECK_FALSE(outcome.right(c));
            CHECK(outcome.error > 0.1);
            CHECK(record_of(c, outcome)["right"] == false);
        }
        SUBCASE("an element that is in no sample was not written") {
            runner.tamper = [](void* result, const Product& p, stream_t stream) {
                const size_t element = bytes_of(p.result_element());
                const std::vector<int> rows = sample_of(Gemm(p).rows, 16, kFirst);
                int row = 0;
                while (std::count(rows.begin(), rows.end(), row)) row++;
                set_bytes(static_cast<char*>(result) + static_cast<size_t>(row) * Gemm(p).columns * element, 0xFF,
                          element, stream);
            };
            const Outcome outcome = runner.run(c);
            CHECK_FALSE(outcome.right(c));
            CHECK(outcome.nonfinite == 1);
            CHECK(outcome.error < c.error_limit());
        }
        SUBCASE("nothing was written") {
            runner.idle = true;
            const Outcome outcome = runner.run(c);
            CHECK_FALSE(outcome.right(c));
            CHECK(outcome.nonfinite == (c.product.accumulate ? 0 : Gemm(c.product).result_size()));
        }
        SUBCASE("it changes from run to run") {
            runner.tamper = [](void* result, const Product& p, stream_t stream) {
                static int turn = 0;
                set_bytes(result, turn++ % 2, bytes_of(p.result_element()), stream);
            };
            CHECK_FALSE(runner.run(c).repeatable);
        }
    }
}

TEST_CASE("probe: the reference uses scales, bias and what was there") {
    const Product plain{Product::wgrad, OperandType::e4m3, 32, 16, 16, false, false};
    const std::vector<int> places = {0, 3, 15};
    const std::vector<double> expected = llmc::probe::reference(plain, places, places);
    for (const auto change : {0, 1, 2}) {
        Product other = plain;
        if (change == 0) other.bias = true;
        if (change == 1) other.accumulate = true;
        if (change == 2) other.scaling = Fp8Scaling::block;
        CHECK(relative_error(llmc::probe::reference(other, places, places), expected) > 0.01);
    }
    // By hand: dweight (OC, C) = dout (OC, N) * inp (C, N)^T.
    double sum = 0;
    for (size_t k = 0; k < 32; k++)
        sum += static_cast<double>(to_float(to_e4m3_portable(value_at(kFirst, 3 * 32 + k)))) * 0.75 *
               static_cast<double>(to_float(to_e4m3_portable(value_at(kSecond, 15 * 32 + k)))) * 1.375;
    CHECK(expected[1 * 3 + 2] == doctest::Approx(sum).epsilon(1e-12));
}

TEST_CASE("probe: a file of results is JSON after every record, and is continued") {
    const test::TemporaryDirectory directory;
    const std::string path = directory / "results.json";
    const nlohmann::ordered_json header = {{"card", "A"}, {"date", "today"}};
    {
        ResultFile results(path, header, {"card"});
        CHECK_FALSE(results.continued());
        CHECK(parse_json(test::read_file(path))["records"].empty());
        for (int i = 0; i < 3; i++) {
            results.append({{"case", fmt::format("case {}", i)}, {"i", i}});
            CHECK(parse_json(test::read_file(path))["records"].size() == static_cast<size_t>(i) + 1);
        }
        CHECK(results.has("case 2"));
        CHECK_FALSE(results.has("case 3"));
    }
    // A write that was cut: the whole lines stay.
    const std::string text = test::read_file(path);
    std::ofstream(path, std::ios::trunc) << text.substr(0, text.find("case 2"));
    {
        ResultFile results(path, {{"card", "A"}, {"date", "tomorrow"}}, {"card"});
        CHECK(results.continued());
        CHECK(results.count() == 2);
        CHECK_FALSE(results.has("case 2"));
        results.append({{"case", "case 2"}});
    }
    const nlohmann::json all = parse_json(test::read_file(path));
    CHECK(all["date"] == "today");
    CHECK(all["records"].size() == 3);
    CHECK_THROWS_AS(ResultFile(path, {{"card", "B"}}, {"card"}), Error);
    std::ofstream(path, std::ios::trunc) << "not JSON\n";
    CHECK_THROWS_AS(ResultFile(path, header, {"card"}), Error);
}

TEST_CASE("probe: ceilings and header") {
    const nlohmann::ordered_json ceilings = measure_ceilings(test_stream());
    for (const char* name : {"copy_gbs", "copy_engine_gbs", "fill_gbs", "mma_sync_bf16_tflops"}) {
        CAPTURE(name);
        CHECK(ceilings.at(name).get<double>() > 0);
    }
    const nlohmann::ordered_json header = header_of("probe --out x");
    CHECK(header["command"] == "probe --out x");
    CHECK(header["measured"] == !device_info().is_host);
}
