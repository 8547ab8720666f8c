#include "llmc/train/verification.h"

#include <algorithm>
#include <cstring>

#include "llmc/device/pci.h"
#include "llmc/kernels/checksum.h"

namespace llmc {
namespace {

std::string text_of(uint64_t checksum) { return strprintf("%016llx", static_cast<unsigned long long>(checksum)); }

// What the two checksums of a kind are of.
struct Moments {
    const char *what, *first, *second;
};
constexpr Moments kMoments[kVerifiedKinds] = {
    {"", "after the optimizer of the step before", "before that of this step"},
    {"weights ", "in memory", "recomputed from the masters"},
    {"", "in the first micro-step", "when it was computed again"},
    {"", "in the first micro-step", "when it was computed again"},
    {"sum of ", "in the first micro-step", "when it was computed again"},
    {"sum of ", "", "before the optimizer"},
};

}  // namespace

Verification::Verification(const Comm& comm, size_t checksums, size_t fp8_tensors) : comm_(comm), capacity_(checksums) {
    for (Round& round : rounds_) arena_.plan(&round.device, capacity_);
    if (fp8_tensors > 0) arena_.plan(&fp8_aside_, fp8_tensors);
}

void Verification::allocate() {
    arena_.allocate();
    for (Round& round : rounds_) {
        round.host = static_cast<Pair*>(pinned_malloc(capacity_ * sizeof(Pair)));
        for (Span& span : round.spans) span = {create_event(true), create_event(true)};
    }
}

Verification::~Verification() {
    for (Round& round : rounds_) {
        tear_down([&] { pinned_free(round.host); });
        for (const Span& span : round.spans)
            for (const event_t event : {span.begin, span.end})
                if (event) tear_down([&] { destroy_event(event); });
    }
}

// ---- taking checksums ----------------------------------------------------------------------------------------------

void Verification::begin(stream_t stream) {
    begun_++;
    Round& round = current();
    for (std::vector<Row>& rows : round.rows) rows.clear();
    round.seen_again = {};
    round.count = round.timed = 0;
    set_bytes(round.device, 0, capacity_ * sizeof(Pair), stream);
}

void Verification::end(int64_t step, stream_t stream) {
    Round& round = current();
    round.step = step;
    ended_ = begun_;
    copy_to_host(round.host, round.device, round.count * sizeof(Pair), stream);
}

Verification::Row& Verification::row_of(Verified kind, bool again, const std::string& name) {
    Round& round = current();
    const size_t k = static_cast<size_t>(kind), place = again ? round.seen_again[k]++ : round.rows[k].size();
    if (place < round.rows[k].size()) {
        Row& row = round.rows[k][place];
        if (row.name != name) throw Error(ExitCode::failure, row.name + " was to be seen again, not " + name);
        row.twice = true;
        return row;
    }
    if (round.count == capacity_) throw Error(ExitCode::failure, "there are more checksums than were planned");
    round.rows[k].push_back({name, round.count++});
    return round.rows[k].back();
}

void Verification::see(Verified kind, bool again, const NamedMemory& memory, bool everywhere, stream_t stream) {
    Row& row = row_of(kind, again, memory.name);
    row.everywhere = everywhere;
    Pair& pair = current().device[row.index];
    checksum(again ? &pair.second : &pair.first, memory.address, memory.bytes, stream);
}

event_t Verification::begin_span(stream_t stream) {
    Round& round = current();
    if (round.timed == kSpans) throw Error(ExitCode::failure, "a verification was timed too often");
    const Span& span = round.spans[round.timed++];
    record(span.begin, stream);
    return span.end;
}

// ---- comparing them ------------------------------------------------------------------------------------------------

std::optional<VerifiedStep> Verification::take(int64_t step) {
    if (taken_ == ended_) return std::nullopt;
    const Round& round = rounds_[static_cast<size_t>(taken_) % kRounds];
    if (round.step != step) return std::nullopt;
    taken_++;
    VerifiedStep verified;
    for (size_t i = 0; i < round.timed; i++) verified.ms += elapsed_ms(round.spans[i].begin, round.spans[i].end);
    verified.difference = difference_in(round);
    return verified;
}

// From what all ranks have found, so that all of them say the same.
std::string Verification::difference_in(const Round& round) const {
    std::vector<Pair> all(round.count * static_cast<size_t>(comm_.world()));
    comm_.host_all_gather(all.data(), round.host, round.count * sizeof(Pair));
    for (size_t kind = 0; kind < kVerifiedKinds; kind++)
        for (const Row& row : round.rows[kind]) {
            const std::string found = find(static_cast<Verified>(kind), row, all, round.count);
            if (!found.empty()) return found;
        }
    return "";
}

std::string Verification::find(Verified kind, const Row& row, const std::vector<Pair>& all, size_t count) const {
    const Moments& moments = kMoments[static_cast<size_t>(kind)];
    const auto of = [&](int rank) { return all[static_cast<size_t>(rank) * count + row.index]; };
    for (int rank = 0; row.twice && rank < comm_.world(); rank++)
        if (of(rank).first != of(rank).second)
            return strprintf("%s: %s%s had checksum %s %s, and %s %s", rank_and_card(rank).c_str(), moments.what,
                             row.name.c_str(), text_of(of(rank).first).c_str(), moments.first,
                             text_of(of(rank).second).c_str(), moments.second);
    if (!row.everywhere) return "";
    const auto alike = [&](int a) {  // how many ranks have what rank `a` has
        int n = 0;
        for (int b = 0; b < comm_.world(); b++) n += of(a).second == of(b).second;
        return n;
    };
    int most = 0, other = -1;  // a rank that has what most have, and the first that does not
    for (int rank = 1; rank < comm_.world(); rank++)
        if (alike(rank) > alike(most)) most = rank;
    for (int rank = comm_.world() - 1; rank >= 0; rank--)
        if (of(rank).second != of(most).second) other = rank;
    if (other < 0) return "";
    const std::string tie = 2 * alike(most) > comm_.world() ? "" : " (it is unknown which of them is wrong)";
    return strprintf("%s: %s%s had checksum %s %s, where %d of %d ranks, %d among them, had %s%s",
                     rank_and_card(other).c_str(), moments.what, row.name.c_str(), text_of(of(other).second).c_str(),
                     moments.second, alike(most), comm_.world(), most, text_of(of(most).second).c_str(), tie.c_str());
}

// A collective: "rank 1 on node7 (NVIDIA H100, 00000000:3b:00.0 GPU-3f...)".
std::string Verification::rank_and_card(int rank) const {
    char mine[160] = "";
    const std::string identity = device_identity();
    std::snprintf(mine, sizeof mine, "%s%s%s", device_info().name.c_str(), identity.empty() ? "" : ", ",
                  identity.c_str());
    std::vector<char> all(sizeof mine * static_cast<size_t>(comm_.world()));
    comm_.host_all_gather(all.data(), mine, sizeof mine);
    return strprintf("rank %d on %s (%s)", rank, comm_.host(rank).c_str(),
                     all.data() + sizeof mine * static_cast<size_t>(rank));
}

}  // namespace llmc
