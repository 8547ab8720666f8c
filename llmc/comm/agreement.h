// Texts, sums and errors that ranks exchange. All functions are collectives unless noted.
#pragma once
#include <cstdint>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "llmc/base/error.h"
#include "llmc/comm/comm.h"

namespace llmc {

// Returns every rank's text, in the order of the ranks.
std::vector<std::string> gather_texts(const Comm& comm, const std::string& mine);
// Returns "rank 1 on node7 (NVIDIA H100, 00000000:3b:00.0 GPU-3f...)" of every rank.
std::vector<std::string> describe_ranks(const Comm& comm);
// Returns rank 0's text on every rank.
std::string broadcast_text(const Comm& comm, const std::string& text);

// The first line in which two texts differ, of each text; "" for a line that is missing. Not a collective.
std::pair<std::string, std::string> first_difference(const std::string& a, const std::string& b);

// The inputs of a rank by name ("training set 'x.bin'"), with fingerprints of their content.
using InputFingerprints = std::vector<std::pair<std::string, uint64_t>>;
// Throws the same Error(bad_data) on every rank unless all ranks have read the same. The message names the first input
// that differs.
void require_same_inputs(const Comm& comm, const InputFingerprints& mine);

// Returns the vectors of all ranks added up element by element, in the order of the ranks. They have the same length.
template <class T>
std::vector<T> sum_over_ranks(const Comm& comm, const std::vector<T>& mine) {
    std::vector<T> all(mine.size() * static_cast<size_t>(comm.world())), sums(mine.size());
    comm.host_all_gather(all.data(), mine.data(), mine.size() * sizeof(T));
    for (size_t i = 0; i < all.size(); i++) sums[i % mine.size()] += all[i];
    return sums;
}

// An Error as a value that can be sent to other ranks.
struct Failure {
    ExitCode code = ExitCode::ok;
    std::string text;
    explicit operator bool() const { return code != ExitCode::ok; }
};

// Runs `work` and returns its Error, if any. Not a collective.
template <class Work>
Failure failure_of(Work&& work) {
    try {
        work();
    } catch (const Error& error) {
        return {error.code(), error.what()};
    } catch (const std::exception& error) {
        return {ExitCode::failure, error.what()};
    }
    return {};
}
// Returns, on every rank, the failure of the lowest rank that has one; with several ranks it begins with "rank 3: ".
Failure first_failure(const Comm& comm, const Failure& mine);

// Every rank does its `work`. If it fails on any rank, all ranks throw the same Error.
template <class Work>
void do_together(const Comm& comm, Work&& work) {
    if (const Failure failure = first_failure(comm, failure_of(work))) throw Error(failure.code, failure.text);
}

}  // namespace llmc
