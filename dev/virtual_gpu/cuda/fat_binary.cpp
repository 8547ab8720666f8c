// Reads the fat binaries that nvcc embeds, and the ELF files inside them (fat_binary.h).
#include "dev/virtual_gpu/cuda/fat_binary.h"

#include <cstring>

#include "dev/virtual_gpu/fault.h"

namespace virtual_gpu {
namespace {

// Reads integers from bytes. Reading past the end is a Fault, so a broken file is one too.
class Bytes {
public:
    explicit Bytes(std::string_view bytes) : bytes_(bytes) {}
    template <class T>
    T at(size_t place) const {
        T value;
        std::memcpy(&value, part(place, sizeof value).data(), sizeof value);
        return value;
    }
    std::string_view part(size_t place, size_t size) const {
        if (place > bytes_.size() || size > bytes_.size() - place) fault("a fat binary ends too early");
        return bytes_.substr(place, size);
    }
    std::string text(size_t place) const {
        const std::string_view rest = part(place, 0).data() ? bytes_.substr(place) : std::string_view();
        return std::string(rest.substr(0, rest.find('\0')));
    }
    size_t size() const { return bytes_.size(); }

private:
    std::string_view bytes_;
};

// The container's layout as nvcc 12 and 13 write it: {magic, u16 version, u16 header bytes, u64 bytes of entries}, then
// entries of {u16 kind, u16 version, u32 header bytes, u64 payload bytes, ..., u32 capability at 28, u64 flags at 40}.
constexpr uint32_t kMagic = 0xBA55ED50u;
constexpr uint16_t kKindPtx = 1, kKindElf = 2;
constexpr uint64_t kFlagsCompressed = 0x2000 | 0x8000;  // LZ4, Zstandard
constexpr uint64_t kFlagArchitecture = 0x100000, kFlagFamily = 0x200000;

// ELF, and the attributes that ptxas writes into the section .nv.info: {u8 format, u8 attribute, u16 size}; format 4 is
// followed by `size` bytes. kRegisterCount has {u32 symbol, u32 registers}.
constexpr uint8_t kFormatSized = 4, kRegisterCount = 0x2f;
constexpr size_t kSectionBytes = 64, kSymbolBytes = 24;

struct Section {
    std::string name;
    std::string_view bytes;
    uint32_t link;
};

std::vector<Section> sections_of(const Bytes& elf) {
    const size_t table = elf.at<uint64_t>(0x28), count = elf.at<uint16_t>(0x3c), names = elf.at<uint16_t>(0x3e);
    const auto header = [&](size_t index) { return table + index * kSectionBytes; };
    const size_t names_at = elf.at<uint64_t>(header(names) + 0x18);
    constexpr uint32_t kNoBits = 8;
    std::vector<Section> sections;
    for (size_t i = 0; i < count; i++) {
        const size_t h = header(i);
        const bool empty = elf.at<uint32_t>(h + 4) == kNoBits;
        const std::string_view bytes =
            empty ? std::string_view() : elf.part(elf.at<uint64_t>(h + 0x18), elf.at<uint64_t>(h + 0x20));
        sections.push_back({elf.text(names_at + elf.at<uint32_t>(h)), bytes, elf.at<uint32_t>(h + 0x28)});
    }
    return sections;
}

// CUDA C++ Programming Guide, "Binary Compatibility": a cubin runs on the same major version with an equal or higher
// minor version. "PTX Compatibility": PTX of a capability compiles for it and higher ones. The suffix `a` restricts it
// to one capability, `f` to its family, here taken as the major version.
bool runs_on(const Image& image, int card) {
    if (image.suffix == 'a') return image.capability == card;
    const bool same_major = image.capability / 10 == card / 10;
    if (image.is_cubin || image.suffix == 'f') return same_major && image.capability <= card;
    return image.capability <= card;
}

const Image* best_of(const std::vector<Image>& images, bool cubin, int card) {
    const Image* best = nullptr;
    for (const Image& image : images)
        if (image.is_cubin == cubin && runs_on(image, card))
            if (!best || image.capability > best->capability ||
                (image.capability == best->capability && image.suffix > best->suffix))
                best = &image;
    return best;
}

const Image* ptx_of(const std::vector<Image>& images, const Image& cubin) {
    for (const Image& image : images)
        if (!image.is_cubin && image.capability == cubin.capability && image.suffix == cubin.suffix) return &image;
    return nullptr;
}

}  // namespace

std::string name_of(const Image& image) {
    return format("%s_%d%s", image.is_cubin ? "sm" : "compute", image.capability,
                  image.suffix == 'a'   ? "a"
                  : image.suffix == 'f' ? "f"
                                        : "");
}

std::vector<Image> read_fat_binary(const void* data) {
    constexpr size_t kHeader = 16;
    const Bytes begin(std::string_view(static_cast<const char*>(data), kHeader));
    if (begin.at<uint32_t>(0) != kMagic) fault("not a fat binary");
    const size_t header = begin.at<uint16_t>(6), size = begin.at<uint64_t>(8);
    const Bytes all(std::string_view(static_cast<const char*>(data), header + size));
    std::vector<Image> images;
    for (size_t at = header; at < all.size();) {
        const auto kind = all.at<uint16_t>(at);
        const size_t entry_header = all.at<uint32_t>(at + 4), payload = all.at<uint64_t>(at + 8);
        const auto flags = all.at<uint64_t>(at + 40);
        Image image{kind == kKindElf, all.at<int>(at + 28), 0, (flags & kFlagsCompressed) != 0,
                    all.part(at + entry_header, payload)};
        if (flags & kFlagArchitecture) image.suffix = 'a';
        if (flags & kFlagFamily) image.suffix = 'f';
        if (kind == kKindPtx)
            while (!image.bytes.empty() && image.bytes.back() == '\0') image.bytes.remove_suffix(1);
        if (kind == kKindPtx || kind == kKindElf) images.push_back(image);
        at += entry_header + payload;
    }
    return images;
}

Choice choose_image(const std::vector<Image>& images, int card) {
    Choice choice;
    const Image* const cubin = best_of(images, true, card);
    const Image* const ptx = cubin ? ptx_of(images, *cubin) : best_of(images, false, card);
    if (!cubin && !ptx) return choice;
    choice.capability = cubin ? cubin->capability : ptx->capability;
    choice.compiled = !cubin;
    if (!ptx)
        choice.missing =
            format("there is code for %s, but not the PTX it was made from: build with PTX=1", name_of(*cubin).c_str());
    else if (ptx->compressed)
        choice.missing = format("the PTX of %s is compressed: build with PTX=1, or nvcc's --compress-mode=none",
                                name_of(*ptx).c_str());
    else
        choice.ptx = ptx->bytes;
    if (cubin && !cubin->compressed) choice.cubin = cubin->bytes;
    return choice;
}

std::map<std::string, int> registers_of(std::string_view cubin) {
    const std::vector<Section> sections = sections_of(Bytes(cubin));
    const auto named = [&](const char* name) -> const Section& {
        for (const Section& s : sections)
            if (s.name == name) return s;
        fault("a cubin has no section %s", name);
    };
    const Section& symbols = named(".symtab");
    if (symbols.link >= sections.size()) fault("a cubin's symbols have no names");
    const Bytes symbol_table(symbols.bytes), names(sections[symbols.link].bytes), info(named(".nv.info").bytes);
    std::map<std::string, int> registers;
    for (size_t at = 0; at + 4 <= info.size();) {
        const auto form = info.at<uint8_t>(at), attribute = info.at<uint8_t>(at + 1);
        const auto size = info.at<uint16_t>(at + 2);
        if (form == kFormatSized && attribute == kRegisterCount) {
            const size_t symbol = info.at<uint32_t>(at + 4) * kSymbolBytes;
            registers[names.text(symbol_table.at<uint32_t>(symbol))] = info.at<int>(at + 8);
        }
        at += 4 + (form == kFormatSized ? size : 0);
    }
    return registers;
}

}  // namespace virtual_gpu
