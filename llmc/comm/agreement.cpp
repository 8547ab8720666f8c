// Exchange of texts and errors between ranks, on top of host collectives.
#include "llmc/comm/agreement.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <sstream>

#include "llmc/comm/backend.h"

namespace llmc {

// Checkpoint manifests of large runs have some MiB. A longer text from another rank is a mistake or an attack.
constexpr int64_t kLongestText = int64_t{64} << 20;

static int64_t longest_text(const Comm& comm, size_t mine) {
    const int64_t longest = comm.host_max(static_cast<int64_t>(mine));
    if (longest < 0 || longest > kLongestText)
        throw Error(ExitCode::communication, "ranks exchange a text of {} bytes, and {} is the most", longest,
                    kLongestText);
    return longest;
}

std::vector<std::string> gather_texts(const Comm& comm, const std::string& mine) {
    const size_t world = static_cast<size_t>(comm.world());
    const int64_t longest = longest_text(comm, mine.size());
    const size_t row = sizeof(uint64_t) + static_cast<size_t>(longest);
    std::vector<char> padded(row, '\0'), all(row * world);
    const uint64_t length = mine.size();
    std::memcpy(padded.data(), &length, sizeof length);
    std::copy(mine.begin(), mine.end(), padded.begin() + sizeof length);
    comm.host_all_gather(all.data(), padded.data(), row);
    std::vector<std::string> texts;
    for (size_t r = 0; r < world; r++) {
        uint64_t bytes;
        std::memcpy(&bytes, all.data() + r * row, sizeof bytes);
        if (bytes > static_cast<uint64_t>(longest))
            throw Error(ExitCode::communication,
                        "rank {} announces a text of {} bytes, and the longest of all ranks has {}", r, bytes, longest);
        texts.emplace_back(all.data() + r * row + sizeof bytes, bytes);
    }
    return texts;
}

std::vector<std::string> describe_ranks(const Comm& comm) {
    const std::string identity = device_identity();
    std::vector<std::string> ranks = gather_texts(comm, device_info().name + (identity.empty() ? "" : ", " + identity));
    for (size_t r = 0; r < ranks.size(); r++)
        ranks[r] = fmt::format("rank {} on {} ({})", r, comm.host(static_cast<int>(r)),
                               peer_text(ranks[r].data(), ranks[r].size()));
    return ranks;
}

std::string broadcast_text(const Comm& comm, const std::string& text) {
    const int64_t bytes = longest_text(comm, comm.is_main() ? text.size() : 0);
    std::string received = comm.is_main() ? text : "";
    received.resize(bytes);
    if (bytes > 0) comm.host_broadcast(received.data(), static_cast<size_t>(bytes), 0);
    return received;
}

std::pair<std::string, std::string> first_difference(const std::string& a, const std::string& b) {
    std::istringstream lines_a(a), lines_b(b);
    std::string line_a, line_b;
    do {
        if (!std::getline(lines_a, line_a)) line_a.clear();
        if (!std::getline(lines_b, line_b)) line_b.clear();
    } while (line_a == line_b && (lines_a || lines_b));
    return {line_a, line_b};
}

void require_same_inputs(const Comm& comm, const InputFingerprints& mine) {
    std::string text;
    for (const auto& [name, fingerprint] : mine) text += fmt::format("{:016x} {}\n", fingerprint, name);
    const std::vector<std::string> texts = gather_texts(comm, text);
    const auto other = std::find_if(texts.begin(), texts.end(), [&](const std::string& t) { return t != texts[0]; });
    if (other == texts.end()) return;
    auto [a, b] = first_difference(texts[0], *other);
    a = peer_text(a.data(), a.size());
    b = peer_text(b.data(), b.size());
    const int rank = static_cast<int>(other - texts.begin());
    const std::string& line = b.empty() ? a : b;  // this rank may have found no such file
    refuse_data(
        "rank {} on {} has read another {} than rank 0 (their fingerprints are {} and {}); give all ranks the "
        "same files",
        rank, comm.host(rank), line.size() > 17 ? line.substr(17) : "input", b.empty() ? "none" : b.substr(0, 16),
        a.empty() ? "none" : a.substr(0, 16));
}

Failure first_failure(const Comm& comm, const Failure& mine) {
    if (comm.host_max(mine ? 1 : 0) == 0) return {};
    const std::vector<std::string> texts =
        gather_texts(comm, mine ? std::to_string(static_cast<int>(mine.code)) + " " + mine.text : "");
    for (size_t r = 0; r < texts.size(); r++) {
        if (texts[r].empty()) continue;
        const std::string rank = texts.size() > 1 ? fmt::format("rank {}: ", r) : "";
        const int code = std::atoi(texts[r].c_str());
        return {code > 0 && code < 256 ? static_cast<ExitCode>(code) : ExitCode::failure,
                rank + texts[r].substr(texts[r].find(' ') + 1)};
    }
    return {};
}

}  // namespace llmc
