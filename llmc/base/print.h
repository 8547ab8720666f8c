// Lines for people, on standard output and standard error. A line that cannot be written is lost, because a run goes on
// without its reader.
#pragma once
#include <cstdio>

#include "llmc/base/error.h"

namespace llmc {

// Prints fmt::format(format, values...) and a newline.
template <class... Values>
void print_line(fmt::format_string<Values...> format, Values&&... values) {
    std::fputs((fmt::format(format, std::forward<Values>(values)...) + "\n").c_str(), stdout);
}
template <class... Values>
void print_error(fmt::format_string<Values...> format, Values&&... values) {
    std::fputs((fmt::format(format, std::forward<Values>(values)...) + "\n").c_str(), stderr);
}

}  // namespace llmc
