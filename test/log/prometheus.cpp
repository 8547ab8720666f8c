// The text file for Prometheus: what it says, and that a run outlives it.
#include "llmc/log/prometheus.h"

#include <doctest/doctest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "llmc/base/error.h"
#include "llmc/log/metrics.h"
#include "test/temporary_directory.h"

using namespace llmc;
using llmc::test::read_file;
using llmc::test::TemporaryDirectory;
namespace fs = std::filesystem;

namespace {

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("prometheus: the newest of every number") {
    TemporaryDirectory base;
    fs::create_directories(base.path);
    const std::string file = base / "run.prom";
    PrometheusFile prometheus(file, "runs/a");
    CHECK(read_file(file) == "");
    prometheus.write({{"step", 1}, {"loss", 5.5}, {"tokens", 4096}, {"batch_hash", "x"}, {"unknown", 3}});
    prometheus.write({{"step", 2}, {"loss", 0.1}, {"tokens", 8192}});
    prometheus.write({{"step", 2}, {"val_loss", 4.25}});
    prometheus.write({{"step", 2}, {"val_loss_code", 3.5}});
    const std::string text = read_file(file);
    CHECK(contains(text,
                   "# HELP train_gpt_step Optimizer steps taken.\n# TYPE train_gpt_step gauge\n"
                   "train_gpt_step{run=\"runs/a\"} 2\n"));
    CHECK(contains(text, "train_gpt_loss{run=\"runs/a\"} 0.10000000000000001\n"));
    CHECK(contains(text, "# TYPE train_gpt_tokens_total counter\ntrain_gpt_tokens_total{run=\"runs/a\"} 8192\n"));
    CHECK(contains(text,
                   "train_gpt_validation_loss{run=\"runs/a\"} 4.25\n"
                   "train_gpt_validation_loss{run=\"runs/a\",set=\"code\"} 3.5\n"));
    CHECK(!contains(text, "unknown"));
    CHECK(!contains(text, "learning_rate"));  // not known yet
    CHECK(!fs::exists(file + ".tmp"));
}

TEST_CASE("prometheus: without a directory, labels that need escapes, numbers that are not finite") {
    TemporaryDirectory base;
    fs::create_directories(base.path);
    const std::string file = base / "run.prom";
    nlohmann::ordered_json record = {{"step", 1}};
    put_number(record, "loss", NAN);
    put_number(record, "norm", -INFINITY);
    PrometheusFile(file, "").write(record);
    CHECK(contains(read_file(file), "train_gpt_loss NaN\n"));
    CHECK(contains(read_file(file), "train_gpt_gradient_norm -Inf\n"));
    PrometheusFile(file, "a\\b\"c\nd\xe9").write(record);
    CHECK(contains(read_file(file), "train_gpt_step{run=\"a\\\\b\\\"c\\nd\xef\xbf\xbd\"} 1\n"));
}

TEST_CASE("prometheus: a place that cannot be written is refused, and later failures end nothing") {
    TemporaryDirectory base;
    fs::create_directories(base.path);
    try {
        PrometheusFile(base / "nowhere/run.prom", "");
        FAIL("it was written");
    } catch (const Error& error) {
        CHECK(error.code() == ExitCode::bad_flags);
        CHECK(contains(error.what(), "--prometheus: cannot write"));
    }
    PrometheusFile prometheus(base / "run.prom", "");
    fs::remove_all(base.path);
    prometheus.write({{"step", 1}});
    prometheus.write({{"step", 2}});
    fs::create_directories(base.path);
    prometheus.write({{"step", 3}});
    CHECK(contains(read_file(base / "run.prom"), "train_gpt_step 3\n"));
}
