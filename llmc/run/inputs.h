// The token shards of a run, opened before anything is allocated.
#pragma once
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "llmc/data/choices.h"
#include "llmc/data/shards.h"
#include "llmc/run/options.h"

namespace llmc {

struct Inputs {
    std::unique_ptr<ShardSet> train;                                     // nullptr: none given
    std::vector<std::pair<std::string, std::unique_ptr<ShardSet>>> val;  // by name
    std::vector<Choices> hellaswag;                                      // empty: none given

    explicit Inputs(const Options& options);
    // Throws Error(bad_data) where a token, or an example, does not fit what the resolved options say.
    void check(const Options& options) const;
    // What the shards tell resolve(). The rest of ResolveInputs is as it was.
    void describe(ResolveInputs& surroundings) const;
};

}  // namespace llmc
