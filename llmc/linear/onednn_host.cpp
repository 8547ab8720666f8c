// Creating and running oneDNN's primitives, see products_host.h. For oneDNN 2 (Debian 12) and 3 (later systems), which
// describe a primitive differently.
// build: per device, optimized
#include "llmc/linear/products_host.h"

#if !LLMC_CUDA
#include <algorithm>
#include <map>
#include <optional>
#include <type_traits>
#include <vector>

#if LLMC_USE_ONEDNN
#include <dnnl.hpp>
#endif

namespace llmc::host {

#if LLMC_USE_ONEDNN

namespace {

using dnnl::memory;
using Type = memory::data_type;

// With FP32 results, oneDNN 2 may split longer sums between threads (seen from 4096 terms on, with 16 threads or more),
// so the number of threads would change bits. We add up pieces that it does not split.
constexpr int kLongestSum = 2048;

dnnl::engine& engine() {
    static dnnl::engine cpu(dnnl::engine::kind::cpu, 0);
    return cpu;
}

// A matrix (rows, columns) with `stride` elements from row to row, or from column to column if it is transposed.
memory::desc matrix(int rows, int columns, int stride, bool transposed, Type type) {
    return {{rows, columns}, type, transposed ? memory::dims{1, stride} : memory::dims{stride, 1}};
}
memory::desc row(int columns, Type type) { return matrix(1, columns, columns, false, type); }

// A part of a product: some of its rows, and some terms of their sums. All parts but the first add to the result.
struct Piece {
    OnednnProduct product;
    int rows, terms;
    Type operands() const { return product.fp32 ? Type::f32 : Type::bf16; }
    auto operator<=>(const Piece&) const = default;
};

// The scale applies before the bias and the kept result are added.
dnnl::matmul::primitive_desc describe(const Piece& piece) {
    const OnednnProduct& p = piece.product;
    const memory::desc first =
        matrix(piece.rows, piece.terms, p.transpose_first ? p.rows : p.inner, p.transpose_first, piece.operands());
    const memory::desc second =
        matrix(piece.terms, p.columns, p.transpose_second ? p.inner : p.columns, p.transpose_second, piece.operands());
    const memory::desc result = matrix(piece.rows, p.columns, p.columns, false, p.fp32_result ? Type::f32 : Type::bf16);
    dnnl::post_ops after;
    if (p.scaled) after.append_binary(dnnl::algorithm::binary_mul, row(1, Type::f32));
    if (p.bias) after.append_binary(dnnl::algorithm::binary_add, row(p.columns, piece.operands()));
    if (p.kept != 0.0f) after.append_sum(p.kept);
    dnnl::primitive_attr attributes;
    attributes.set_post_ops(after);
    if (!p.fp32) attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
#if DNNL_VERSION_MAJOR >= 3
    return {engine(), first, second, result, attributes};
#else
    return {dnnl::matmul::desc(first, second, result), attributes, engine()};
#endif
}

int longest_piece(const OnednnProduct& p) { return p.fp32_result ? std::min(p.inner, kLongestSum) : p.inner; }

// Calls each(piece, first term) in order for some of the product's rows.
template <class Each>
void for_each_piece(OnednnProduct product, int rows, const Each& each) {
    const int longest = longest_piece(product);
    for (int begin = 0; begin < product.inner; begin += longest) {
        if (begin > 0) {
            product.kept = 1.0f;
            product.bias = false;
        }
        each(Piece{product, rows, std::min(longest, product.inner - begin)}, begin);
    }
}

// oneDNN has no fast code that scales a product, or adds a bias to some, and then adds the previous result: with its
// reference code an FP8 weight gradient that accumulates took a thousand times as long. For such products oneDNN
// computes separate FP32 sums without the scale, some rows at a time, and finish() does the rest.
bool has_separate_sums(const OnednnProduct& p) {
    return p.kept != 0.0f ? p.scaled || p.bias : p.scaled && longest_piece(p) < p.inner;
}
OnednnProduct separate_sums(OnednnProduct p) {
    p.scaled = p.bias = false;
    p.kept = 0.0f;
    p.fp32_result = true;
    return p;
}
// Rows at a time: 4 MiB of sums, which stay in caches.
int rows_at_a_time(const OnednnProduct& p) {
    constexpr int kSums = 1 << 20;
    return has_separate_sums(p) ? std::min(p.rows, std::max(16, kSums / p.columns / 16 * 16)) : p.rows;
}
size_t separate_sums_bytes(const OnednnProduct& p) {
    if (!has_separate_sums(p)) return 0;
    return (static_cast<size_t>(rows_at_a_time(p)) * p.columns * sizeof(float) + 63) / 64 * 64;
}

// Calls each(piece) for every kind of piece of the product.
template <class Each>
void for_each_kind(const OnednnProduct& p, const Each& each) {
    const int rows = rows_at_a_time(p), last_rows = p.rows % rows;
    for (const int n : {rows, last_rows})
        if (n > 0)
            for_each_piece(has_separate_sums(p) ? separate_sums(p) : p, n,
                           [&](const Piece& piece, int) { each(piece); });
}

// result = scale * sums + bias + kept * result, in `rows` rows.
template <class Result, class Bias>
void finish(const OnednnProduct& p, int rows, Result* result, const float* sums, const Bias* bias, float scale) {
#pragma omp parallel for
    for (int r = 0; r < rows; r++) {
        const size_t row = static_cast<size_t>(r) * p.columns;
        for (int c = 0; c < p.columns; c++) {
            float x = scale * sums[row + c];
            if (p.bias) x += to_float(bias[c]);
            if (p.kept != 0.0f) x += p.kept * to_float(result[row + c]);
            if constexpr (std::is_same_v<Result, bf16>)
                result[row + c] = to_bf16(x);
            else
                result[row + c] = x;
        }
    }
}

}  // namespace

struct OnednnProducts::Primitives {
    struct alignas(64) Line {
        char bytes[64];
    };
    struct Entry {
        dnnl::matmul primitive;
        std::unordered_map<int, memory> arguments;
        int scale, bias;  // keys of these arguments
    };
    dnnl::stream stream{engine()};
    std::map<Piece, Entry> entries;
    std::vector<Line> workspace;
    float scale = 1.0f;

    void reserve(size_t bytes) { workspace.resize(std::max(workspace.size(), (bytes + 63) / 64)); }
    Entry& entry(const Piece& piece) {
        if (const auto at = entries.find(piece); at != entries.end()) return at->second;
        const dnnl::matmul::primitive_desc how = describe(piece);
        const OnednnProduct& p = piece.product;
        const int scale = DNNL_ARG_ATTR_MULTIPLE_POST_OP(0) | DNNL_ARG_SRC_1;
        const int bias = DNNL_ARG_ATTR_MULTIPLE_POST_OP(p.scaled ? 1 : 0) | DNNL_ARG_SRC_1;
        Entry e{dnnl::matmul(how), {}, scale, bias};
        const auto add = [&](int name, const memory::desc& desc) {
            e.arguments[name] = memory(desc, engine(), nullptr);
        };
        add(DNNL_ARG_SRC, how.src_desc());
        add(DNNL_ARG_WEIGHTS, how.weights_desc());
        add(DNNL_ARG_DST, how.dst_desc());
        add(DNNL_ARG_SCRATCHPAD, how.scratchpad_desc());  // empty if oneDNN has its own
        if (p.scaled) add(scale, row(1, Type::f32));
        if (p.bias) add(bias, row(p.columns, piece.operands()));
        return entries.emplace(piece, std::move(e)).first->second;
    }
    // Runs the pieces of some of a product's rows, from first_row on. If `result` is nullptr, the sums go to the
    // beginning of the workspace. The primitives' scratchpad begins `sums` bytes into it.
    void run(const OnednnProduct& p, int first_row, int rows, size_t sums, void* result, const void* first,
             const void* second, const void* bias) {
        const size_t bytes = p.fp32 ? sizeof(float) : sizeof(bf16);
        const char* const own = static_cast<const char*>(first) +
                                static_cast<size_t>(first_row) * (p.transpose_first ? 1 : p.inner) * bytes;
        // A piece of an operand is a range of its columns, or of its rows if it is transposed.
        for_each_piece(p, rows, [&](const Piece& piece, int begin) {
            const size_t of_first = static_cast<size_t>(begin) * (p.transpose_first ? p.rows : 1);
            const size_t of_second = static_cast<size_t>(begin) * (p.transpose_second ? 1 : p.columns);
            run(piece, sums, result, own + of_first * bytes, static_cast<const char*>(second) + of_second * bytes,
                bias);
        });
    }
    void run(const Piece& piece, size_t sums, void* result, const void* first, const void* second, const void* bias) {
        Entry& e = entry(piece);
        const OnednnProduct& p = piece.product;
        reserve(sums + e.arguments[DNNL_ARG_SCRATCHPAD].get_desc().get_size());
        const auto set = [&](int name, const void* data) {
            e.arguments[name].set_data_handle(const_cast<void*>(data));
        };
        set(DNNL_ARG_SRC, first);
        set(DNNL_ARG_WEIGHTS, second);
        set(DNNL_ARG_DST, result ? result : workspace.data());
        set(DNNL_ARG_SCRATCHPAD, workspace.data() + sums / sizeof(Line));
        if (p.scaled) set(e.scale, &scale);
        if (p.bias) set(e.bias, bias);
        e.primitive.execute(stream, e.arguments);
        stream.wait();
    }
};

static bool has(dnnl::cpu_isa isa) {
#ifndef __x86_64__  // oneDNN uses the same bits for instructions of other processors
    return false;
#endif
    const auto wanted = static_cast<unsigned>(isa);
    return (static_cast<unsigned>(dnnl::get_effective_cpu_isa()) & wanted) == wanted;
}

bool OnednnProducts::has_fp32() {
    static const bool has_avx512 = has(dnnl::cpu_isa::avx512_core);
    return has_avx512;
}

bool OnednnProducts::has_bf16() {
    static const bool has_avx512_bf16 = has(dnnl::cpu_isa::avx512_core_bf16);
    return has_avx512_bf16;
}

std::string OnednnProducts::version() {
    if (!has_fp32()) return "";
    const dnnl_version_t* v = dnnl_version();
    const char* instructions = has(dnnl::cpu_isa::avx512_core_amx) ? "AMX" : has_bf16() ? "AVX512-BF16" : "AVX-512";
    return fmt::format("{}.{}.{}, {}", v->major, v->minor, v->patch, instructions);
}

size_t OnednnProducts::workspace_bytes(const OnednnProduct& product) {
    size_t bytes = 0;
    std::optional<Piece> last;
    for_each_kind(product, [&](const Piece& piece) {
        if (piece == last) return;  // a long sum has many equal pieces
        last = piece;
        bytes = std::max(bytes, (describe(piece).scratchpad_desc().get_size() + 63) / 64 * 64);
    });
    return separate_sums_bytes(product) + bytes;
}

std::string OnednnProducts::implementation(const OnednnProduct& product) {
    std::string names;
    for_each_kind(product, [&](const Piece& piece) {
        const std::string name = describe(piece).impl_info_str();
        if (names.find(name) == names.npos) names += (names.empty() ? "" : ", ") + name;
    });
    return names;
}

void OnednnProducts::reserve(const OnednnProduct& product) {
    if (!primitives_) primitives_ = std::make_unique<Primitives>();
    primitives_->reserve(workspace_bytes(product));
}

size_t OnednnProducts::reserved_bytes() const { return primitives_ ? primitives_->workspace.size() * 64 : 0; }

void OnednnProducts::multiply(const OnednnProduct& p, void* result, const void* first, const void* second,
                              const void* bias, float scale) {
    if (!primitives_) primitives_ = std::make_unique<Primitives>();
    primitives_->scale = scale;
    if (!has_separate_sums(p)) {
        primitives_->run(p, 0, p.rows, 0, result, first, second, bias);
        return;
    }
    for (int row = 0; row < p.rows; row += rows_at_a_time(p)) {
        const int rows = std::min(rows_at_a_time(p), p.rows - row);
        primitives_->run(separate_sums(p), row, rows, separate_sums_bytes(p), nullptr, first, second, nullptr);
        const float* const sums = reinterpret_cast<const float*>(primitives_->workspace.data());
        const size_t at = static_cast<size_t>(row) * p.columns;
        if (p.fp32)
            finish(p, rows, static_cast<float*>(result) + at, sums, static_cast<const float*>(bias), scale);
        else if (p.fp32_result)
            finish(p, rows, static_cast<float*>(result) + at, sums, static_cast<const bf16*>(bias), scale);
        else
            finish(p, rows, static_cast<bf16*>(result) + at, sums, static_cast<const bf16*>(bias), scale);
    }
}

#else

struct OnednnProducts::Primitives {};
bool OnednnProducts::has_fp32() { return false; }
bool OnednnProducts::has_bf16() { return false; }
std::string OnednnProducts::version() { return ""; }
size_t OnednnProducts::workspace_bytes(const OnednnProduct&) { return 0; }
std::string OnednnProducts::implementation(const OnednnProduct&) { return ""; }
void OnednnProducts::reserve(const OnednnProduct&) {}
size_t OnednnProducts::reserved_bytes() const { return 0; }
void OnednnProducts::multiply(const OnednnProduct&, void*, const void*, const void*, const void*, float) {}

#endif

OnednnProducts::OnednnProducts() = default;
OnednnProducts::~OnednnProducts() = default;

}  // namespace llmc::host
#endif
