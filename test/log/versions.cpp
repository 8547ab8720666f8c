// The versions that a program reports for itself and its libraries.
// build: per device, gpu test
#include "llmc/log/versions.h"

#include <doctest/doctest.h>

#include <map>

#include "llmc/flags/options.h"

using namespace llmc;

TEST_CASE("versions: numbers of libraries") {
    CHECK(dotted_version(13000, {1000, 10}) == "13.0");
    CHECK(dotted_version(12090, {1000, 10}) == "12.9");
    CHECK(dotted_version(130101, {10000, 100, 1}) == "13.1.1");
    CHECK(dotted_version(22809, {10000, 100, 1}) == "2.28.9");
}

TEST_CASE("versions: the checkout, the compiler and the libraries of this build") {
    const Versions all = build_and_library_versions();
    const std::map<std::string, std::string> by_name(all.begin(), all.end());
    CHECK(by_name.size() == all.size());
    for (const auto& [name, version] : all) {
        CAPTURE(name);
        CHECK(!version.empty());
        CHECK(version_text().find("\n" + name + ": " + version + "\n") != std::string::npos);
    }
    CHECK(by_name.at("compiler").find(std::to_string(__GNUC__) + ".") != std::string::npos);
    CHECK(by_name.count("git") == 1);
    CHECK(by_name.count("built_for") == 1);
#if LLMC_CUDA
    for (const char* library : {"cuda", "cuda_runtime", "cublaslt"}) CHECK(by_name.count(library) == 1);
    CHECK(by_name.count("openblas") == 0);
#else
    CHECK(by_name.at("openblas").rfind("OpenBLAS ", 0) == 0);
    CHECK(by_name.count("openblas_core") == 1);
    CHECK(by_name.count("cuda") == 0);
#endif
}
