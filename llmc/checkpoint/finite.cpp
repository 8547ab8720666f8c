// The search for the first non-finite value of a tensor.
#include "llmc/checkpoint/finite.h"

#include <algorithm>
#include <cmath>

#include "llmc/base/error.h"

namespace llmc {

void require_finite(const std::string& path, const std::string& tensor, const std::vector<int64_t>& shape,
                    const std::vector<float>& values) {
    const auto found = std::find_if(values.begin(), values.end(), [](float value) { return !std::isfinite(value); });
    if (found == values.end()) return;
    const char* const what = std::isnan(*found) ? "NaN" : *found > 0 ? "Inf" : "-Inf";
    const int64_t at = found - values.begin(), rows = std::max<int64_t>(shape.empty() ? 1 : shape[0], 1);
    const int64_t columns = std::max<int64_t>(static_cast<int64_t>(values.size()) / rows, 1);
    const std::string place = shape.size() < 2
                                  ? strprintf("element %lld", static_cast<long long>(at))
                                  : strprintf("row %lld, column %lld", static_cast<long long>(at / columns),
                                              static_cast<long long>(at % columns));
    throw Error(ExitCode::checkpoint,
                strprintf("%s: %s has %s at %s; a run that starts from it would compute nothing but NaN", path.c_str(),
                          tensor.c_str(), what, place.c_str()));
}

}  // namespace llmc
