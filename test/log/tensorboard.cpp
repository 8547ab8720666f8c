// Event files for TensorBoard: checksums, names and framing. test_watching.py reads whole runs back with TensorBoard.
#include "llmc/log/tensorboard.h"
#include "llmc/base/json.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "llmc/base/error.h"
#include "test/temporary_directory.h"

using namespace llmc;
using llmc::test::read_file;
using llmc::test::TemporaryDirectory;
using nlohmann::ordered_json;
namespace fs = std::filesystem;

namespace {

std::set<std::string> names_in(const fs::path& directory) {
    std::set<std::string> names;
    for (const fs::directory_entry& entry : fs::directory_iterator(directory))
        names.insert(entry.path().filename().string());
    return names;
}

// The events of a file; each is checked against its length and both checksums.
std::vector<std::string> events_of(const fs::path& file) {
    const std::string data = read_file(file.string());
    const auto checksum_holds = [&](size_t at, size_t length) {
        const uint32_t crc = crc32c(std::string_view(data).substr(at, length));
        const uint32_t masked = ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
        return std::memcmp(data.data() + at + length, &masked, 4) == 0;
    };
    std::vector<std::string> events;
    for (size_t at = 0; at < data.size();) {
        uint64_t length = 0;
        REQUIRE(at + 12 <= data.size());
        std::memcpy(&length, data.data() + at, sizeof length);
        REQUIRE(at + 16 + length <= data.size());
        CHECK(checksum_holds(at, 8));
        CHECK(checksum_holds(at + 12, length));
        events.push_back(data.substr(at + 12, length));
        at += 16 + length;
    }
    return events;
}

}  // namespace

TEST_CASE("tensorboard: CRC-32C") {
    CHECK(crc32c("") == 0);
    // RFC 3720, B.4, as numbers.
    CHECK(crc32c(std::string(32, '\0')) == 0x8a9136aau);
    CHECK(crc32c(std::string(32, '\xff')) == 0x62a8ab43u);
    CHECK(crc32c("123456789") == 0xe3069283u);
}

TEST_CASE("tensorboard: names of scalars") {
    const auto record = parse_json<ordered_json>(R"({"step": 3, "loss": 2.5, "norm": null, "nonfinite": {"norm": "inf"},
        "batch_hash": "7", "products": {"fp8": 24}, "memory": {"weights": {"planned": 1}},
        "fp8": [{"tensor": "h.0.fc.x", "amax": null, "scale": 4, "nonfinite": {"amax": "nan"}},
                {"tensor": "h.0.fc.w", "saturated": 2, "nonfinite": 5}],
        "fp8_errors": [{"layer": "h.0.fc", "forward_error": 0.03}]})");
    const auto found = scalars_of(record);
    const std::vector<std::string> names = {"loss",
                                            "norm",
                                            "products/fp8",
                                            "fp8/h.0.fc.x/amax",
                                            "fp8/h.0.fc.x/scale",
                                            "fp8/h.0.fc.w/saturated",
                                            "fp8/h.0.fc.w/nonfinite",
                                            "fp8/h.0.fc/forward_error"};
    REQUIRE(found.size() == names.size());
    for (size_t i = 0; i < names.size(); i++) CHECK(found[i].first == names[i]);
    CHECK(found[0].second == 2.5);
    CHECK(found[1].second == INFINITY);
    CHECK(std::isnan(found[3].second));
    CHECK(found[6].second == 5);
    CHECK(scalars_of({{"step", 1}, {"sample", "text"}}).empty());
}

TEST_CASE("tensorboard: every record is flushed; a later file is read later and says what to leave out") {
    TemporaryDirectory base;
    std::vector<std::string> names;
    for (const int64_t purge_step : {-1, 300, 2}) {
        const std::set<std::string> before = fs::exists(base.path) ? names_in(base.path) : std::set<std::string>();
        TensorBoardFile file(base.path.string(), purge_step);
        for (const std::string& name : names_in(base.path))
            if (!before.contains(name)) names.push_back(name);
        file.write({{"step", 1}, {"loss", 0.5}});
        file.write({{"step", 1}, {"sample", "no number"}});
        const std::vector<std::string> events = events_of(base.path / names.back());
        REQUIRE(events.size() == (purge_step < 0 ? 2 : 3));
        // After the time (9 bytes): no step or a varint, then version, SessionLog{START} and Summary.
        CHECK(events[0].substr(9) == std::string("\x10\0\x1a\x0d", 4) + "brain.Event:2");
        if (purge_step == 300) CHECK(events[1].substr(9) == "\x10\xac\x02\x3a\x02\x08\x01");
        CHECK(events.back().substr(9) == std::string("\x10\x01\x2a\x0d\x0a\x0b\x0a\x04loss\x15\0\0\0\x3f", 17));
    }
    REQUIRE(names.size() == 3);
    CHECK(std::is_sorted(names.begin(), names.end()));
}

TEST_CASE("tensorboard: a place that cannot be written") {
    TemporaryDirectory base;
    std::ofstream(base.path) << "a file";
    CHECK_THROWS_AS(TensorBoardFile((base.path / "tensorboard").string(), -1), Error);
}
