#include "llmc/commands/loaded_model.h"

namespace llmc {

void resolve_for(const ModelConfig& model, Options& o, ResolveInputs surroundings, const Ranks& ranks) {
    o.layers = model.layers, o.heads = model.heads, o.channels = model.channels;
    o.vocab = model.vocab, o.context = model.context;
    surroundings.model = &model;
    ranks.describe(surroundings);
    resolve(o, surroundings);
}

}  // namespace llmc
