// What ranks tell each other beside numbers: texts, and that something went wrong. All of these are collectives.
#pragma once
#include <exception>
#include <string>
#include <vector>

#include "llmc/base/error.h"
#include "llmc/comm/comm.h"

namespace llmc {

// Every rank's text, in the order of the ranks.
std::vector<std::string> gather_texts(const Comm& comm, const std::string& mine);
// Rank 0's text, on every rank.
std::string broadcast_text(const Comm& comm, const std::string& text);

struct Failure {
    ExitCode code = ExitCode::ok;
    std::string text;
    explicit operator bool() const { return code != ExitCode::ok; }
};

// What an Error of `work` says; no collective.
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
// The failure of the first rank that has one ("rank 3: ..." where there are several ranks), on every rank.
Failure first_failure(const Comm& comm, const Failure& mine);

// Every rank does its `work`; what goes wrong on one is thrown on all.
template <class Work>
void do_together(const Comm& comm, Work&& work) {
    if (const Failure failure = first_failure(comm, failure_of(work))) throw Error(failure.code, failure.text);
}

}  // namespace llmc
