// Findings and requests as JSON, and the file in which results are kept.
#include "llmc/check/findings.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "llmc/base/json.h"
#include "test/helpers.h"

namespace llmc::test {
namespace {

using Json = nlohmann::ordered_json;

Findings some_findings() {
    Findings findings;
    findings["gelu C=64"] = {"kernels", "", "", 0.25, {}};
    findings["gelu fp8"] = {"kernels", "gelu_fp8", "out[3] is 1, must be 2", 0.5, {}};
    findings["matmul"] = {
        kProductFamily, "", "", 1.5, {{{"00ff", false, false}, "refused", 0}, {{"01", false, true}, "", 0.125}},
        {{"fp8", 3e14}}};
    findings["another matmul"] = {kProductFamily, "", "", 1.5, {}, {{"fp8", 5e14}, {"bf16", 2e14}}};
    findings["copy"] = {"memory", "", "", 0.1, {}, {{"copy", 4e12}}};
    return findings;
}

}  // namespace

TEST_CASE("Findings and requests survive JSON") {
    const Json json = some_findings();
    CHECK(Json(parse_json<Json>(json_text(json)).get<Findings>()) == json);
    CHECK(json["gelu fp8"]["right"] == false);
    CHECK(json["matmul"]["ways"][1]["separate_bias"] == true);
    CheckRequest request;
    request.run = "a configuration, \"quoted\"";
    request.products = {{Product::wgrad, OperandType::e5m2_e4m3, 16, 32, 48, false, true, Fp8Scaling::tensor}};
    request.preferred = {{"matmul", "01"}};
    request.found = some_findings();
    const CheckRequest again = parse_json<Json>(json_text(Json(request)));
    CHECK(Json(again) == Json(request));
    CHECK(again.products == request.products);
    CHECK(again.run == request.run);
    const ProductChoices choices = {
        {"a", {"00", false, true}}, {"b", {}}, {"c", {"01", false, false, size_t{1} << 22}}};
    const ProductChoices read = Json(choices);
    CHECK(read == choices);
    CHECK(read.at("c").workspace == size_t{1} << 22);
    CHECK(!read.at("a").workspace);
}

TEST_CASE("Rates of findings are the highest of each") {
    CHECK(rates_of(some_findings()) == Rates{{"bf16", 2e14}, {"fp8", 5e14}, {"copy", 4e12}});
    CHECK(rates_of({{"gelu", {}}}).empty());
}

TEST_CASE("Kept results: additions are merged and loaded, and a file with another identity is ignored") {
    const TemporaryDirectory temporary;
    const std::string directory = temporary.path.string();
    const KeptResults kept(directory, {{"device", "A"}}), other(directory, {{"device", "B"}});
    CHECK(kept.load().empty());
    CHECK(kept.add(some_findings()) == "");
    CHECK(Json(kept.load()) == Json(some_findings()));
    CHECK(other.load().empty());
    CHECK(kept.add({{"gelu fp8", {"kernels", "gelu_fp8", "", 0.5, {}}}}) == "");
    CHECK(kept.load().size() == 5);
    CHECK(kept.load()["gelu fp8"].problem == "");
    // Another identity with the same name of a file, and a file that is damaged, are as good as none.
    std::filesystem::copy_file(kept.path(), other.path());
    CHECK(other.load().empty());
    std::ofstream(kept.path()) << "{\"identity\": ";
    CHECK(kept.load().empty());
    CHECK(kept.add(some_findings()) == "");
    CHECK(kept.load().size() == 5);
    CHECK(KeptResults("", {}).add({}) != "");
    CHECK(KeptResults("/proc/no/such/place", {}).add({}) != "");
}

TEST_CASE("Kept results: threads that add at the same time lose nothing") {
    const TemporaryDirectory temporary;
    const std::string directory = temporary.path.string();
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; t++)
        threads.emplace_back([&, t] {
            for (int i = 0; i < 5; i++)
                KeptResults(directory, {{"device", "A"}})
                    .add({{std::to_string(t) + "." + std::to_string(i), {"kernels", "", "", 0, {}}}});
        });
    for (std::thread& thread : threads) thread.join();
    CHECK(KeptResults(directory, {{"device", "A"}}).load().size() == 20);
}

}  // namespace llmc::test
