// The token shards of a run, opened before anything is allocated.
#pragma once
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "llmc/data/shards.h"
#include "llmc/run/options.h"

namespace llmc {

struct Inputs {
    std::unique_ptr<ShardSet> train;                                     // nullptr: none given
    std::vector<std::pair<std::string, std::unique_ptr<ShardSet>>> val;  // by name

    explicit Inputs(const Options& options);
    // Throws Error(bad_data) where a token does not fit.
    void check_vocabulary(int vocab) const;
    // What the shards tell resolve(). The rest of ResolveInputs is as it was.
    void describe(ResolveInputs& surroundings) const;
};

}  // namespace llmc
