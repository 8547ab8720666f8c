// The few macros that let two compilers build one kernel source.
//
//   nvcc  compiles for a GPU and sees CUDA's own keywords and intrinsics.
//   g++   compiles for the host device (host/), which declares the same names.
//
// A kernel includes "llmc/device/kernel.cuh" and nothing from CUDA.
#pragma once
#if defined(__CUDACC__)
#define LLMC_ON_GPU 1
#else
#define LLMC_ON_GPU 0
#endif

#if LLMC_ON_GPU
#include <cuda_runtime.h>
#define LLMC_HD __host__ __device__ __forceinline__  // callable from kernels and from host code
#define LLMC_DEVICE __device__ __forceinline__       // callable from kernels
#define LLMC_DEVICE_SAME_BITS LLMC_DEVICE  // the same, for functions whose results must have equal bits at every call
#else
#define LLMC_HD inline __attribute__((always_inline))
// Not always inlined: if every instance of a kernel inlined all of it, g++ would take up to three times as long, and
// the program would run no faster.
#define LLMC_DEVICE inline
// noipa compiles the function once, so no caller can get a differently optimised copy.
#define LLMC_DEVICE_SAME_BITS __attribute__((noipa))
#endif

// Parameters for the caller's file and line, which the host device names in its messages: the compiler evaluates a
// default argument at the call.
#if LLMC_ON_GPU
#define LLMC_CALLER const char *file = nullptr, int line = 0
#else
#define LLMC_CALLER const char *file = __builtin_FILE(), int line = __builtin_LINE()
#endif

// Unroll the following loop in device code, or never unroll it. nvcc unrolls short loops by itself: a loop over a few
// statements needs no mark if its number of turns is a literal of at most 16. If nvcc left such a loop in place and it
// indexes an array, dev/check_kernels.py would find the array in local memory. g++ and nvcc's host pass would only warn
// about the pragma.
#if defined(__CUDA_ARCH__)
#define LLMC_UNROLL _Pragma("unroll")
#define LLMC_NO_UNROLL _Pragma("unroll 1")
#else
#define LLMC_UNROLL
#define LLMC_NO_UNROLL
#endif

// 1 if the architecture being compiled for casts to FP8 in hardware.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
#define LLMC_HARDWARE_FP8 1
#else
#define LLMC_HARDWARE_FP8 0
#endif
