// The coefficients of Newton-Schulz iterations, Muon's scale per shape, and the decay of --average.
#include "llmc/optim/config.h"

#include <algorithm>
#include <cmath>

#include "llmc/base/text.h"

namespace llmc {

NewtonSchulzSteps newton_schulz_steps(char set) {
    switch (set) {
        case 'k':
            return {std::vector<NewtonSchulzStep>(5, {3.4445, -4.7750, 2.0315})};
        case 'p':  // the first coefficients tolerate a norm that is a little too small
            return {{{8.156554524902461, -22.48329292557795, 15.878769915207462},
                     {4.042929935166739, -2.808917465908714, 0.5000178451051316},
                     {3.8916678022926607, -2.772484153217685, 0.5060648178503393},
                     {3.285753657755655, -2.3681294933425376, 0.46449024233003106},
                     {2.3465413258596377, -1.7097828382687081, 0.42323551169305323}},
                    1.02};
        default:
            throw Error(ExitCode::failure, "no Newton-Schulz steps are called '{:c}'", set);
    }
}

double muon_scale(MuonScale scale, int rows, int columns) {
    if (scale == MuonScale::rms) return 0.2 * std::sqrt(std::max(rows, columns));
    return std::sqrt(std::max(1.0, static_cast<double>(rows) / columns));
}

double average_decay_from_text(const std::string& text) {
    if (text == "off") return 0;
    const double decay = text.starts_with("ema:") ? number_in<double>(text.substr(4)).value_or(0) : 0;
    if (decay > 0 && decay < 1) return decay;
    if (text.starts_with("last:"))
        refuse(
            "--average {}: means over the last steps have been removed; use ema:DECAY, whose average covers about "
            "1 / (1 - DECAY) steps: ema:0.999 about 1000",
            text);
    refuse("--average {}: expected off, or ema:DECAY with a decay between 0 and 1, as in ema:0.999", text);
}

}  // namespace llmc
