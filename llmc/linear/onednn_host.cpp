// Creating and running oneDNN's primitives, see onednn_host.h. For oneDNN 2 (Debian 12) and 3 (later systems), which
// describe a primitive differently.
// build: per device, optimized
#include "llmc/linear/onednn_host.h"

#if !LLMC_CUDA
#include <algorithm>
#include <map>
#include <optional>
#include <vector>

#include "llmc/base/error.h"
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

// Some terms of a product's sums. All pieces but the first add to the result.
struct Piece {
    OnednnProduct product;
    int terms;
    Type operands() const { return product.fp32 ? Type::f32 : Type::bf16; }
    auto operator<=>(const Piece&) const = default;
};

// The scale applies before the bias and the kept result are added.
dnnl::matmul::primitive_desc describe(const Piece& piece) {
    const OnednnProduct& p = piece.product;
    const memory::desc first =
        matrix(p.rows, piece.terms, p.transpose_first ? p.rows : p.inner, p.transpose_first, piece.operands());
    const memory::desc second =
        matrix(piece.terms, p.columns, p.transpose_second ? p.inner : p.columns, p.transpose_second, piece.operands());
    const memory::desc result = matrix(p.rows, p.columns, p.columns, false, p.fp32_result ? Type::f32 : Type::bf16);
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

// Calls each(piece, first term) in order.
template <class Each>
void for_each_piece(OnednnProduct product, const Each& each) {
    const int longest = product.fp32_result ? std::min(product.inner, kLongestSum) : product.inner;
    for (int begin = 0; begin < product.inner; begin += longest) {
        if (begin > 0) {
            product.kept = 1.0f;
            product.bias = false;
        }
        each(Piece{product, std::min(longest, product.inner - begin)}, begin);
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
        reserve(how.scratchpad_desc().get_size());
        return entries.emplace(piece, std::move(e)).first->second;
    }
    void run(const Piece& piece, void* result, const void* first, const void* second, const void* bias) {
        Entry& e = entry(piece);
        const OnednnProduct& p = piece.product;
        const auto set = [&](int name, const void* data) {
            e.arguments[name].set_data_handle(const_cast<void*>(data));
        };
        set(DNNL_ARG_SRC, first);
        set(DNNL_ARG_WEIGHTS, second);
        set(DNNL_ARG_DST, result);
        set(DNNL_ARG_SCRATCHPAD, workspace.data());
        if (p.scaled) set(e.scale, &scale);
        if (p.bias) set(e.bias, bias);
        e.primitive.execute(stream, e.arguments);
        stream.wait();
    }
};

static bool has(dnnl::cpu_isa isa) {
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
    for_each_piece(product, [&](const Piece& piece, int) {
        if (piece == last) return;  // a long sum has many equal pieces
        last = piece;
        bytes = std::max(bytes, (describe(piece).scratchpad_desc().get_size() + 63) / 64 * 64);
    });
    return bytes;
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
    const size_t bytes = p.fp32 ? sizeof(float) : sizeof(bf16);
    // A piece of an operand is a range of its columns, or of its rows if it is transposed.
    for_each_piece(p, [&](const Piece& piece, int begin) {
        const size_t of_first = static_cast<size_t>(begin) * (p.transpose_first ? p.rows : 1);
        const size_t of_second = static_cast<size_t>(begin) * (p.transpose_second ? 1 : p.columns);
        primitives_->run(piece, result, static_cast<const char*>(first) + of_first * bytes,
                         static_cast<const char*>(second) + of_second * bytes, bias);
    });
}

#else

struct OnednnProducts::Primitives {};
bool OnednnProducts::has_fp32() { return false; }
bool OnednnProducts::has_bf16() { return false; }
std::string OnednnProducts::version() { return ""; }
size_t OnednnProducts::workspace_bytes(const OnednnProduct&) { return 0; }
void OnednnProducts::reserve(const OnednnProduct&) {}
size_t OnednnProducts::reserved_bytes() const { return 0; }
void OnednnProducts::multiply(const OnednnProduct&, void*, const void*, const void*, const void*, float) {}

#endif

OnednnProducts::OnednnProducts() = default;
OnednnProducts::~OnednnProducts() = default;

}  // namespace llmc::host
#endif
