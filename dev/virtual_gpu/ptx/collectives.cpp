// Instructions that a warp's lanes execute together: PTX ISA, "Data Movement: shfl.sync", "Parallel Synchronization:
// vote.sync, redux.sync, bar.warp.sync, activemask". Every lane in a mask must arrive with the same mask or
// have ended (CUDA C++ Programming Guide, "Warp Vote Functions"). Lanes with other masks may execute the instruction
// separately.
#include "dev/virtual_gpu/ptx/instructions.h"
#include "dev/virtual_gpu/ptx/races.h"

namespace virtual_gpu {
namespace {

// Calls f for each group of lanes whose masks name each other, with w.mask set to the group.
template <class F>
void each_group(Warp& w, const Op& op, uint32_t place, const char* what, F f) {
    const uint32_t* const members = w.at<const uint32_t>(place);
    const uint32_t all = w.mask;
    uint32_t named = 0;
    for (int i = 0; i < kLanes; i++) named |= (0 - (all >> i & 1)) & members[i];
    if ((named & w.alive & ~all) != 0 && w.run_others_first()) return;
    for (uint32_t left = all; left != 0; left &= ~w.mask) {
        const int lane = first_lane(left);
        const uint32_t mask = members[lane];
        uint32_t group = 0;
        for (int i = 0; i < kLanes; i++) group |= static_cast<uint32_t>(members[i] == mask) << i;
        group &= left;
        if (const uint32_t outside = group & ~mask)
            w.fail(op, first_lane(outside), "%s: the thread is not in its own member mask %08x", what, mask);
        if (const uint32_t missing = mask & w.alive & ~all)
            w.fail(op, lane, "%s: lanes %08x are named and not here", what, missing);
        if (const uint32_t others = mask & w.alive & ~group)
            w.fail(op, lane, "%s: member mask %08x, %08x in lane %d", what, mask, members[first_lane(others)],
                   first_lane(others));
        w.mask = group;
        f();
    }
    w.mask = all;
}

template <class T, auto F>
void reduce(Warp& w, const Op& op) {
    const uint32_t* const values = w.at<const uint32_t>(op.at[1]);
    each_group(w, op, op.at[2], "redux.sync", [&] {
        T sum = static_cast<T>(values[first_lane(w.mask)]);
        for (uint32_t left = w.mask & (w.mask - 1); left; left &= left - 1)
            sum = static_cast<T>(F(sum, static_cast<T>(values[first_lane(left)])));
        uint32_t results[kLanes];
        for (uint32_t& r : results) r = static_cast<uint32_t>(sum);
        w.set_words(op.at[0], results);
    });
}

// For the lanes of w.mask, which are one group.
void shuffle_group(Warp& w, const Op& op) {
    const uint32_t *a = w.at<const uint32_t>(op.at[2]), *b = w.at<const uint32_t>(op.at[3]),
                   *c = w.at<const uint32_t>(op.at[4]);
    int source[kLanes];
    uint32_t inside = 0, values[kLanes], active = 0;
    for (int i = 0; i < kLanes; i++) {
        const int limit = static_cast<int>(c[i] & 31), segment = static_cast<int>(c[i] >> 8 & 31),
                  by = static_cast<int>(b[i] & 31);
        const int first = i & segment, last = first | (limit & ~segment);
        const int from = op.mode == 'u'   ? i - by
                         : op.mode == 'd' ? i + by
                         : op.mode == 'b' ? i ^ by
                                          : first | (by & ~segment);
        const bool ok = op.mode == 'u' ? from >= last : from <= last;
        source[i] = ok ? from : i;
        inside |= (ok ? 1u : 0u) << i;
    }
    for (int i = 0; i < kLanes; i++) active |= (w.mask >> source[i] & 1) << i;
    if (const uint32_t wrong = w.mask & ~active)
        w.fail(op, first_lane(wrong), "shfl.sync reads lane %d, which is not active", source[first_lane(wrong)]);
    for (int i = 0; i < kLanes; i++) values[i] = a[source[i]];
    w.set_words(op.at[0], values);
    if (op.count == 2) w.set_predicate(op.at[1], inside);
}

void vote_of_group(Warp& w, const Op& op) {
    const uint32_t given = op.immediate ? ~w.predicates[op.at[1]] : w.predicates[op.at[1]];
    const uint32_t votes = given & w.mask;
    if (op.mode == 'b') {
        uint32_t results[kLanes];
        for (uint32_t& r : results) r = votes;
        w.set_words(op.at[0], results);
        return;
    }
    const bool result = op.mode == 'y' ? votes != 0 : op.mode == 'l' ? votes == w.mask : votes == 0 || votes == w.mask;
    w.set_predicate(op.at[0], result ? kAllLanes : 0);
}

}  // namespace

void warp_barrier(Warp& w, const Op& op) {
    each_group(w, op, op.at[0], "bar.warp.sync", [&] {
        if (w.block->races) w.block->races->warp_barrier(w, w.mask);
    });
}

void shuffle(Warp& w, const Op& op) {
    each_group(w, op, op.at[5], "shfl.sync", [&] { shuffle_group(w, op); });
}

void vote(Warp& w, const Op& op) {
    each_group(w, op, op.at[2], "vote.sync", [&] { vote_of_group(w, op); });
}

void active_mask(Warp& w, const Op& op) {
    uint32_t results[kLanes];
    for (uint32_t& r : results) r = w.mask;
    w.set_words(op.at[0], results);
}

Execute find_reduction(std::string_view operation, std::string_view type) {
    if (operation == "add") return reduce<uint32_t, [](uint32_t a, uint32_t b) { return a + b; }>;
    if (operation == "and") return reduce<uint32_t, [](uint32_t a, uint32_t b) { return a & b; }>;
    if (operation == "or") return reduce<uint32_t, [](uint32_t a, uint32_t b) { return a | b; }>;
    if (operation == "xor") return reduce<uint32_t, [](uint32_t a, uint32_t b) { return a ^ b; }>;
    const bool is_signed = type == "s32";
    if (operation == "min" && is_signed) return reduce<int32_t, [](int32_t a, int32_t b) { return a < b ? a : b; }>;
    if (operation == "max" && is_signed) return reduce<int32_t, [](int32_t a, int32_t b) { return a < b ? b : a; }>;
    if (operation == "min") return reduce<uint32_t, [](uint32_t a, uint32_t b) { return a < b ? a : b; }>;
    if (operation == "max") return reduce<uint32_t, [](uint32_t a, uint32_t b) { return a < b ? b : a; }>;
    return nullptr;
}

}  // namespace virtual_gpu
