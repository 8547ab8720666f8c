// Loads, stores, atomics: PTX ISA, "Data Movement and Conversion Instructions", "Parallel Synchronization: atom, red".
#include <atomic>
#include <cstring>
#include <type_traits>

#include "dev/virtual_gpu/ptx/address.h"
#include "dev/virtual_gpu/ptx/floats.h"
#include "dev/virtual_gpu/ptx/instructions.h"

namespace virtual_gpu {
namespace {

template <class R, class T>
R extended(T value) {
    if constexpr (std::is_signed_v<T> && sizeof(T) < sizeof(R))
        return static_cast<R>(static_cast<std::make_signed_t<R>>(value));
    else
        return static_cast<R>(value);
}

// Most accesses are contiguous rows, which need one copy and no look at the single lanes.
template <class T, int N>
struct Row {
    T values[kLanes][N];
};

// T is an element in memory, R a register's word of 32 or 64 bits; there are N elements.
template <class T, class R, int N>
void load(Warp& w, const Op& op) {
    Addresses from;
    resolve(w, op, sizeof(T) * N, "load", from);
    note_read(w, op, from, sizeof(T) * N);
    R* d[N];
    for (int n = 0; n < N; n++) d[n] = w.at<R>(op.at[static_cast<size_t>(n)]);
    if (from.is_row && all_written<sizeof(Row<T, N>)>(from.written[0])) {
        Row<T, N> row;
        std::memcpy(&row, from.bytes[0], sizeof row);
        for (int n = 0; n < N; n++)
            for (int i = 0; i < kLanes; i++) d[n][i] = extended<R>(row.values[i][n]);
        return;
    }
    for (uint32_t left = w.mask; left; left &= left - 1) {
        const int i = first_lane(left);
        if (!all_written<sizeof(T) * N>(from.written[i])) fail_unwritten(w, op, i, from, sizeof(T) * N, "load");
        T values[N];
        std::memcpy(values, from.bytes[i], sizeof values);
        for (int n = 0; n < N; n++) d[n][i] = extended<R>(values[n]);
    }
}

template <class T, class R, int N>
void store(Warp& w, const Op& op) {
    Addresses to;
    resolve(w, op, sizeof(T) * N, "store", to);
    note_write(w, op, to, sizeof(T) * N);
    const R* s[N];
    for (int n = 0; n < N; n++) s[n] = w.at<const R>(op.at[static_cast<size_t>(n)]);
    if (to.is_row) {
        Row<T, N> row;
        for (int n = 0; n < N; n++)
            for (int i = 0; i < kLanes; i++) row.values[i][n] = static_cast<T>(s[n][i]);
        std::memcpy(to.bytes[0], &row, sizeof row);
        std::memset(to.written[0], kWritten, sizeof row);
        return;
    }
    for (uint32_t left = w.mask; left; left &= left - 1) {
        const int i = first_lane(left);
        T values[N];
        for (int n = 0; n < N; n++) values[n] = static_cast<T>(s[n][i]);
        std::memcpy(to.bytes[i], values, sizeof values);
        std::memset(to.written[i], kWritten, sizeof values);
    }
}

template <class T, bool is_load, class R>
Execute of_count(int count) {
    const auto pick = [&](auto n) -> Execute { return is_load ? load<T, R, n.value> : store<T, R, n.value>; };
    if (count == 1) return pick(std::integral_constant<int, 1>{});
    if (count == 2) return pick(std::integral_constant<int, 2>{});
    if (count == 4) return pick(std::integral_constant<int, 4>{});
    if constexpr (sizeof(T) == 4)
        if (count == 8) return pick(std::integral_constant<int, 8>{});  // 32 bytes: sm_100 and newer
    return nullptr;
}

template <bool is_load>
Execute find_access(std::string_view type, bool wide, int count) {
    const auto of_type = [&](auto* element) -> Execute {
        using T = std::remove_pointer_t<decltype(element)>;
        if (wide || sizeof(T) == 8) return of_count<T, is_load, uint64_t>(count);
        return of_count<T, is_load, uint32_t>(count);
    };
    if (type == "u8" || type == "b8") return of_type(static_cast<uint8_t*>(nullptr));
    if (type == "s8") return of_type(static_cast<int8_t*>(nullptr));
    if (type == "u16" || type == "b16" || type == "f16" || type == "bf16")
        return of_type(static_cast<uint16_t*>(nullptr));
    if (type == "s16") return of_type(static_cast<int16_t*>(nullptr));
    if (type == "u32" || type == "b32" || type == "f32") return of_type(static_cast<uint32_t*>(nullptr));
    if (type == "s32") return of_type(static_cast<int32_t*>(nullptr));
    if (type == "u64" || type == "b64" || type == "f64" || type == "s64")
        return of_type(static_cast<uint64_t*>(nullptr));
    return nullptr;
}

// Lanes run in order. Blocks run concurrently, so an update of global memory is also atomic on the host. Float sums in
// global memory flush subnormal numbers, unlike those in shared memory (PTX ISA, "atom"). A counter hands out numbers,
// and is no result of the kernel.
template <class T, auto F, bool kCounter = false>
void atomic(Warp& w, const Op& op) {
    using Word = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;
    const auto bits = [](T value) {
        Word word;
        std::memcpy(&word, &value, sizeof word);
        return word;
    };
    const auto value = [](Word word) {
        T result;
        std::memcpy(&result, &word, sizeof word);
        return result;
    };
    Addresses at;
    resolve(w, op, sizeof(T), "atomic", at);
    note_atomic(w, op, at, sizeof(T), !kCounter);
    Word before[kLanes] = {};
    const Word *b = w.at<const Word>(op.at[1]), *c = w.at<const Word>(op.at[2]);
    for (uint32_t left = w.mask; left; left &= left - 1) {
        const int i = first_lane(left);
        if (!all_written<sizeof(T)>(at.written[i])) fail_unwritten(w, op, i, at, sizeof(T), "atomic");
        std::atomic_ref<Word> word(*reinterpret_cast<Word*>(at.bytes[i]));
        Word old = word.load(), wanted;
        do {
            if constexpr (std::is_same_v<T, float>)
                wanted = bits(at.is_shared ? F(value(old), value(b[i]), 0.0f)
                                           : flush(F(flush(value(old)), flush(value(b[i])), 0.0f)));
            else
                wanted = bits(static_cast<T>(F(value(old), value(b[i]), value(c[i]))));
        } while (!word.compare_exchange_weak(old, wanted));
        before[i] = old;
    }
    if (op.count == 0) return;
    Word* const d = w.at<Word>(op.at[0]);
    for (int i = 0; i < kLanes; i++)
        if (has(w.mask, i)) d[i] = before[i];
}

template <class T>
Execute find_integer_atomic(std::string_view operation) {
    if (operation == "add")
        return atomic<T, [](T a, T x, T) {
            return static_cast<T>(static_cast<std::make_unsigned_t<T>>(a) + static_cast<std::make_unsigned_t<T>>(x));
        }>;
    if (operation == "inc") return atomic<T, [](T a, T x, T) { return static_cast<T>(a >= x ? 0 : a + 1); }, true>;
    if (operation == "min") return atomic<T, [](T a, T x, T) { return a < x ? a : x; }>;
    if (operation == "max") return atomic<T, [](T a, T x, T) { return a < x ? x : a; }>;
    if (operation == "and") return atomic<T, [](T a, T x, T) { return a & x; }>;
    if (operation == "or") return atomic<T, [](T a, T x, T) { return a | x; }>;
    if (operation == "xor") return atomic<T, [](T a, T x, T) { return a ^ x; }>;
    if (operation == "exch") return atomic<T, [](T, T x, T) { return x; }>;
    if (operation == "cas") return atomic<T, [](T a, T x, T y) { return a == x ? y : a; }>;
    return nullptr;
}

}  // namespace

Execute find_load(std::string_view type, bool wide, int count) { return find_access<true>(type, wide, count); }
Execute find_store(std::string_view type, bool wide, int count) { return find_access<false>(type, wide, count); }

Execute find_atomic(std::string_view operation, std::string_view type) {
    if (type == "u32" || type == "b32") return find_integer_atomic<uint32_t>(operation);
    if (type == "s32") return find_integer_atomic<int32_t>(operation);
    if (type == "u64" || type == "b64") return find_integer_atomic<uint64_t>(operation);
    if (type == "s64") return find_integer_atomic<int64_t>(operation);
    if (type == "f32" && operation == "add")
        return atomic<float, [](float a, float x, float) { return canonical(a + x); }>;
    if (type == "f64" && operation == "add")
        return atomic<double, [](double a, double x, double) { return canonical(a + x); }>;
    return nullptr;
}

// Op::mode 1 extends the sign.
void load_parameter(Warp& w, const Op& op) {
    const std::vector<unsigned char>& bytes = w.block->launch->parameters;
    const size_t begin = static_cast<size_t>(op.immediate);
    if (op.has_base || op.immediate < 0 || begin + size_t{op.size} * op.count > bytes.size())
        w.fail(op, first_lane(w.mask), "parameter out of bounds");
    for (size_t n = 0; n < op.count; n++) {
        uint64_t value = 0;
        std::memcpy(&value, bytes.data() + begin + n * op.size, op.size);
        const int unused = 64 - 8 * op.size;
        if (op.mode == 1) value = static_cast<uint64_t>(static_cast<int64_t>(value << unused) >> unused);
        for (int i = 0; i < kLanes; i++) {
            if (!has(w.mask, i)) continue;
            if (op.wide)
                w.at<uint64_t>(op.at[n])[i] = value;
            else
                w.at<uint32_t>(op.at[n])[i] = static_cast<uint32_t>(value);
        }
    }
}

void pack(Warp& w, const Op& op) {
    const uint64_t part = op.size == 4 ? 0xffffffffu : op.size == 2 ? 0xffffu : 0xffu;
    for (int i = 0; i < kLanes; i++) {
        if (!has(w.mask, i)) continue;
        uint64_t whole = 0;
        for (size_t n = 0; n < op.count; n++)
            whole |= (w.at<const uint32_t>(op.at[n + 1])[i] & part) << (8 * op.size * n);
        if (op.wide)
            w.at<uint64_t>(op.at[0])[i] = whole;
        else
            w.at<uint32_t>(op.at[0])[i] = static_cast<uint32_t>(whole);
    }
}

void unpack(Warp& w, const Op& op) {
    const uint64_t part = op.size == 4 ? 0xffffffffu : op.size == 2 ? 0xffffu : 0xffu;
    for (int i = 0; i < kLanes; i++) {
        if (!has(w.mask, i)) continue;
        const uint64_t whole = op.wide ? w.at<const uint64_t>(op.at[0])[i] : w.at<const uint32_t>(op.at[0])[i];
        for (size_t n = 0; n < op.count; n++)
            w.at<uint32_t>(op.at[n + 1])[i] = static_cast<uint32_t>(whole >> (8 * op.size * n) & part);
    }
}

}  // namespace virtual_gpu
