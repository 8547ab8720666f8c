// Finds the reason of a skipped step in its record.
#include "llmc/log/skips.h"

#include <cmath>

#include "llmc/base/error.h"
#include "llmc/base/text.h"

namespace llmc {

std::string why_skipped(const StepRecord& record, const Fp8Registry* fp8) {
    const bool bad_loss = !std::isfinite(record.loss);
    if (fp8 && record.bad_tensor > 0) {
        const int tensor = record.bad_tensor - 1;
        if (role_of(tensor) != Fp8Role::dout || !bad_loss)
            return strprintf("the first FP8 tensor with a value that is not finite was %s", fp8->name(tensor).c_str());
    }
    if (bad_loss) return strprintf("the loss was %f", unsigned_nan(record.loss));
    if (!std::isfinite(record.norm)) return strprintf("the gradient norm was %f", unsigned_nan(record.norm));
    if (record.spike.loss)
        return strprintf("the loss was a spike, %.6g where %.6g is the limit", record.loss, *record.spike.loss);
    return strprintf("the gradient norm was a spike, %.6g where %.6g is the limit", record.norm,
                     record.spike.norm.value_or(0));
}

void check_skips(const StepRecord& record, int max_skips, const Fp8Registry* fp8) {
    if (max_skips == 0 || record.consecutive_skips < max_skips) return;
    throw Error(ExitCode::bad_numbers,
                strprintf("%s skipped in a row; in the last, step %lld, %s; lower -l, or see --max-skips",
                          plural(record.consecutive_skips, "step").c_str(), static_cast<long long>(record.step),
                          why_skipped(record, fp8).c_str()));
}

}  // namespace llmc
