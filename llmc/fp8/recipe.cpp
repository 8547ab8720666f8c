#include "llmc/fp8/recipe.h"

#include <cstdio>

#include <algorithm>
#include <cstdlib>
#include <iterator>

#include "llmc/device/error.h"

namespace llmc {

Fp8Recipe fp8_recipe_from_name(const std::string& name) {
    for (size_t i = 0; i < std::size(kFp8Recipes); i++)
        if (name == kFp8Recipes[i]) return static_cast<Fp8Recipe>(i);
    throw Error(ExitCode::bad_flags, "--fp8-recipe " + name + ": expected delayed, current, block or mxfp8");
}

Fp8Scaling scaling_of(Fp8Recipe recipe) {
    return recipe == Fp8Recipe::block   ? Fp8Scaling::block
           : recipe == Fp8Recipe::mxfp8 ? Fp8Scaling::mx
                                        : Fp8Scaling::tensor;
}

const char* name_of(BlockLinear linear) {
    switch (linear) {
        case BlockLinear::qkv:
            return "qkv";
        case BlockLinear::attn_proj:
            return "attn_proj";
        case BlockLinear::fc:
            return "fc";
        case BlockLinear::fc_proj:
            return "fc_proj";
    }
    return "";
}

Fp8Layers::Fp8Layers(const std::string& text, int blocks)
    : fp8_(static_cast<size_t>(blocks) + 1, std::vector<bool>(kBlockLinears, false)) {
    size_t begin = 0;
    while (begin <= text.size()) {
        const size_t end = std::min(text.find(',', begin), text.size());
        std::string term = text.substr(begin, end - begin);
        const bool value = term.empty() || term[0] != '-';
        if (!term.empty() && (term[0] == '-' || term[0] == '+')) term = term.substr(1);
        apply(term, value);
        begin = end + 1;
    }
}

void Fp8Layers::apply(const std::string& term, bool value) {
    const int blocks = this->blocks();
    auto refuse = [&] {
        throw Error(ExitCode::bad_flags, "--fp8-layers: unknown layer '" + term +
                                             "'; known are all, none, first, last, block0 to block" +
                                             std::to_string(blocks - 1) +
                                             ", qkv, attn_proj, fc, fc_proj, block0.fc_proj and the like, and lm_head");
    };
    if (term.empty()) refuse();  // "all," would otherwise be read as all layers again
    int first = 0, last = blocks - 1;
    std::string linear = term;
    if (term == "none") value = false;
    if (term == "none" || term == "lm_head") fp8_.back()[static_cast<size_t>(kHeadLinear)] = value;
    if (term == "lm_head") return;
    if (term == "all" || term == "none")
        linear.clear();
    else if (term == "first")
        last = 0, linear.clear();
    else if (term == "last")
        first = last, linear.clear();
    else if (term.rfind("block", 0) == 0) {
        const size_t dot = term.find('.');
        const std::string number = term.substr(5, dot == std::string::npos ? dot : dot - 5);
        if (number.empty() || number.find_first_not_of("0123456789") != std::string::npos || number.size() > 6)
            refuse();
        first = last = std::atoi(number.c_str());
        if (first >= blocks) refuse();
        linear = dot == std::string::npos ? "" : term.substr(dot + 1);
        if (dot != std::string::npos && linear.empty()) refuse();
    }
    bool known = linear.empty();
    for (int block = first; block <= last; block++)
        for (const BlockLinear l : kBlockLinearLayers) {
            if (!linear.empty() && linear != name_of(l)) continue;
            fp8_[static_cast<size_t>(block)][static_cast<size_t>(l)] = value;
            known = true;
        }
    if (!known) refuse();
}

int Fp8Layers::count() const {
    int n = 0;
    for (int block = 0; block < blocks(); block++)
        for (const bool fp8 : fp8_[static_cast<size_t>(block)]) n += fp8;
    return n;
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
                        "of optimizer steps from 1 on, as in 0.01,0.5,10");
    return rule;
}

}  // namespace llmc
