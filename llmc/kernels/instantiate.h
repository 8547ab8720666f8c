// Explicit instantiations of function templates that do not repeat the functions' parameters, which are many:
//
//   LLMC_INSTANTIATE(copy_matrix<float>);            template void copy_matrix(float*, const float*, int, int, ...);
//   LLMC_INSTANTIATE_BOTH(copy_matrix, float, bf16);
//   LLMC_FOR_HEAD_DIMENSIONS(F)                      F(32) F(64) ..., for those of kHeadDimensions (attention.h)
#pragma once

#define LLMC_INSTANTIATE(...) template decltype(__VA_ARGS__) __VA_ARGS__
#define LLMC_INSTANTIATE_BOTH(f, A, B) \
    LLMC_INSTANTIATE(f<A>);            \
    LLMC_INSTANTIATE(f<B>)

#define LLMC_FOR_HEAD_DIMENSIONS(F) F(32) F(64) F(80) F(96) F(128) F(256)
