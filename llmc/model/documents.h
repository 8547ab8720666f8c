// Documents packed into rows of tokens. The end token stands in front of every document, as data/prepare and llm.c
// write shards: it is the document's first token. What comes in a row before the first one goes on with a document from
// before the row, and begins with it.
#pragma once

namespace llmc {

// documents (B, T): where the document of each of `tokens` (B, T) begins, as a place in its row.
inline void mark_documents(int* documents, const int* tokens, int B, int T, int end_token) {
    for (int b = 0; b < B; b++, documents += T, tokens += T)
        for (int t = 0, begin = 0; t < T; t++) {
            if (tokens[t] == end_token) begin = t;
            documents[t] = begin;
        }
}

}  // namespace llmc
