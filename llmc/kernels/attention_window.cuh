// Which keys a query sees: up to its own, those of its window that belong to its document.
#pragma once
#include "llmc/device/keywords.cuh"

namespace llmc::attention {

// Whether a query sees the key that many places before it.
LLMC_HD bool in_window(int distance, int window) {
    return static_cast<unsigned>(distance) < static_cast<unsigned>(window);
}

// The first key that a query sees, rounded down to a multiple of `rows`.
LLMC_HD int first_seen_key(int query, int window, int rows) {
    return query < window ? 0 : (query - window + 1) / rows * rows;
}

// How many keys each query of a sequence sees, its own and those before it: a document makes the window narrower. The
// first key seen never goes back from one query to the next, so the first and the last query of a tile speak for all.
template <bool kDocuments>
struct Windows {
    int window;
    const int* documents;  // (T) of the sequence, see attention.h; not read without kDocuments
    int T;

    LLMC_DEVICE int operator()(int query) const {
        if constexpr (!kDocuments) return window;
        const int of_document = query + 1 - documents[query < T ? query : T - 1];
        return of_document < window ? of_document : window;
    }
};

// The windows of the rows whose results a lane holds: rows g and g + 8 of each fragment of a warp's queries.
template <bool kDocuments, int Rows>
struct RowWindows {
    int of_row[kDocuments ? Rows : 1];

    LLMC_DEVICE RowWindows(const Windows<kDocuments>& windows, int warp_query) {
        const int g = static_cast<int>(threadIdx.x & 31) >> 2;
        LLMC_UNROLL
        for (int row = 0; row < (kDocuments ? Rows : 1); row++)
            of_row[row] = windows(warp_query + 16 * (row >> 1) + 8 * (row & 1) + g);
    }
    LLMC_DEVICE int operator[](int row) const { return of_row[kDocuments ? row : 0]; }
};

// Calls f.template operator()<kDocuments>().
template <class F>
void with_documents(const int* documents, F&& f) {
    if (documents)
        f.template operator()<true>();
    else
        f.template operator()<false>();
}

}  // namespace llmc::attention
