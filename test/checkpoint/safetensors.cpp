// Safetensors files: tensors come back as written, malformed files are refused with the reason, and a failed write
// leaves the old file unchanged.
#include "llmc/checkpoint/safetensors.h"

#include <doctest/doctest.h>
#include <signal.h>
#include <sys/resource.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>

#include "test/helpers.h"

using namespace llmc;
using namespace llmc::test;

namespace {

// A file with this header and data, valid or not.
std::string raw_file(const std::string& header, const std::string& data) {
    const uint64_t length = header.size();
    return std::string(reinterpret_cast<const char*>(&length), 8) + header + data;
}

// The reason why a file of these bytes is refused.
std::string refusal(const std::string& bytes) {
    TemporaryDirectory folder;
    make_file(folder / "x", bytes);
    return checkpoint_error([&] { SafetensorsFile file(folder / "x"); });
}

std::string entry(const std::string& name, const std::string& dtype, const std::string& shape,
                  const std::string& offsets) {
    return "\"" + name + "\":{\"dtype\":\"" + dtype + "\",\"shape\":" + shape + ",\"data_offsets\":" + offsets + "}";
}

void write_one(const std::string& path, const std::string& name, const std::string& dtype,
               const std::vector<int64_t>& shape, const void* data, size_t bytes) {
    SafetensorsWriter writer(path, {{name, dtype, shape}}, {});
    writer.write(name, data, bytes);
    writer.finish();
}

// While it lives, this process cannot make a file longer than `bytes`, which simulates a full disk.
class FileSizeLimit {
public:
    explicit FileSizeLimit(rlim_t bytes) {
        old_handler_ = ::signal(SIGXFSZ, SIG_IGN);
        ::getrlimit(RLIMIT_FSIZE, &old_limit_);
        const rlimit limit = {bytes, old_limit_.rlim_max};
        ::setrlimit(RLIMIT_FSIZE, &limit);
    }
    ~FileSizeLimit() {
        ::setrlimit(RLIMIT_FSIZE, &old_limit_);
        ::signal(SIGXFSZ, old_handler_);
    }

private:
    rlimit old_limit_ = {};
    void (*old_handler_)(int) = nullptr;
};

}  // namespace

TEST_CASE("safetensors: tensors of every type are read as they were written") {
    TemporaryDirectory folder;
    const std::string path = folder / "x.safetensors";
    const std::vector<float> floats = {1.5f, -0.0f, INFINITY, 1e-42f, 3.25f, 7.0f};
    const std::vector<uint8_t> bytes = {1, 2, 255};
    const std::vector<int64_t> longs = {-1, std::numeric_limits<int64_t>::min()};
    const double scalar = 0.1;
    {
        SafetensorsWriter writer(path,
                                 {{"bytes", "U8", {3}},
                                  {"matrix", "F32", {2, 3}},
                                  {"nothing", "BF16", {0, 5}},
                                  {"longs \"quoted\"", "I64", {2}},
                                  {"scalar", "F64", {}}},
                                 {{"step", "12"}, {"name", "d12"}});
        writer.write("scalar", &scalar, sizeof scalar);
        writer.write("matrix", floats.data(), 24);
        writer.write("longs \"quoted\"", longs.data(), 16);
        writer.write("nothing", nullptr, 0);
        writer.write("bytes", bytes.data(), 3);
        CHECK(!std::filesystem::exists(path));
        writer.finish();
    }
    CHECK(!std::filesystem::exists(path + ".tmp"));

    const SafetensorsFile file(path);
    CHECK(file.metadata() == std::map<std::string, std::string>{{"step", "12"}, {"name", "d12"}});
    CHECK(file.tensors().size() == 5);
    CHECK(file.contains("bytes"));
    CHECK(!file.contains("__metadata__"));
    CHECK(file.info("matrix").shape == std::vector<int64_t>{2, 3});
    CHECK(file.info("matrix").dtype == "F32");
    CHECK(file.info("matrix").elements() == 6);
    CHECK(file.info("nothing").bytes() == 0);
    CHECK(file.info("scalar").shape.empty());

    std::vector<float> floats_back(6);
    std::vector<uint8_t> bytes_back(3);
    std::vector<int64_t> longs_back(2);
    file.read("matrix", floats_back.data(), 24);
    file.read("bytes", bytes_back.data(), 3);
    file.read("longs \"quoted\"", longs_back.data(), 16);
    CHECK(std::memcmp(floats.data(), floats_back.data(), 24) == 0);
    CHECK(bytes_back == bytes);
    CHECK(longs_back == longs);
    CHECK(file.read_floats("scalar") == std::vector<float>{0.1f});
    CHECK(file.read_floats("nothing").empty());

    float middle[2] = {};
    file.read_range("matrix", 16, middle, 8);
    CHECK(middle[0] == 3.25f);
    CHECK(middle[1] == 7.0f);
    CHECK(
        contains(checkpoint_error([&] { file.read_range("matrix", 20, middle, 8); }), "has 24 bytes, 8 from byte 20"));
    CHECK(contains(checkpoint_error([&] { file.read_range("matrix", ~uint64_t{0}, middle, 8); }), "has 24 bytes"));
    CHECK(contains(checkpoint_error([&] { file.read("matrix", floats_back.data(), 20); }),
                   "F32 (2, 3) has 24 bytes, 20 were"));
    CHECK(contains(checkpoint_error([&] { file.read("Matrix", floats_back.data(), 24); }), "has no tensor Matrix"));
    CHECK(contains(checkpoint_error([&] { file.read_floats("bytes"); }), "dtype U8"));
}

TEST_CASE("safetensors: every tensor is aligned to its element") {
    TemporaryDirectory folder;
    const std::string path = folder / "x";
    const char zeros[8] = {};
    {
        SafetensorsWriter writer(path, {{"a", "U8", {1}}, {"b", "F32", {1}}, {"c", "BF16", {1}}, {"d", "F64", {1}}},
                                 {});
        for (const char* name : {"a", "b", "c", "d"}) {
            writer.write(name, zeros, name[0] == 'a' ? 1 : name[0] == 'b' ? 4 : name[0] == 'c' ? 2 : 8);
        }
        writer.finish();
    }
    const SafetensorsFile file(path);
    const uint64_t data_start = std::filesystem::file_size(path) - 15;
    CHECK(data_start % 8 == 0);
    for (const TensorInfo& tensor : file.tensors()) CHECK(tensor.begin % dtype_bytes(tensor.dtype) == 0);
    CHECK(file.tensors().front().name == "d");
}

TEST_CASE("safetensors: BF16 and F16 are read as exact floats") {
    TemporaryDirectory folder;
    const std::vector<uint16_t> half = {0x3c00, 0xc000, 0x0001, 0x83ff, 0x0400, 0x7bff, 0x7c00, 0xfc00, 0x7e01, 0x8000};
    const std::vector<float> expected = {1.0f, -2.0f, 0x1p-24f, -0x1.ff8p-15f, 0x1p-14f, 65504.0f, INFINITY, -INFINITY};
    write_one(folder / "half", "x", "F16", {10}, half.data(), 20);
    const std::vector<float> got = SafetensorsFile(folder / "half").read_floats("x");
    for (size_t i = 0; i < expected.size(); ++i) CHECK(got[i] == expected[i]);
    CHECK(std::isnan(got[8]));
    CHECK(std::bit_cast<uint32_t>(got[9]) == 0x80000000u);

    std::vector<uint16_t> brain(65536);
    for (size_t i = 0; i < brain.size(); ++i) brain[i] = static_cast<uint16_t>(i);
    write_one(folder / "brain", "x", "BF16", {256, 256}, brain.data(), brain.size() * 2);
    const std::vector<float> floats = SafetensorsFile(folder / "brain").read_floats("x");
    size_t wrong = 0;
    for (size_t i = 0; i < brain.size(); ++i) wrong += std::bit_cast<uint32_t>(floats[i]) != i << 16;
    CHECK(wrong == 0);
}

TEST_CASE("safetensors: a malformed file is refused with its reason") {
    const std::string good = entry("a", "F32", "[2]", "[0,8]");
    const std::string data(8, '\0');
    CHECK(refusal(raw_file("{" + good + "}", data)) == "");
    CHECK(refusal(raw_file("{}", "")) == "");

    CHECK(contains(refusal(""), "has 0 bytes, too few"));
    CHECK(contains(refusal("1234567"), "has 7 bytes, too few"));
    CHECK(contains(refusal(std::string(8, '\xff')), "says its header has 18446744073709551615 bytes"));
    CHECK(contains(refusal(raw_file("{" + good + "}", "").substr(0, 20)), "the file has 20"));
    for (const char* json : {"", "{", "nonsense", "{\"a\":}", "{\"\xff\":1}", "{}{}"}) {
        CHECK(contains(refusal(raw_file(json, "")), "not valid JSON"));
    }
    CHECK(contains(refusal(raw_file(std::string(100000, '['), "")), "it is nested deeper than"));
    CHECK(contains(refusal(raw_file("[1]", "")), "not a JSON object"));
    CHECK(contains(refusal(raw_file("{\"__metadata__\":3}", "")), "__metadata__ is not"));
    CHECK(contains(refusal(raw_file("{\"__metadata__\":{\"step\":3}}", "")), "__metadata__ step is not a string"));
    CHECK(contains(refusal(raw_file("{" + good + "," + good + "}", data)), "the name \"a\" twice"));
    for (const char* incomplete :
         {"3", "{}", "{\"dtype\":\"F32\",\"shape\":[2]}", "{\"dtype\":\"F32\",\"data_offsets\":[0,8]}",
          "{\"shape\":[2],\"data_offsets\":[0,8]}", "{\"dtype\":1,\"shape\":[2],\"data_offsets\":[0,8]}",
          "{\"dtype\":\"F32\",\"shape\":2,\"data_offsets\":[0,8]}",
          "{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8,9]}"}) {
        CHECK(contains(refusal(raw_file("{\"a\":" + std::string(incomplete) + "}", data)), "tensor a lacks a proper"));
    }
    CHECK(contains(refusal(raw_file("{" + entry("a", "F31", "[2]", "[0,8]") + "}", data)), "unknown dtype F31"));
    for (const char* shape : {"[-2]", "[2.0]", "[\"2\"]", "[null]"}) {
        CHECK(contains(refusal(raw_file("{" + entry("a", "F32", shape, "[0,8]") + "}", data)), "shape holds"));
    }
    for (const char* offsets : {"[-8,0]", "[0,8.0]", "[0,\"8\"]"}) {
        CHECK(contains(refusal(raw_file("{" + entry("a", "F32", "[2]", offsets) + "}", data)), "data_offsets holds"));
    }
    const std::string huge = "[9223372036854775808]", overflow = "[4611686018427387904,4611686018427387904]";
    CHECK(contains(refusal(raw_file("{" + entry("a", "U8", huge, "[0,8]") + "}", data)), "too large"));
    CHECK(contains(refusal(raw_file("{" + entry("a", "F32", overflow, "[0,0]") + "}", "")), "beyond 64 bits"));
}

TEST_CASE("safetensors: tensors have to fit their shape and tile the data") {
    const std::string data(16, '\0');
    const auto two = [&](const char* first, const char* second) {
        const std::string header = entry("a", "F32", "[2]", first) + "," + entry("b", "F32", "[2]", second);
        return refusal(raw_file("{" + header + "}", data));
    };
    CHECK(two("[8,16]", "[0,8]") == "");
    CHECK(contains(two("[0,8]", "[12,20]"), "tensor b claims bytes 12 to 20 of 16"));
    CHECK(contains(two("[0,8]", "[16,8]"), "tensor b claims bytes 16 to 8"));
    CHECK(contains(two("[0,8]", "[0,18446744073709551615]"), "tensor b claims"));
    CHECK(contains(two("[0,8]", "[8,15]"), "tensor b of shape (2) and dtype F32 needs 8 bytes, its offsets give 7"));
    CHECK(contains(two("[0,8]", "[8,17]"), "claims bytes 8 to 17 of 16"));
    CHECK(contains(refusal(raw_file("{" + entry("a", "F32", "[3]", "[0,16]") + "}", data)), "needs 12 bytes"));
    CHECK(contains(two("[0,8]", "[4,12]"), "tensors a and b overlap"));
    CHECK(contains(two("[0,8]", "[0,8]"), "tensors a and b overlap"));
    const std::string gap = entry("a", "U8", "[4]", "[0,4]") + "," + entry("b", "U8", "[8]", "[8,16]");
    CHECK(contains(refusal(raw_file("{" + gap + "}", data)), "4 bytes before tensor b"));
    CHECK(contains(refusal(raw_file("{" + entry("a", "U8", "[8]", "[0,8]") + "}", data)), "8 bytes at its end"));
}

TEST_CASE("safetensors: every cut of a good file is refused") {
    TemporaryDirectory folder;
    const float values[3] = {1, 2, 3};
    write_one(folder / "x", "weights", "F32", {3}, values, 12);
    const std::string bytes = read_file(folder / "x");
    REQUIRE(refusal(bytes) == "");
    for (size_t length = 0; length < bytes.size(); ++length) {
        CAPTURE(length);
        CHECK(refusal(bytes.substr(0, length))[0] != '<');
    }
}

TEST_CASE("safetensors: a header longer than the file or than the format allows") {
    CHECK(contains(refusal(raw_file("{}", "").substr(0, 9)), "says its header has 2 bytes, the file has 9"));
    TemporaryDirectory folder;
    const std::string path = folder / "x";
    const uint64_t length = 100'000'001;
    make_file(path, std::string(reinterpret_cast<const char*>(&length), 8));
    std::filesystem::resize_file(path, length + 8);  // a sparse file, which takes no space
    CHECK(contains(checkpoint_error([&] { SafetensorsFile file(path); }), "says its header has 100000001 bytes"));
}

TEST_CASE("safetensors: a path that cannot be read") {
    TemporaryDirectory folder;
    CHECK(contains(checkpoint_error([&] { SafetensorsFile file(folder / "none"); }), "none: No such file"));
    CHECK(contains(checkpoint_error([&] { SafetensorsFile file(folder / ""); }), "it is a directory"));
}

TEST_CASE("safetensors: a file cut while it is open is noticed") {
    TemporaryDirectory folder;
    const float values[3] = {1, 2, 3};
    write_one(folder / "x", "w", "F32", {3}, values, 12);
    const SafetensorsFile file(folder / "x");
    std::filesystem::resize_file(folder / "x", std::filesystem::file_size(folder / "x") - 4);
    CHECK(contains(checkpoint_error([&] { file.read_floats("w"); }), "ended inside tensor w"));
}

TEST_CASE("safetensors: the writer refuses what it cannot write") {
    TemporaryDirectory folder;
    const std::string path = folder / "x";
    const auto create = [&](const std::vector<TensorSpec>& specs) {
        return checkpoint_error([&] { SafetensorsWriter writer(path, specs, {}); });
    };
    CHECK(contains(create({{"a", "F31", {1}}}), "unknown dtype F31"));
    CHECK(contains(create({{"a", "F32", {1}}, {"a", "F32", {1}}}), "tensor a: the name is taken"));
    CHECK(contains(create({{"__metadata__", "F32", {1}}}), "the name is taken"));
    CHECK(contains(create({{"a", "U8", {-1}}}), "impossible shape (-1)"));
    CHECK(contains(create({{"a", "F32", {int64_t{1} << 62}}}), "impossible shape"));
    CHECK(contains(create({{"\xff", "F32", {1}}}), "not UTF-8"));
    CHECK(!std::filesystem::exists(path + ".tmp"));

    const float value = 1;
    SafetensorsWriter writer(path, {{"a", "F32", {1}}, {"b", "F32", {1}}}, {});
    writer.write("a", &value, 4);
    CHECK(contains(checkpoint_error([&] { writer.write("a", &value, 4); }), "tensor a is written twice"));
    CHECK(contains(checkpoint_error([&] { writer.write("c", &value, 4); }), "tensor c: it was not announced"));
    CHECK(contains(checkpoint_error([&] { writer.write("b", &value, 3); }), "tensor b has 4 bytes, 3 were given"));
    CHECK(contains(checkpoint_error([&] { writer.finish(); }), "tensor b was never written"));
    writer.write("b", &value, 4);
    writer.finish();
    CHECK(contains(checkpoint_error([&] { writer.write("b", &value, 4); }), "is finished"));
    CHECK(contains(checkpoint_error([&] { writer.finish(); }), "is finished already"));
    CHECK(SafetensorsFile(path).tensors().size() == 2);
}

TEST_CASE("safetensors: a write that fails or stops leaves the old file and no debris") {
    TemporaryDirectory folder;
    const std::string path = folder / "x";
    const std::vector<float> values(4096, 1.0f);
    write_one(path, "old", "F32", {1}, values.data(), 4);
    const std::string old = read_file(path);

    { SafetensorsWriter abandoned(path, {{"new", "F32", {1}}}, {}); }
    CHECK(read_file(path) == old);
    CHECK(!std::filesystem::exists(path + ".tmp"));

    // The disk fills up inside the data.
    std::string message;
    {
        FileSizeLimit limit(8192);
        message =
            error_of([&] { write_one(path, "new", "F32", {4096}, values.data(), 16384); }, ExitCode::no_resources);
    }
    CHECK(contains(message, "x.tmp: cannot write to it: File too large; free space"));
    CHECK(read_file(path) == old);
    CHECK(!std::filesystem::exists(path + ".tmp"));

    // The disk is full from the first byte.
    {
        FileSizeLimit limit(0);
        message = error_of([&] { write_one(path, "new", "F32", {1}, values.data(), 4); }, ExitCode::no_resources);
    }
    CHECK(contains(message, "x.tmp: cannot write to it: File too large; free space"));
    CHECK(read_file(path) == old);
    CHECK(!std::filesystem::exists(path + ".tmp"));

    message = checkpoint_error([&] { write_one(folder / "none/x", "new", "F32", {1}, values.data(), 4); });
    CHECK(contains(message, "none/x.tmp: cannot create it: No such file or directory"));
    std::filesystem::create_directory(folder / "folder");
    message = checkpoint_error([&] { write_one(folder / "folder", "new", "F32", {1}, values.data(), 4); });
    CHECK(contains(message, "cannot rename the finished file to it"));
    CHECK(!std::filesystem::exists(folder / "folder.tmp"));

    write_one(path, "new", "F32", {1}, values.data(), 4);
    CHECK(SafetensorsFile(path).contains("new"));
}
