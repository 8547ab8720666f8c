// Chooses an algorithm of cuBLASLt for each matmul of a run, before its first step. The library proposes several, and
// its favourite is usually, but not always, the fastest. Also measures the rates of this card that plans and MFU use.
#pragma once
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "llmc/linear/matmul.h"

namespace llmc {

// Measured rates per second, by name: "fp32", "bf16" and "fp8" are FLOPs of matmuls, "copy" counts bytes that a copy
// of memory reads and writes, "all_gather" and "reduce_scatter" count bytes that a rank sends to others.
using Rates = std::map<std::string, double>;
bool is_of_products(const std::string& rate);
// Replaces rates of `all` by higher ones of the same name.
void raise(Rates& all, const Rates& more);

struct Tuned {
    ProductChoices choices;  // of the products that have an algorithm to choose
    Rates rates;             // the highest of the matmuls
};

// Times the library's first proposals for each product, as many as `algorithms`. Chooses another one than the first
// only if it is at least 5 % faster. Products have operands of their own here, so call it before the run takes the
// memory. Leaves `matmul` without choices. `alive` is called before each product.
Tuned tune(const std::vector<Product>& products, int algorithms, Matmul& matmul, stream_t stream,
           const std::function<void()>& alive);

// Bytes that copies within the device's memory read and write per second. 0 if the L2 cache would hold the copy.
double copy_rate(stream_t stream);

// Makes every product once, with the algorithms that `matmul` has chosen. cuBLASLt may load a kernel at its first use,
// which waits for the device. Next to a collective that waits for another rank, it could wait forever, so call this
// before a run over NCCL begins.
void load_products(const ProductUses& products, Matmul& matmul, stream_t stream);

}  // namespace llmc
