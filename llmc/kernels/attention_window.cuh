// The keys that a query sees: up to its own, within its window, and only those of its document.
#pragma once
#include "llmc/device/keywords.cuh"

namespace llmc::attention {

// True if a query sees the key `distance` places before it.
LLMC_HD bool in_window(int distance, int window) {
    return static_cast<unsigned>(distance) < static_cast<unsigned>(window);
}

// The first key that a query sees, rounded down to a multiple of `rows`.
LLMC_HD int first_seen_key(int query, int window, int rows) {
    return query < window ? 0 : (query - window + 1) / rows * rows;
}

// Number of keys that each query of a sequence sees, the last of them its own; a document makes the window narrower.
// The first key seen never decreases from one query to the next, so the first and the last query of a tile bound all
// others.
template <bool kDocuments>
struct Windows {
    int window;
    const int* documents;  // (B, T), see attention.h; or nullptr, as always without kDocuments
    int first, T;          // start of the sequence in `documents`, and its length

    LLMC_DEVICE int operator()(int query) const {
        if (!kDocuments || !documents) return window;
        return narrower(query + 1 - documents[first + (query < T ? query : T - 1)]);
    }
    // The same for a key: number of queries that see it, the first of them its own.
    LLMC_DEVICE int of_key(int key) const {
        if (!kDocuments || !documents) return window;
        int end = key + 1, beyond = T;  // the document's end lies between them
        while (end < beyond) {
            const int middle = end + (beyond - end) / 2;
            if (documents[first + middle] <= key)
                end = middle + 1;
            else
                beyond = middle;
        }
        return narrower(end - key);
    }
    LLMC_DEVICE int narrower(int of_document) const { return of_document < window ? of_document : window; }
};

// The windows of a block's own rows. With documents they lie in shared memory, because no registers are left for them.
// (Loops have the condition `kDocuments ? windows[row] : window`, which keeps the machine code of the kernels without
// documents as it was.)
template <bool kDocuments>
struct RowWindows {
    const int* rows;

    LLMC_DEVICE RowWindows from(int row) const { return {rows + row}; }
    LLMC_DEVICE int operator[](int row) const { return rows[row]; }
};
template <>
struct RowWindows<false> {
    int window;

    LLMC_DEVICE RowWindows from(int) const { return *this; }
    LLMC_DEVICE int operator[](int) const { return window; }
};
template <bool kDocuments, int Rows>
constexpr size_t kRowWindowBytes = kDocuments ? Rows * sizeof(int) : 0;

// Fills the shared memory of a block's `Rows` rows. The next barrier makes them visible.
template <int Rows, int Threads, bool kDocuments, class WindowOf>
LLMC_DEVICE RowWindows<kDocuments> row_windows(int* rows, const Windows<kDocuments>& windows, WindowOf&& window_of) {
    if constexpr (kDocuments) {
        for (int row = static_cast<int>(threadIdx.x); row < Rows; row += Threads) rows[row] = window_of(row);
        return {rows};
    } else {
        return {windows.window};
    }
}

}  // namespace llmc::attention
