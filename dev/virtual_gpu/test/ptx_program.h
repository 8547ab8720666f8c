// Small PTX programs for tests: a snippet is put into a kernel and run on device memory, and the stored data is
// returned. The snippet finds its 64-bit parameters in %rd0, %rd1, ... and may use the registers below; `ret` is added.
// Statements end in "; ". Each gets a line of its own, so that faults quote one statement.
#pragma once
#include <algorithm>
#include <concepts>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "dev/virtual_gpu/memory.h"
#include "dev/virtual_gpu/ptx/kernel.h"

namespace virtual_gpu::test {

inline std::string text_of(const std::string& text) { return text; }
template <std::integral I>
std::string text_of(I value) {
    return std::to_string(value);
}

// The text with the values instead of $1, $2, ... (at most nine).
template <class... T>
std::string ptx(std::string text, const T&... values) {
    char digit = '1';
    for (const std::string& value : {text_of(values)...}) {
        const std::string place = {'$', digit++};
        for (size_t at = 0; (at = text.find(place, at)) != std::string::npos; at += value.size())
            text.replace(at, place.size(), value);
    }
    return text;
}

// Device memory during the lifetime of this object.
class Buffer {
public:
    explicit Buffer(size_t bytes) : bytes_(bytes), address_(Memory::get().allocate(bytes)) {}  // not written
    template <class T>
    explicit Buffer(const std::vector<T>& values) : Buffer(values.size() * sizeof(T)) {
        write(0, values.data(), bytes_);
    }
    ~Buffer() { Memory::get().release(address_); }
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;

    uint64_t address() const { return address_; }
    void write(size_t at, const void* from, size_t bytes) {
        std::memcpy(Memory::get().writable(pointer(at), bytes, "test"), from, bytes);
    }
    // The whole content. Throws Fault if a byte was never written.
    template <class T>
    std::vector<T> read() const {
        std::vector<T> values(bytes_ / sizeof(T));
        std::memcpy(values.data(), Memory::get().readable(pointer(0), bytes_, "test"), bytes_);
        return values;
    }

private:
    const void* pointer(size_t at) const { return reinterpret_cast<const void*>(address_ + at); }
    size_t bytes_;
    uint64_t address_;
};

struct Shape {
    uint32_t grid[3] = {1, 1, 1}, block[3] = {32, 1, 1};
    uint32_t dynamic_shared_bytes = 0;
};
inline Shape threads(uint32_t block, uint32_t grid = 1) { return {{grid, 1, 1}, {block, 1, 1}}; }

inline const std::string kRegisters =
    ".reg .pred %p<16>; .reg .b16 %h<16>; .reg .b32 %r<64>; .reg .f32 %f<32>; .reg .b64 %rd<32>; .reg .f64 %d<16>; ";
inline const std::string kModule = ".version 8.7\n.target sm_90a\n.address_size 64\n";

// A module of one kernel. Its snippet begins in line 12 + the number of parameters + the lines of `declarations`, which
// precede the kernel.
inline std::string module_text(const std::string& snippet, size_t parameters, const std::string& declarations = "") {
    std::string names, loads;
    for (size_t n = 0; n < parameters; n++) {
        names += ptx("$1.param .u64 p$2", n ? ", " : "", n);
        loads += ptx("ld.param.u64 %rd$1, [p$1]; ", n);
    }
    return kModule + declarations + ".visible .entry test(" + names + ")\n{\n" + kRegisters + loads + snippet +
           " ret; }\n";
}

// `text` is a module; each of its statements gets a line of its own.
void run_text(const std::string& text, const std::vector<unsigned char>& parameters, const Shape& shape);

inline void run_snippet(const std::string& snippet, const std::vector<uint64_t>& parameters = {},
                        const Shape& shape = {}, const std::string& declarations = "") {
    std::vector<unsigned char> bytes(parameters.size() * 8);
    if (!bytes.empty()) std::memcpy(bytes.data(), parameters.data(), bytes.size());
    run_text(module_text(snippet, parameters.size(), declarations), bytes, shape);
}

// The message of the Fault that f throws, or "" if it throws none.
template <class F>
std::string fault_of(F f) {
    try {
        f();
    } catch (const Fault& fault) {
        return fault.what();
    }
    return {};
}
inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// Sets %rdN to parameter n + bytes * the thread's index in a one-dimensional grid. Uses %r60 to %r63 and %rd31.
inline std::string element_address(int n, int parameter, int bytes) {
    return ptx(
        "mov.u32 %r60, %ctaid.x; mov.u32 %r61, %ntid.x; mov.u32 %r62, %tid.x; mad.lo.s32 %r63, %r60, %r61, %r62; "
        "mul.wide.u32 %rd31, %r63, $3; add.s64 %rd$1, %rd$2, %rd31; ",
        n, parameter, bytes);
}

// Runs a lane-by-lane opcode on n cases. operands[o][case] are an operand's bits; `kinds` is as in LaneOp::operands,
// the result first. Returns the results' bits: 16 bits for kind h, 0 or 1 for a predicate.
std::vector<uint64_t> run_lane_op(const std::string& opcode, const std::string& kinds,
                                  const std::vector<std::vector<uint64_t>>& operands);

// True if ptx_integers.cpp compares this opcode with arithmetic in 128 bits, so that it needs no known results.
bool compared_in_128_bits(const std::string& opcode);

}  // namespace virtual_gpu::test
