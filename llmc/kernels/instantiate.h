// Explicit instantiations of function templates that do not repeat the functions' parameters, which are many:
//
//   LLMC_INSTANTIATE(copy_matrix<float>);            template void copy_matrix(float*, const float*, int, int, ...);
//   LLMC_INSTANTIATE_BOTH(copy_matrix, float, bf16);
//   LLMC_FOR_HEAD_DIMENSIONS(F)                      F(32) F(64) ..., for those of kHeadDimensions (attention.h)
//
// with_one_of() chooses one of several instantiations at run time.
#pragma once
#include "llmc/base/error.h"

#define LLMC_INSTANTIATE(...) template decltype(__VA_ARGS__) __VA_ARGS__
#define LLMC_INSTANTIATE_BOTH(f, A, B) \
    LLMC_INSTANTIATE(f<A>);            \
    LLMC_INSTANTIATE(f<B>)

#define LLMC_FOR_HEAD_DIMENSIONS(F) F(32) F(64) F(80) F(96) F(128) F(256)

namespace llmc {

// Calls f.template operator()<c>() for the one of the constants c that equals `value`. Throws if there is none.
template <auto... constants, class T, class F>
void with_one_of(const T& value, F&& f) {
    const bool found = ((value == constants && (f.template operator()<constants>(), true)) || ...);
    if (!found) throw Error(ExitCode::failure, "no kernel has been compiled for this case");
}

}  // namespace llmc
