#include "llmc/log/skips.h"

#include <cmath>

#include "llmc/base/error.h"
#include "llmc/base/text.h"

namespace llmc {

std::string why_skipped(const StepResult& result, const Fp8Registry* fp8) {
    const StepState& state = result.state;
    const bool bad_loss = !std::isfinite(result.loss);
    if (fp8 && state.bad_tensor > 0) {
        const int tensor = state.bad_tensor - 1;
        if (role_of(tensor) != Fp8Role::dout || !bad_loss)
            return strprintf("the first FP8 tensor with a value that is not finite was %s", fp8->name(tensor).c_str());
    }
    if (bad_loss) return strprintf("the loss was %f", unsigned_nan(result.loss));
    if (!std::isfinite(state.norm)) return strprintf("the gradient norm was %f", unsigned_nan(state.norm));
    if (state.spike & kLossSpike)
        return strprintf("the loss was a spike, %.6g where %.6g is the limit", result.loss, result.loss_limit);
    return strprintf("the gradient norm was a spike, %.6g where %.6g is the limit", state.norm,
                     static_cast<double>(state.norm_limit));
}

void check_skips(const StepResult& result, int max_skips, const Fp8Registry* fp8) {
    if (max_skips == 0 || result.state.consecutive_skips < max_skips) return;
    throw Error(ExitCode::bad_numbers,
                strprintf("%s skipped in a row; in the last, step %lld, %s; lower -l, or see --max-skips",
                          plural(result.state.consecutive_skips, "step").c_str(), static_cast<long long>(result.step),
                          why_skipped(result, fp8).c_str()));
}

}  // namespace llmc
