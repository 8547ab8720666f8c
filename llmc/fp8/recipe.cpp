// Reading --fp8-layers, --fp8-fallback and --fp8-until. See recipe.h.
#include "llmc/fp8/recipe.h"

#include <algorithm>
#include <cmath>

#include "llmc/base/error.h"

namespace llmc {

Fp8Scaling scaling_of(Fp8Recipe recipe) {
    return recipe == Fp8Recipe::block   ? Fp8Scaling::block
           : recipe == Fp8Recipe::mxfp8 ? Fp8Scaling::mx
                                        : Fp8Scaling::tensor;
}

Fp8LayerTerms fp8_layers_from_text(const std::string& text) {
    Fp8LayerTerms terms;
    for (size_t begin = 0, end; begin <= text.size(); begin = end + 1) {
        end = std::min(text.find(',', begin), text.size());
        const bool removes = text[begin] == '-', has_sign = removes || text[begin] == '+';
        terms.push_back({text.substr(begin + has_sign, end - begin - has_sign), !removes});
        if (terms.back().layers.empty())  // otherwise "all," would mean all layers again
            refuse("--fp8-layers {}: unknown layer ''", text);
    }
    return terms;
}

// Adds the layers of a term to `fp8`, or removes them.
static void apply(Fp8Layers& fp8, const Fp8LayerTerm& added, int blocks, const std::vector<std::string>& names) {
    const auto& [term, adds] = added;
    const auto set = [&](const std::string& layer) {
        if (adds)
            fp8.names.insert(layer);
        else
            fp8.names.erase(layer);
    };
    if (term == "none") return fp8.names.clear();
    if (term == "forward") return void(fp8.forward = adds);
    if (term == kHeadLayer) return set(kHeadLayer);
    int first = term == "last" ? blocks - 1 : 0, last = term == "first" ? 0 : blocks - 1;
    std::string wanted;  // a layer of these blocks; "" for all of them
    bool known = true;
    if (term.starts_with("block")) {
        const size_t dot = std::min(term.find('.'), term.size());
        const std::optional<unsigned> block = number_in<unsigned>(std::string_view(term).substr(5, dot - 5));
        known = block && *block < static_cast<unsigned>(blocks) && dot + 1 != term.size();
        first = last = static_cast<int>(block.value_or(0));
        wanted = term.substr(std::min(dot + 1, term.size()));
    } else if (term != "all" && term != "first" && term != "last") {
        wanted = term;
    }
    if (!known || !(wanted.empty() || contains(names, wanted)))
        refuse(
            "--fp8-layers: unknown layer '{}'; known are auto, all, none, first, last, block0 to block{}, {}, "
            "block0.{} and the like, {}, and forward",
            term, blocks - 1, joined(names), names.back(), kHeadLayer);
    for (int block = first; block <= last; block++)
        for (const std::string& name : names)
            if (wanted.empty() || wanted == name) set(fmt::format("h.{}.{}", block, name));
}

Fp8Layers fp8_layers(const Fp8LayerTerms& terms, int blocks, const std::vector<std::string>& names,
                     Fp8Scaling scaling) {
    Fp8Layers fp8;
    for (const Fp8LayerTerm& term : terms)
        if (term == Fp8LayerTerm{"auto"})
            for (const Fp8LayerTerm& part : fp8_layers_from_text(fp8_layers_auto(blocks, scaling)))
                apply(fp8, part, blocks, names);
        else
            apply(fp8, term, blocks, names);
    return fp8;
}

Fp8FallbackRule fp8_fallback_from_text(const std::string& text) {
    Fp8FallbackRule rule;
    if (text == "off") return rule;
    if (const std::vector<std::string> parts = split(text, ','); parts.size() == 3)
        rule = {number_in<float>(parts[0]).value_or(0), number_in<float>(parts[1]).value_or(0),
                number_in<int>(parts[2]).value_or(0)};
    const auto is_fraction = [](float value) { return value > 0 && value <= 1; };
    if (!is_fraction(rule.saturated) || !is_fraction(rule.underflowed) || rule.steps < 1)
        refuse(
            "--fp8-fallback {}: expected off or SATURATED,UNDERFLOWED,STEPS, two fractions above 0 and up to 1 and "
            "a number of optimizer steps of at least 1, such as 0.01,0.5,10",
            text);
    return rule;
}

int64_t Fp8Until::step(int64_t max_steps) const {
    if (value < 0) return kNever;
    if (is_percentage && max_steps < 0) return kNever - 1;  // known when the data is; layers will leave, though
    return static_cast<int64_t>(is_percentage ? value * static_cast<double>(max_steps) / 100 : value);
}

Fp8Until fp8_until_from_text(const std::string& text) {
    Fp8Until until;
    if (text == "off") return until;
    until.is_percentage = text.ends_with('%');
    until.value = number_in<double>(text.substr(0, text.size() - until.is_percentage)).value_or(0);
    const bool is_step = until.value == std::floor(until.value) && until.value <= 1e15;
    if (!(until.value > 0) || !(until.is_percentage ? until.value <= 100 : is_step))
        refuse("--fp8-until {}: expected off, a step or a percentage of the run, such as 9400 or 94%", text);
    return until;
}

}  // namespace llmc
