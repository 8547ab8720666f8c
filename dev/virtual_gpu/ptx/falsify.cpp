// Deliberate errors in kernels' results (falsify.h).
#include "dev/virtual_gpu/ptx/falsify.h"

#include <algorithm>
#include <cstring>

#include "dev/virtual_gpu/planned_faults.h"

namespace virtual_gpu {
namespace {

constexpr uint32_t kWord = 4;

char* bytes_at(uint64_t address, size_t count) {
    return Memory::get().writable(reinterpret_cast<void*>(address), count, "falsified");
}

// An element of a store: a word of four bytes, or the whole stored value if that is smaller.
struct StoredElement {
    uint64_t address;
    uint32_t bytes;

    uint32_t read() const {
        uint32_t value = 0;
        std::memcpy(&value, bytes_at(address, bytes), bytes);
        return value;
    }
    void write(uint32_t value) const { std::memcpy(bytes_at(address, bytes), &value, bytes); }
};

uint32_t elements_per_lane(const LastStore& s) { return std::max(s.bytes / kWord, 1u); }
StoredElement element_of(const LastStore& s, uint32_t i) {
    const uint32_t per_lane = elements_per_lane(s);
    return {s.address[i / per_lane] + i % per_lane * kWord, std::min(s.bytes, kWord)};
}
uint32_t elements_of(const LastStore& s) { return static_cast<uint32_t>(s.count) * elements_per_lane(s); }

// Changes a value by about 1 %: an FP32 number, one or two BF16 numbers, or FP8, whose steps are larger. Zero becomes
// 2^-7, or 1.5 in FP8.
uint32_t one_percent_off(uint32_t value, uint32_t bytes) {
    const uint32_t shift = bytes == 4 ? 16 : 0;
    if (value == 0) return bytes == 1 ? 0x3c : 0x3c00u << shift;
    return value ^ (bytes == 1 ? 1u : 2u << shift);
}

// Changes the last element that is not 0, if there is one.
void make_wrong(const LastStore& last) {
    uint32_t i = elements_of(last) - 1;
    while (i > 0 && element_of(last, i).read() == 0) i--;
    if (element_of(last, i).read() == 0) i = elements_of(last) - 1;
    const StoredElement element = element_of(last, i);
    element.write(one_percent_off(element.read(), element.bytes));
}

// As if the warp had stored a tile that was never computed.
void make_zero(const LastStore& last) {
    for (uint32_t i = 0; i < elements_of(last); i++) element_of(last, i).write(0);
}

// Flips the lowest bit of another element each time, and sometimes of none, since there may be only one element.
void make_unsteady(const LastStore& last) {
    const auto i = static_cast<uint32_t>(unsteady_number() % (elements_of(last) + 1));
    if (i < elements_of(last)) element_of(last, i).write(element_of(last, i).read() ^ 1);
}

// Writes after the end of everything that was stored. As on a GPU, nobody notices without looking there.
void store_behind(uint64_t end) {
    constexpr uint32_t kStray = 0x5a5a5a5a;
    const uint64_t at = (end + kWord - 1) / kWord * kWord;
    Range range;
    if (Memory::get().find(at, kWord, range)) StoredElement{at, kWord}.write(kStray);
}

[[noreturn]] void store_outside(uint64_t end) {
    Range range;
    Memory::get().find(end - 1, range);
    fault("store of %u bytes at global 0x%llx: %s, on purpose: VIRTUAL_GPU_FAULT=stray-fault", kWord,
          static_cast<unsigned long long>(range.end), Memory::get().describe(range.end).c_str());
}

}  // namespace

void LastStore::note(const Addresses& at, uint32_t mask, uint32_t size) {
    const Memory& memory = Memory::get();
    int noted = 0;
    for (uint32_t left = mask; left; left &= left - 1) {
        const uint8_t* const written = at.written[first_lane(left)];
        if (!memory.is_shadow(written)) continue;  // pinned memory belongs to the host
        address[noted++] = memory.address(written);
        end = std::max(end, memory.address(written) + size);
    }
    if (noted == 0) return;
    count = noted;
    bytes = size;
}

void LastStore::note(uint64_t at, uint32_t size) {
    address[0] = at;
    count = 1;
    bytes = size;
    end = std::max(end, at + size);
}

std::unique_ptr<Falsifier> Falsifier::of(const Kernel& kernel) {
    Falsifier f;
    f.wrong_ = lies("wrong-kernel", kernel.readable);
    f.unsteady_ = lies("unsteady-kernel", kernel.readable);
    f.zero_ = lies("zero-store", kernel.readable);
    f.stray_ = lies("stray", kernel.readable);
    f.stray_fault_ = lies("stray-fault", kernel.readable);
    return f.wrong_ || f.unsteady_ || f.zero_ || f.stray_ || f.stray_fault_ ? std::make_unique<Falsifier>(f) : nullptr;
}

void Falsifier::add(const LastStore& stored, uint64_t block) {
    end_ = std::max(end_, stored.end);
    if (stored.count == 0 || block < block_) return;
    last_ = stored;
    block_ = block;
}

void Falsifier::falsify() const {
    if (last_.count == 0) return;
    if (wrong_) make_wrong(last_);
    if (unsteady_) make_unsteady(last_);
    if (zero_) make_zero(last_);
    if (stray_) store_behind(end_);
    if (stray_fault_) store_outside(end_);
}

}  // namespace virtual_gpu
