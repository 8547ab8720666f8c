// The values that quantize_tile_kernel() casts (quantize_tile.cuh): a plain tensor, or an activation or its gradient. A
// producer computes the values of an (N, C) matrix, 16 columns of a row at a time:
//
//   Producer::Inputs                        the inputs of 16 values
//   producer.load(inputs, row, column, C)   reads them
//   producer.finish(x, inputs)              computes float x[2][8]
//   Producer::kSumsColumns                  true if the sums of columns may be asked for; not with two halves
//   Producer::kHalves                       2 if a block takes columns c and c + C / 2, whose inputs are the same
//   producer.inputs(n)                      the two tensors that it reads for n values
#pragma once
#include <utility>

#include "llmc/device/kernel.cuh"
#include "llmc/device/runtime.h"
#include "llmc/kernels/activation.cuh"

namespace llmc {

// inp + inp_low, which may be nullptr.
struct Bf16Values {
    const bf16 *inp, *inp_low;
    static constexpr bool kSumsColumns = true;
    static constexpr int kHalves = 1;
    std::pair<Access, Access> inputs(size_t n) const { return {in(inp, n), in(inp_low, n)}; }
    struct Inputs {
        Bf16x16 inp, low;
    };
    LLMC_DEVICE void load(Inputs& inputs, int row, int column, int C) const {
        const size_t at = static_cast<size_t>(row) * C + column;
        inputs.inp.load(inp + at);
        if (inp_low != nullptr) inputs.low.load(inp_low + at);
    }
    LLMC_DEVICE void finish(float (&x)[2][8], const Inputs& inputs) const {
        inputs.inp.get(x);
        if (inp_low == nullptr) return;
        float low[2][8];
        inputs.low.get(low);
        for (int i = 0; i < 16; i++) x[i / 8][i % 8] += low[i / 8][i % 8];
    }
};

// GELU or ReLU squared.
template <class Formula>
struct ActivationValues {
    const bf16* inp;
    static constexpr bool kSumsColumns = false;
    static constexpr int kHalves = 1;
    std::pair<Access, Access> inputs(size_t n) const { return {in(inp, n), {}}; }
    using Inputs = Bf16x16;
    LLMC_DEVICE void load(Inputs& inputs, int row, int column, int C) const {
        inputs.load(inp + static_cast<size_t>(row) * C + column);
    }
    LLMC_DEVICE void finish(float (&x)[2][8], const Inputs& inputs) const {
        inputs.get(x);
        for (int i = 0; i < 16; i++) x[i / 8][i % 8] = Formula::round(Formula::value(x[i / 8][i % 8]));
    }
};

// Their gradient: dout * f'(inp).
template <class Formula>
struct ActivationGradientValues {
    const bf16 *dout, *inp;
    static constexpr bool kSumsColumns = Formula::kSumsBiasGradient;
    static constexpr int kHalves = 1;
    std::pair<Access, Access> inputs(size_t n) const { return {in(dout, n), in(inp, n)}; }
    struct Inputs {
        Bf16x16 dout, inp;
    };
    LLMC_DEVICE void load(Inputs& inputs, int row, int column, int C) const {
        const size_t at = static_cast<size_t>(row) * C + column;
        inputs.dout.load(dout + at);
        inputs.inp.load(inp + at);
    }
    LLMC_DEVICE void finish(float (&x)[2][8], const Inputs& inputs) const {
        float d[2][8];
        inputs.dout.get(d);
        inputs.inp.get(x);
        for (int i = 0; i < 16; i++) {
            float& value = x[i / 8][i % 8];
            value = Formula::round(d[i / 8][i % 8] * Formula::derivative(value));
        }
    }
};

// SwiGLU of inp (N, 2C).
struct SwigluValues {
    const bf16* inp;
    static constexpr bool kSumsColumns = false;
    static constexpr int kHalves = 1;
    std::pair<Access, Access> inputs(size_t n) const { return {in(inp, 2 * n), {}}; }
    struct Inputs {
        Bf16x16 gate, up;
    };
    LLMC_DEVICE void load(Inputs& inputs, int row, int column, int C) const {
        const bf16* const gate = inp + static_cast<size_t>(row) * 2 * C + column;
        inputs.gate.load(gate);
        inputs.up.load(gate + C);
    }
    LLMC_DEVICE void finish(float (&x)[2][8], const Inputs& inputs) const {
        float gate[2][8];
        inputs.gate.get(gate);
        inputs.up.get(x);
        LLMC_UNROLL
        for (int h = 0; h < 2; h++)
            for (int i = 0; i < 8; i++) x[h][i] = to_float(to_bf16(Swiglu::value(gate[h][i], x[h][i])));
    }
};

// The gradient of SwiGLU's inp (N, C), from dout (N, C / 2). A block has the same columns of dgate and of dup.
struct SwigluGradientValues {
    const bf16 *dout, *inp;
    static constexpr bool kSumsColumns = false;
    static constexpr int kHalves = 2;
    std::pair<Access, Access> inputs(size_t n) const { return {in(dout, n / 2), in(inp, n)}; }
    struct Inputs {
        Bf16x16 dout, gate, up;
        bool is_up;
    };
    LLMC_DEVICE void load(Inputs& inputs, int row, int column, int C) const {
        const int F = C / 2;
        inputs.is_up = column >= F;
        const int own = inputs.is_up ? column - F : column;
        const bf16* const gate = inp + static_cast<size_t>(row) * C + own;
        inputs.dout.load(dout + static_cast<size_t>(row) * F + own);
        inputs.gate.load(gate);
        inputs.up.load(gate + F);
    }
    LLMC_DEVICE void finish(float (&x)[2][8], const Inputs& inputs) const {
        float gate[2][8], up[2][8];
        inputs.dout.get(x);
        inputs.gate.get(gate);
        inputs.up.get(up);
        LLMC_UNROLL
        for (int h = 0; h < 2; h++) {
            for (int i = 0; i < 8; i++) {
                float dgate, dup;
                Swiglu::gradients(x[h][i], gate[h][i], up[h][i], dgate, dup);
                x[h][i] = to_float(to_bf16(inputs.is_up ? dup : dgate));
            }
        }
    }
};

}  // namespace llmc
