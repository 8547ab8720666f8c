// What both implementations of matmul.h share: shapes, checks, counts.
#include "llmc/linear/matmul.h"

namespace llmc {

const char* Product::name() const {
    return kind == forward ? "matmul forward" : kind == dgrad ? "matmul dgrad" : "matmul wgrad";
}

std::string Product::describe() const {
    return strprintf("%s %s N=%d C=%d OC=%d%s%s", name(), type == OperandType::fp32 ? "fp32" : "bf16", N, C, OC,
                     bias ? " with bias" : "", accumulate ? " accumulating" : "");
}

Gemm::Gemm(const Product& p)
    : first_rows(p.N),
      first_columns(p.kind == Product::forward ? p.C : p.OC),
      second_rows(p.kind == Product::wgrad ? p.N : p.OC),
      second_columns(p.C),
      transpose_first(p.kind == Product::wgrad),
      transpose_second(p.kind == Product::forward),
      rows(transpose_first ? first_columns : first_rows),
      columns(transpose_second ? second_rows : second_columns),
      inner(transpose_first ? first_rows : first_columns) {}

void Matmul::run(const Product& product, void* result, const void* first, const void* second, const void* bias,
                 stream_t stream) {
    if (product.N <= 0 || product.C <= 0 || product.OC <= 0)
        throw Error(ExitCode::failure, product.describe() + ": every dimension must be positive");
    for (const void* p : {static_cast<const void*>(result), first, second, bias})
        if (reinterpret_cast<uintptr_t>(p) % 16 != 0)
            throw Error(ExitCode::failure,
                        strprintf("%s: pointer %p is not 16-byte aligned", product.describe().c_str(), p));
    if (!result || !first || !second) throw Error(ExitCode::failure, product.describe() + ": a tensor is null");
    if (has_stream_ && stream != stream_)
        throw Error(ExitCode::failure,
                    product.describe() + ": a Matmul works on one stream, make another for this one");
    has_stream_ = true;
    stream_ = stream;
    submit(product, result, first, second, bias, stream);
    (product.type == OperandType::bf16 ? counts_.bf16 : counts_.fp32)++;
}

}  // namespace llmc
