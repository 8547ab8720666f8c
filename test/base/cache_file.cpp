// The file that programs keep in the user's cache directory.
#include "llmc/base/cache_file.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "test/helpers.h"

namespace llmc::test {
namespace {

using Json = nlohmann::ordered_json;

const Json kIdentity = {{"device", "A"}};

}  // namespace

TEST_CASE("Cache: additions are merged and loaded, and a file with another identity is ignored") {
    const TemporaryDirectory temporary;
    const std::string directory = temporary.path.string();
    const CacheFile cache(directory, "card", kIdentity), other(directory, "card", {{"device", "B"}});
    CHECK(cache.path().find("/card-") != std::string::npos);
    CHECK(cache.path() != other.path());
    CHECK(cache.load() == Json::object());
    CHECK(cache.add({{"rates", {{"copy", 4e12}}}, {"checked", nullptr}}) == "");
    CHECK(cache.add({{"rates", {{"bf16", 6e14}}}, {"checked", true}}) == "");
    CHECK(cache.load() == Json{{"rates", {{"copy", 4e12}, {"bf16", 6e14}}}, {"checked", true}});
    CHECK(other.load().empty());
    // Another identity with the same name of a file, and a file that is damaged, are as good as none.
    std::filesystem::copy_file(cache.path(), other.path());
    CHECK(other.load().empty());
    std::ofstream(cache.path()) << "{\"identity\": ";
    CHECK(cache.load().empty());
    CHECK(cache.add({{"checked", false}}) == "");
    CHECK(cache.load() == Json{{"checked", false}});
    CHECK(CacheFile("", "card", {}).add({}) != "");
    CHECK(CacheFile("/proc/no/such/place", "card", {}).add({}) != "");
}

TEST_CASE("Cache: threads that add at the same time lose nothing") {
    const TemporaryDirectory temporary;
    const std::string directory = temporary.path.string();
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; t++)
        threads.emplace_back([&, t] {
            for (int i = 0; i < 5; i++)
                CacheFile(directory, "card", kIdentity).add({{std::to_string(t) + "." + std::to_string(i), i}});
        });
    for (std::thread& thread : threads) thread.join();
    CHECK(CacheFile(directory, "card", kIdentity).load().size() == 20);
}

}  // namespace llmc::test
