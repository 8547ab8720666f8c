// Reading --fp8-layers, --fp8-fallback and --fp8-until. See recipe.h.
#include "llmc/fp8/recipe.h"

#include <cstdio>

#include <algorithm>
#include <cmath>
#include <cstdlib>

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
            throw Error(ExitCode::bad_flags, "--fp8-layers {}: unknown layer ''", text);
    }
    return terms;
}

Fp8Layers::Fp8Layers(const Fp8LayerTerms& terms, int blocks, const std::vector<std::string>& names) {
    for (const Fp8LayerTerm& term : terms) apply(term, blocks, names);
}

void Fp8Layers::set(const std::string& layer, bool value) {
    if (value)
        fp8_.insert(layer);
    else
        fp8_.erase(layer);
}

void Fp8Layers::apply(const Fp8LayerTerm& added, int blocks, const std::vector<std::string>& names) {
    const auto& [term, value] = added;
    auto refuse = [&] {
        std::string known;
        for (const std::string& name : names) known += name + ", ";
        throw Error(ExitCode::bad_flags, "--fp8-layers: unknown layer '" + term +
                                             "'; known are all, none, first, last, block0 to block" +
                                             std::to_string(blocks - 1) + ", " + known + "block0." + names.back() +
                                             " and the like, and " + kHeadLayer);
    };
    if (term == "none") fp8_.clear();
    if (term == kHeadLayer) set(kHeadLayer, value);
    if (term == "none" || term == kHeadLayer) return;
    int first = 0, last = blocks - 1;
    std::string wanted = term;  // a layer of the blocks, or "" for all of them
    if (term == "all") {
        wanted.clear();
    } else if (term == "first") {
        last = 0;
        wanted.clear();
    } else if (term == "last") {
        first = last;
        wanted.clear();
    } else if (term.rfind("block", 0) == 0) {
        const size_t dot = term.find('.');
        const std::string number = term.substr(5, dot == std::string::npos ? dot : dot - 5);
        if (number.empty() || number.find_first_not_of("0123456789") != std::string::npos || number.size() > 6)
            refuse();
        first = last = std::atoi(number.c_str());
        if (first >= blocks) refuse();
        wanted = dot == std::string::npos ? "" : term.substr(dot + 1);
        if (dot != std::string::npos && wanted.empty()) refuse();
    }
    bool known = wanted.empty();
    for (int block = first; block <= last; block++)
        for (const std::string& name : names) {
            if (!wanted.empty() && wanted != name) continue;
            set("h." + std::to_string(block) + "." + name, value);
            known = true;
        }
    if (!known) refuse();
}

Fp8FallbackRule fp8_fallback_from_text(const std::string& text) {
    Fp8FallbackRule rule;
    if (text == "off") return rule;
    int used = 0;
    const bool read =
        std::sscanf(text.c_str(), "%f,%f,%d%n", &rule.saturated, &rule.underflowed, &rule.steps, &used) == 3 &&
        static_cast<size_t>(used) == text.size();
    const auto is_fraction = [](float value) { return value > 0 && value <= 1; };
    if (!read || !is_fraction(rule.saturated) || !is_fraction(rule.underflowed) || rule.steps < 1)
        throw Error(ExitCode::bad_flags,
                    "--fp8-fallback " + text +
                        ": expected off or SATURATED,UNDERFLOWED,STEPS, two fractions above 0 and up to 1 and a number "
                        "of optimizer steps of at least 1, such as 0.01,0.5,10");
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
    const std::string number = text.substr(0, text.size() - until.is_percentage);
    int used = 0;
    const bool read = std::sscanf(number.c_str(), "%lf%n", &until.value, &used) == 1 &&
                      static_cast<size_t>(used) == number.size() && until.value > 0;
    if (!read ||
        (until.is_percentage ? until.value > 100 : until.value != std::floor(until.value) || until.value > 1e15))
        throw Error(ExitCode::bad_flags,
                    "--fp8-until " + text + ": expected off, a step or a percentage of the run, such as 9400 or 94%");
    return until;
}

}  // namespace llmc
