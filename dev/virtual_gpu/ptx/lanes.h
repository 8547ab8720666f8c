// Lane-by-lane instructions. define<[](float a, float b) { return a + b; }>("add.f32") defines one; its types come from
// the function's. Each is one loop over the 32 lanes, which the compiler vectorises.
#pragma once
#include <bit>
#include <cstring>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "dev/virtual_gpu/ptx/machine.h"

namespace virtual_gpu {

// The function that executes an opcode, and the kinds of its operands, destination first: p for a predicate (bool), h
// for 16 or 8 bits, w for 32, l for 64, f for float, d for double.
struct LaneOp {
    Execute execute = nullptr;
    std::string operands;
    Kind kind = Kind::integer;
};
const LaneOp* find_lane_op(std::string_view opcode);  // nullptr if unknown
// Turns NaN into the largest FP8 number; nullptr if the opcode is not a cast to FP8.
Execute find_lying_cast(std::string_view opcode);
std::vector<std::string> lane_opcodes();  // sorted

void define_lane_op(const std::string& opcode, LaneOp op);
// find_lane_op() calls each of these once.
void define_integers();
void define_floats();
void define_conversions();

// ---- how they are defined -------------------------------------------------------------------------------------------

// A register of 8 or 16 bits occupies a word of 32.
template <class T>
using lane_t = std::conditional_t<(sizeof(T) < 4), uint32_t, T>;

template <class T>
constexpr char kind_of_operand() {
    if (std::is_same_v<T, bool>) return 'p';
    if (std::is_same_v<T, float>) return 'f';
    if (std::is_same_v<T, double>) return 'd';
    return sizeof(T) == 8 ? 'l' : sizeof(T) == 4 ? 'w' : 'h';
}

template <class T>
void set_lanes(Warp& w, uint32_t place, const lane_t<T>* values) {
    lane_t<T>* const d = w.at<lane_t<T>>(place);
    if (w.mask == kAllLanes) {
        std::memcpy(d, values, sizeof(lane_t<T>) * kLanes);
        return;
    }
    const uint32_t mask = w.mask;
#pragma GCC ivdep
    for (int i = 0; i < kLanes; i++) d[i] = mask >> i & 1 ? values[i] : d[i];
}

// An operand as a function from lane to value.
template <class T>
struct LaneSource {
    const lane_t<T>* values;
    LaneSource(Warp& w, uint32_t place) : values(w.at<const lane_t<T>>(place)) {}
    T operator[](int lane) const { return static_cast<T>(values[lane]); }
};
template <>
struct LaneSource<bool> {
    uint32_t lanes;
    LaneSource(Warp& w, uint32_t place) : lanes(w.predicates[place]) {}
    bool operator[](int lane) const { return lanes >> lane & 1; }
};

template <auto F, class D, class... A>
struct LaneLoop {
    template <size_t... N>
    static void run(Warp& w, const Op& op, std::index_sequence<N...>) {
        const std::tuple<LaneSource<A>...> sources{LaneSource<A>(w, op.at[N + 1])...};
        if constexpr (std::is_same_v<D, bool>) {
            uint32_t lanes = 0;
            for (int i = 0; i < kLanes; i++) lanes |= static_cast<uint32_t>(F(std::get<N>(sources)[i]...)) << i;
            w.set_predicate(op.at[0], lanes);
        } else {
            alignas(64) lane_t<D> values[kLanes];
            for (int i = 0; i < kLanes; i++) values[i] = static_cast<lane_t<D>>(F(std::get<N>(sources)[i]...));
            set_lanes<D>(w, op.at[0], values);
        }
    }
    static void execute(Warp& w, const Op& op) { run(w, op, std::index_sequence_for<A...>{}); }
    static std::string operands() { return {kind_of_operand<D>(), kind_of_operand<A>()...}; }
};

template <auto F, class Function>
struct LoopOf;
template <auto F, class Lambda, class D, class... A>
struct LoopOf<F, D (Lambda::*)(A...) const> : LaneLoop<F, D, A...> {};

// first ? a : b, using masks, because a conditional would not be vectorised.
template <class T>
T choose(T a, T b, bool first) {
    using Bits = std::conditional_t<sizeof(T) == 8, uint64_t, std::conditional_t<sizeof(T) == 4, uint32_t, uint16_t>>;
    const Bits mask = static_cast<Bits>(0 - static_cast<Bits>(first));
    return std::bit_cast<T>(static_cast<Bits>((std::bit_cast<Bits>(a) & mask) | (std::bit_cast<Bits>(b) & ~mask)));
}

template <auto F>
void define(const std::string& opcode, Kind kind) {
    using Loop = LoopOf<F, decltype(&decltype(F)::operator())>;
    define_lane_op(opcode, {&Loop::execute, Loop::operands(), kind});
}

}  // namespace virtual_gpu
