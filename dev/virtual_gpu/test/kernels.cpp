// Builds fat binaries and ELF files by hand, and registers and launches their kernels (kernels.h).
#include "dev/virtual_gpu/test/kernels.h"

#include <doctest/doctest.h>

#include <cstring>
#include <deque>

extern "C" {
void** __cudaRegisterFatBinary(void* wrapper);
void __cudaRegisterFatBinaryEnd(void** handle);
void __cudaRegisterFunction(void** handle, const char* host, char*, const char* name, int, uint3*, uint3*, dim3*, dim3*,
                            int*);
}

namespace virtual_gpu::test {
namespace {

template <class T>
void append(std::string& bytes, T value) {
    bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
}
template <class T>
void put(std::string& bytes, size_t at, T value) {
    std::memcpy(&bytes[at], &value, sizeof value);
}

struct ElfSection {
    std::string name, bytes;
    uint32_t link;
};

}  // namespace

FatBinary& FatBinary::ptx(int capability, const std::string& text, uint64_t flags) {
    return add(1, capability, text, flags);
}
FatBinary& FatBinary::cubin(int capability, const std::string& elf, uint64_t flags) {
    return add(2, capability, elf, flags);
}
FatBinary& FatBinary::add(uint16_t kind, int capability, std::string payload, uint64_t flags) {
    constexpr size_t kHeader = 64;
    payload.resize((payload.size() + 8) / 8 * 8, '\0');
    std::string header(kHeader, '\0');
    put<uint16_t>(header, 0, kind);
    put<uint16_t>(header, 2, 0x0101);
    put<uint32_t>(header, 4, kHeader);
    put<uint64_t>(header, 8, payload.size());
    put<int32_t>(header, 28, capability);
    put<uint64_t>(header, 40, flags | 0x11);
    bytes_ += header + payload;
    return *this;
}
const void* FatBinary::data() {
    if (bytes_.compare(0, 4, "\x50\xED\x55\xBA") != 0) {
        std::string header;
        append<uint32_t>(header, 0xBA55ED50u);
        append<uint16_t>(header, 1);
        append<uint16_t>(header, 16);
        append<uint64_t>(header, bytes_.size());
        bytes_ = header + bytes_;
    }
    return bytes_.data();
}

std::string cubin_of(const std::string& kernel, int registers) {
    std::string names("\0.text\0", 7), symbols(24, '\0'), info;  // the first symbol is empty
    append<uint32_t>(symbols, static_cast<uint32_t>(names.size()));
    symbols.resize(48, '\0');
    names += kernel + '\0';
    append<uint32_t>(info, 0x00000104);  // an attribute that only has a value
    append<uint32_t>(info, 0x00082f04);  // format 4, register count, 8 bytes
    append<uint32_t>(info, 1);
    append<int32_t>(info, registers);
    std::vector<ElfSection> sections{
        {"", "", 0}, {".symtab", symbols, 2}, {".strtab", names, 0}, {".nv.info", info, 1}, {".shstrtab", "", 0}};
    for (const ElfSection& s : sections) sections.back().bytes += s.name + '\0';

    std::string elf(64, '\0'), table;
    std::memcpy(&elf[0],
                "\x7f"
                "ELF\x02\x01\x01",
                7);
    uint32_t name = 0;
    for (const ElfSection& s : sections) {
        std::string header(64, '\0');
        put<uint32_t>(header, 0, name);
        put<uint32_t>(header, 4, s.name.empty() ? 0 : 1);
        put<uint64_t>(header, 0x18, elf.size());
        put<uint64_t>(header, 0x20, s.bytes.size());
        put<uint32_t>(header, 0x28, s.link);
        elf += s.bytes;
        table += header;
        name += static_cast<uint32_t>(s.name.size()) + 1;
    }
    put<uint64_t>(elf, 0x28, elf.size());
    put<uint16_t>(elf, 0x3a, 64);
    put<uint16_t>(elf, 0x3c, static_cast<uint16_t>(sections.size()));
    put<uint16_t>(elf, 0x3e, static_cast<uint16_t>(sections.size() - 1));
    return elf + table;
}

std::string module_of(const std::string& name, const std::string& parameters, const std::string& body,
                      const std::string& directives) {
    return ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry " + name + "(" + parameters + ")\n" +
           directives + "\n{\n.reg .pred %p<4>;\n.reg .b32 %r<16>;\n.reg .f32 %f<8>;\n.reg .b64 %rd<16>;\n" + body +
           "\nret;\n}\n";
}

const void* register_kernel(FatBinary& binary, const std::string& name) {
    struct Wrapper {
        int magic = 0x466243B1, version = 1;
        const void* data;
        void* unused = nullptr;
    };
    static std::deque<Wrapper> wrappers;
    static std::deque<char> hosts;
    static std::deque<std::string> names;
    static std::deque<FatBinary> binaries;
    binaries.push_back(binary);
    Wrapper wrapper;
    wrapper.data = binaries.back().data();
    wrappers.push_back(wrapper);
    hosts.push_back(0);
    names.push_back(name);
    void** const handle = __cudaRegisterFatBinary(&wrappers.back());
    __cudaRegisterFunction(handle, &hosts.back(), nullptr, names.back().c_str(), -1, nullptr, nullptr, nullptr, nullptr,
                           nullptr);
    __cudaRegisterFatBinaryEnd(handle);
    return &hosts.back();
}
const void* register_kernel(const std::string& name, const std::string& parameters, const std::string& body,
                            const std::string& directives) {
    FatBinary binary;
    binary.ptx(80, module_of(name, parameters, body, directives));
    return register_kernel(binary, name);
}

char* device_bytes(size_t bytes) {
    void* p = nullptr;
    REQUIRE(cudaMalloc(&p, bytes) == cudaSuccess);
    return static_cast<char*>(p);
}

const void* add_kernel() {
    static const void* const kernel = register_kernel("add", ".param .u64 add_x, .param .f32 add_y", R"(
        ld.param.u64 %rd1, [add_x];
        ld.param.f32 %f1, [add_y];
        cvta.to.global.u64 %rd2, %rd1;
        mov.u32 %r1, %tid.x;
        mul.wide.u32 %rd3, %r1, 4;
        add.s64 %rd4, %rd2, %rd3;
        ld.global.f32 %f2, [%rd4];
        add.f32 %f3, %f2, %f1;
        st.global.f32 [%rd4], %f3;)");
    return kernel;
}
const void* poke_kernel() {
    static const void* const kernel = register_kernel("poke", ".param .u64 poke_x, .param .u64 poke_at", R"(
        ld.param.u64 %rd1, [poke_x];
        ld.param.u64 %rd2, [poke_at];
        cvta.to.global.u64 %rd3, %rd1;
        add.s64 %rd4, %rd3, %rd2;
        mov.u32 %r1, 7;
        st.global.u32 [%rd4], %r1;)");
    return kernel;
}

}  // namespace virtual_gpu::test
