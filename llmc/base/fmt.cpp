// The part of the fmt library that is not in <fmt/core.h>. Compiled into the program, which therefore needs no libfmt
// where it runs.
#define FMT_HEADER_ONLY
#include <fmt/format.h>

namespace llmc {

// The compiler emits an inline function only where it is used.
[[gnu::used]] static std::string (*const emitted)(fmt::string_view, fmt::format_args) = &fmt::vformat;

}  // namespace llmc
