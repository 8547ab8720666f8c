// wgmma: products against sums in double, for every layout of the operands, and each rule broken once.
#include <cmath>
#include <random>

#include "dev/virtual_gpu/arithmetic/formats.h"
#include "dev/virtual_gpu/arithmetic/fused_sum.h"
#include "dev/virtual_gpu/options.h"
#include "dev/virtual_gpu/test/counts_file.h"
#include "dev/virtual_gpu/test/hopper_program.h"
#include "dev/virtual_gpu/work.h"

namespace virtual_gpu::test {
namespace {

enum class Type { bf16, e4m3, e5m2 };
struct Case {
    Type a = Type::bf16, b = Type::bf16;
    int N = 64, swizzle_a = 128, swizzle_b = 128;  // bytes
    bool a_in_registers = false, transposed_a = false, transposed_b = false, accumulates = true;
    int sign_a = 1, sign_b = 1;
};

const char* name_of(Type t) { return t == Type::bf16 ? "bf16" : t == Type::e4m3 ? "e4m3" : "e5m2"; }
int bytes_of(Type t) { return t == Type::bf16 ? 2 : 1; }
int k_of(const Case& c) { return c.a == Type::bf16 ? 16 : 32; }

float value_of(Type t, uint16_t code) {
    if (t == Type::bf16) return float_of_bf16(code);
    return t == Type::e4m3 ? float_of_e4m3(static_cast<uint8_t>(code)) : float_of_e5m2(static_cast<uint8_t>(code));
}
uint16_t code_of(Type t, float x) { return t == Type::bf16 ? bf16_of(x) : t == Type::e4m3 ? e4m3_of(x) : e5m2_of(x); }

// A matrix of rows x K codes in the layout of the PTX ISA's figures of canonical layouts, with the fields of its
// descriptor.
struct Layout {
    std::vector<uint8_t> bytes;
    uint64_t leading = 0, stride = 0, mode = 0;
};
Layout lay_out(const std::vector<uint16_t>& codes, int rows, int K, Type type, int swizzle, bool transposed) {
    Layout l;
    l.mode = swizzle == 128 ? 1 : swizzle == 64 ? 2 : swizzle == 32 ? 3 : 0;
    const int size = bytes_of(type), per_piece = 16 / size;
    // In pieces of 16 bytes. K-major: eight rows of a core matrix one after the other, each `line` bytes long. M- or
    // N-major: the same with k and rows exchanged; a row is then `line` bytes of the long dimension.
    const int line = swizzle ? swizzle : 16, block = 8 * line;
    const int along = transposed ? rows : K, across = transposed ? K : rows;  // along: neighbours in memory
    const int pieces = along / per_piece, blocks_across = (across + 7) / 8, in_line = line / 16;
    const int blocks_along = (pieces + in_line - 1) / in_line;
    const uint64_t to_next_along = static_cast<uint64_t>(blocks_across * block),
                   to_next_across = static_cast<uint64_t>(block);
    // The leading offset is the one along neighbouring pieces, except for N-major without a swizzle, where the two are
    // exchanged (PTX ISA, "Leading dimension byte offset", "Stride dimension byte offset").
    l.leading = transposed && !swizzle ? to_next_across : to_next_along;
    l.stride = transposed && !swizzle ? to_next_along : to_next_across;
    l.bytes.assign(static_cast<size_t>(blocks_along * blocks_across * block), 0);
    for (int r = 0; r < rows; r++)
        for (int k = 0; k < K; k++) {
            const int i = transposed ? r : k, j = transposed ? k : r, piece = i / per_piece;
            size_t at = static_cast<size_t>(piece / in_line) * to_next_along +
                        static_cast<size_t>(j / 8) * to_next_across +
                        static_cast<size_t>(j % 8 * line + piece % in_line * 16);
            if (swizzle) at ^= (at / 128 % static_cast<size_t>(swizzle / 16)) * 16;
            std::memcpy(&l.bytes[at + static_cast<size_t>(i % per_piece * size)],
                        &codes[static_cast<size_t>(r * K + k)], static_cast<size_t>(size));
        }
    return l;
}

// Bits 16 to 63 of a matrix descriptor; the kernel adds the start address.
uint64_t descriptor_of(const Layout& l) { return l.leading >> 4 << 16 | l.stride >> 4 << 32 | l.mode << 62; }

std::string registers_named(const std::string& prefix, int count, int first = 0) {
    std::string s = "{";
    for (int n = 0; n < count; n++) s += (n ? ", " : "") + prefix + std::to_string(first + n);
    return s + "}";
}

const std::string kSpace = ".shared .align 1024 .b8 A[16384]; .shared .align 1024 .b8 B[32768]; ";
const std::string kDeclare = ".reg .f32 %acc<128>; .reg .b32 %a<4>; .reg .b64 %da, %db; ";
const std::string kFence = "wgmma.fence.sync.aligned; ", kCommitProducts = "wgmma.commit_group.sync.aligned; ",
                  kWaitForProducts = "wgmma.wait_group.sync.aligned 0; ";

// Copies `bytes` bytes (a multiple of 16) of parameter n to a shared array, with 128 threads and 16 bytes at a time.
std::string to_shared(int parameter, const std::string& array, size_t bytes, int offset = 0) {
    return ptx(
        "mov.u32 %r10, %tid.x; shl.b32 %r10, %r10, 4; "
        "COPY_$2: setp.ge.u32 %p9, %r10, $3; @%p9 bra END_$2; cvt.u64.u32 %rd20, %r10; "
        "add.s64 %rd21, %rd$1, %rd20; ld.global.v4.u32 {%r12, %r13, %r14, %r15}, [%rd21]; mov.u32 %r11, $2; "
        "add.u32 %r11, %r11, %r10; st.shared.v4.u32 [%r11+$4], {%r12, %r13, %r14, %r15}; "
        "add.u32 %r10, %r10, 2048; bra COPY_$2; END_$2: ",
        parameter, array, bytes, offset);
}
std::string descriptor(const std::string& to, const std::string& array, uint64_t bits, int offset = 0) {
    return ptx(
        "mov.u32 %r10, $2; add.u32 %r10, %r10, $4; shr.u32 %r10, %r10, 4; cvt.u64.u32 $1, %r10; "
        "or.b64 $1, $1, $3; ",
        to, array, bits, offset);
}
std::string opcode(const Case& c) {
    return ptx("wgmma.mma_async.sync.aligned.m64n$1k$2.f32.$3.$4", c.N, k_of(c), name_of(c.a), name_of(c.b));
}
std::string product(const Case& c, const std::string& results, const std::string& scale_d = "1") {
    std::string s = ptx("$1 $2, $3, %db, $4, $5, $6", opcode(c), results,
                        c.a_in_registers ? "{%a0, %a1, %a2, %a3}" : "%da", scale_d, c.sign_a, c.sign_b);
    if (c.a == Type::bf16) {
        if (!c.a_in_registers) s += c.transposed_a ? ", 1" : ", 0";
        s += c.transposed_b ? ", 1" : ", 0";
    }
    return s + "; ";
}

struct Inputs {
    std::vector<uint16_t> A, B;
    std::vector<float> C;
};
Inputs random_operands(const Case& c) {
    std::mt19937 random(static_cast<unsigned>(c.N * 8 + c.swizzle_b));
    std::uniform_real_distribution<float> uniform(-2, 2);
    Inputs o;
    for (int n = 0; n < 64 * k_of(c); n++) o.A.push_back(code_of(c.a, uniform(random)));
    for (int n = 0; n < c.N * k_of(c); n++) o.B.push_back(code_of(c.b, uniform(random)));
    for (int n = 0; n < 64 * c.N; n++) o.C.push_back(uniform(random));
    return o;
}

// The documented place of a thread's r-th result, and of its registers of A.
size_t result_at(int thread, int r, int N) {
    return static_cast<size_t>((thread / 32 * 16 + thread % 32 / 4 + r / 2 % 2 * 8) * N + r / 4 * 8 + thread % 4 * 2 +
                               r % 2);
}
std::vector<uint32_t> fragments_of_a(const Case& c, const std::vector<uint16_t>& A) {
    const int K = k_of(c), size = bytes_of(c.a), per_register = 4 / size;
    std::vector<uint32_t> words(128 * 4);
    for (int thread = 0; thread < 128; thread++)
        for (int r = 0; r < 4; r++)
            for (int e = 0; e < per_register; e++) {
                const int row = thread / 32 * 16 + thread % 32 / 4 + r % 2 * 8;
                const int k = r / 2 * K / 2 + thread % 4 * per_register + e;
                words[static_cast<size_t>(thread * 4 + r)] |= static_cast<uint32_t>(A[static_cast<size_t>(row * K + k)])
                                                              << (8 * size * e);
            }
    return words;
}

// D = A B^T (+ C) as a kernel of one warpgroup computes it, row by row.
std::vector<float> run(const Case& c, const Inputs& o) {
    const int count = c.N / 2;
    const Layout a = lay_out(o.A, 64, k_of(c), c.a, c.swizzle_a, c.transposed_a),
                 b = lay_out(o.B, c.N, k_of(c), c.b, c.swizzle_b, c.transposed_b);
    std::vector<float> c_of_threads(static_cast<size_t>(128 * count));
    for (int thread = 0; thread < 128; thread++)
        for (int r = 0; r < count; r++)
            c_of_threads[static_cast<size_t>(thread * count + r)] = o.C[result_at(thread, r, c.N)];
    const Buffer A(a.bytes), B(b.bytes), C(c_of_threads), fragments(fragments_of_a(c, o.A));
    std::string s = kDeclare + to_shared(1, "A", a.bytes.size()) + to_shared(2, "B", b.bytes.size()) +
                    "fence.proxy.async.shared::cta; bar.sync 0; mov.u32 %r1, %tid.x; mul.wide.u32 %rd10, %r1, " +
                    std::to_string(4 * count) +
                    "; add.s64 %rd10, %rd10, %rd0; mul.wide.u32 %rd11, %r1, 16; add.s64 %rd11, %rd11, %rd3; "
                    "ld.global.v4.u32 {%a0, %a1, %a2, %a3}, [%rd11]; ";
    for (int r = 0; r < count; r++) s += ptx("ld.global.f32 %acc$1, [%rd10+$2]; ", r, 4 * r);
    s += descriptor("%da", "A", descriptor_of(a)) + descriptor("%db", "B", descriptor_of(b)) + kFence +
         product(c, registers_named("%acc", count), c.accumulates ? "1" : "0") + kCommitProducts + kWaitForProducts;
    for (int r = 0; r < count; r++) s += ptx("st.global.f32 [%rd10+$2], %acc$1; ", r, 4 * r);
    run_snippet(s, {C.address(), A.address(), B.address(), fragments.address()}, threads(128), kSpace);
    const std::vector<float> got = C.read<float>();
    std::vector<float> D(static_cast<size_t>(64 * c.N));
    for (int thread = 0; thread < 128; thread++)
        for (int r = 0; r < count; r++) D[result_at(thread, r, c.N)] = got[static_cast<size_t>(thread * count + r)];
    return D;
}

int least_exponent(Type t) {
    return t == Type::bf16 ? kLeastExponentFloat : t == Type::e4m3 ? kLeastExponentE4M3 : kLeastExponentE5M2;
}

void check_case(const Case& c) {
    const Inputs o = random_operands(c);
    const std::vector<float> D = run(c, o);
    const auto K = static_cast<size_t>(k_of(c));
    bool all = true;
    for (int m = 0; m < 64; m++)
        for (int n = 0; n < c.N; n++) {
            const auto at = static_cast<size_t>(m * c.N + n);
            const float begin = c.accumulates ? o.C[at] : 0;
            std::vector<float> a(K), b(K);
            double sum = static_cast<double>(begin), size = std::abs(sum);
            for (size_t k = 0; k < K; k++) {
                a[k] = static_cast<float>(c.sign_a) * value_of(c.a, o.A[static_cast<size_t>(m) * K + k]);
                b[k] = static_cast<float>(c.sign_b) * value_of(c.b, o.B[static_cast<size_t>(n) * K + k]);
                sum += static_cast<double>(a[k]) * static_cast<double>(b[k]);
                size += std::abs(static_cast<double>(a[k]) * static_cast<double>(b[k]));
            }
            if (options().arithmetic == Arithmetic::fp32) {
                // K additions in FP32, each of which errs by half a unit in the last place of a sum of at most `size`.
                all &= std::abs(static_cast<double>(D[at]) - sum) <= static_cast<double>(K) * size * 0x1p-24;
            } else {
                const auto core = tensor_core(
                    options().arithmetic, c.a == Type::bf16 ? virtual_gpu::Operands::bf16 : virtual_gpu::Operands::fp8);
                const Exponents exponents{least_exponent(c.a), least_exponent(c.b)};
                all &= D[at] == tensor_sum(a.data(), b.data(), static_cast<int>(K), begin, core, exponents);
            }
        }
    INFO(opcode(c), " swizzle ", c.swizzle_a, " ", c.swizzle_b, c.transposed_a ? " A transposed" : "",
         c.transposed_b ? " B transposed" : "", c.a_in_registers ? " A in registers" : "");
    CHECK(all);
}

}  // namespace

TEST_CASE("hopper: wgmma multiplies bf16 in every layout") {
    for (int swizzle : {0, 32, 64, 128}) {
        for (bool ta : {false, true})
            for (bool tb : {false, true})
                check_case(
                    {.N = 64, .swizzle_a = swizzle, .swizzle_b = swizzle, .transposed_a = ta, .transposed_b = tb});
        for (bool tb : {false, true})
            check_case({.N = 128, .swizzle_b = swizzle, .a_in_registers = true, .transposed_b = tb});
    }
}

// Run by the case below, with counts.
TEST_CASE("hopper counted: a product" * doctest::skip()) {
    run({}, random_operands({}));
    if (counting()) write_counts(options().counts);
}
TEST_CASE("hopper: a warpgroup's product is counted once, not once per warp") {
    CHECK(counts_of("hopper counted: a product")["tensor_operations"] == nlohmann::json{{"bf16", 2 * 64 * 64 * 16}});
}

TEST_CASE("hopper: wgmma multiplies fp8 in every layout and pair of formats") {
    for (int swizzle : {0, 32, 64, 128})
        for (Type a : {Type::e4m3, Type::e5m2})
            for (Type b : {Type::e4m3, Type::e5m2})
                for (bool registers : {false, true})
                    check_case({.a = a,
                                .b = b,
                                .N = 32,
                                .swizzle_a = swizzle,
                                .swizzle_b = swizzle,
                                .a_in_registers = registers});
}

TEST_CASE("hopper: wgmma with every N, signs, and sums that begin at zero") {
    for (int N = 8; N <= 256; N += 8) check_case({.N = N, .accumulates = N % 16 == 0});
    for (int N : {8, 136, 256}) check_case({.a = Type::e4m3, .b = Type::e5m2, .N = N});
    for (int sign : {1, -1}) {
        check_case({.sign_a = sign, .sign_b = -1});
        check_case({.a = Type::e5m2, .b = Type::e4m3, .a_in_registers = true, .sign_a = -1, .sign_b = sign});
    }
}

TEST_CASE("hopper: wgmma goes along k within a swizzled tile, and starts between two of its repeats") {
    // 64 x 64 of A and 8 x 64 of B: four products, each 32 bytes further, and one wait. The tiles' patterns start
    // `shift` bytes after a boundary of 1024, which the base offset states.
    constexpr int K = 64, N = 8;
    std::mt19937 random(5);
    std::vector<uint16_t> a_codes, b_codes;
    for (int n = 0; n < 64 * K; n++) a_codes.push_back(bf16_of(static_cast<float>(random() % 17) - 8));
    for (int n = 0; n < N * K; n++) b_codes.push_back(bf16_of(static_cast<float>(random() % 17) - 8));
    const Layout a = lay_out(a_codes, 64, K, Type::bf16, 128, false),
                 b = lay_out(b_codes, N, K, Type::bf16, 128, false);
    const Buffer A(a.bytes), B(b.bytes);
    for (const int shift : {0, 128, 640}) {
        const Buffer out(std::vector<float>(64 * N, 0));
        const uint64_t base = static_cast<uint64_t>(shift / 128) << 49;
        std::string s = kDeclare + "mov.u32 %r1, %tid.x; ";
        s += to_shared(1, "A", a.bytes.size(), shift) + to_shared(2, "B", b.bytes.size(), shift) +
             "fence.proxy.async.shared::cta; bar.sync 0; " + kFence;
        for (int k = 0; k < 4; k++)
            s += descriptor("%da", "A", descriptor_of(a) | base, shift + 32 * k) +
                 descriptor("%db", "B", descriptor_of(b) | base, shift + 32 * k) +
                 product({.N = N}, registers_named("%acc", 4), k ? "1" : "0") + (k == 1 ? kCommitProducts : "");
        s += kCommitProducts + kWaitForProducts +
             "mul.wide.u32 %rd10, %r1, 16; add.s64 %rd10, %rd10, %rd0; "
             "st.global.v4.f32 [%rd10], {%acc0, %acc1, %acc2, %acc3}; ";
        run_snippet(s, {out.address(), A.address(), B.address()}, threads(128), kSpace);
        const std::vector<float> got = out.read<float>();
        bool all = true;
        for (int thread = 0; thread < 128; thread++)
            for (int r = 0; r < 4; r++) {
                const size_t at = result_at(thread, r, N), m = at / N, n = at % N;
                float sum = 0;  // exact in any order, since the integers are small
                for (size_t k = 0; k < K; k++)
                    sum += float_of_bf16(a_codes[m * K + k]) * float_of_bf16(b_codes[n * K + k]);
                all &= got[static_cast<size_t>(thread * 4 + r)] == sum;
            }
        INFO("shift ", shift);
        CHECK(all);
    }
}

TEST_CASE("hopper: wgmma sums like Hopper's tensor cores on request") {
    if (options().arithmetic == Arithmetic::fp32)
        expect_cases("hopper: wgmma multiplies", {{"VIRTUAL_GPU_ARITHMETIC", "hopper"}});
}

namespace {

// Four warps; A and B are zero, filled and fenced correctly. 16 columns: 8 results, in %acc0 to %acc7.
const Case kSmall{.N = 16};
const std::string kResults = registers_named("%acc", 8), kOthers = registers_named("%acc", 8, 8);
std::string fill(const std::string& fence = "fence.proxy.async.shared::cta; ") {
    std::string s = kDeclare +
                    "mov.u32 %r1, %tid.x; shl.b32 %r2, %r1, 4; mov.u32 %r3, A; add.u32 %r3, %r3, %r2; mov.u32 %r4, B; "
                    "add.u32 %r4, %r4, %r2; mov.u32 %r5, 0; ";
    for (int n = 0; n < 8; n++) {
        for (const char* base : {"%r3", "%r4"})
            s += ptx("st.shared.v4.u32 [$1+$2], {%r5, %r5, %r5, %r5}; ", base, 2048 * n);
    }
    for (int n = 0; n < 16; n++) s += ptx("add.f32 %acc$1, 0f00000000, 0f00000000; ", n);
    for (int n = 0; n < 4; n++) s += ptx("add.u32 %a$1, %r5, %r5; ", n);
    return s + fence + "bar.sync 0; shr.u32 %r6, %r1, 5; setp.eq.u32 %p3, %r6, 3; setp.eq.u32 %p0, %r1, 0; " +
           descriptor("%da", "A", uint64_t{1} << 16 | uint64_t{64} << 32 | uint64_t{1} << 62) +
           descriptor("%db", "B", uint64_t{1} << 16 | uint64_t{64} << 32 | uint64_t{1} << 62);
}

Case variant(bool a_in_registers, int N) {
    Case c = kSmall;
    c.a_in_registers = a_in_registers;
    c.N = N;
    return c;
}
const std::string kProduct = product(kSmall, kResults), kOfRegisters = product(variant(true, 16), kResults),
                  kWide = product(variant(false, 32), registers_named("%acc", 16)), kBegin = fill();
const Shape kGroup = threads(128);

}  // namespace

TEST_CASE("hopper: wgmma's registers are fenced, and used after a wait") {
    const std::string use = "add.f32 %f1, %acc3, %acc3; ";
    check(
        {
            {kBegin + "{{||" + kFence + "}}" + kProduct + kCommitProducts + kWaitForProducts,
             {"no wgmma.fence before the first wgmma"}},
            {kBegin + kFence + "add.f32 %acc5, %acc5, %acc5; {{||" + kFence + "}}" + kProduct + kCommitProducts +
                 kWaitForProducts,
             {"a register of it was used at PTX line ", "without wgmma.fence between"}},
            {kBegin + kFence + "add.u32 %a2, %a2, %r5; {{||" + kFence + "}}" + kOfRegisters + kCommitProducts +
                 kWaitForProducts,
             {"a register of it was used at PTX line "}},
            {kBegin + kFence + kProduct + kCommitProducts + kWaitForProducts + "{{||" + kFence + "}}" + kWide +
                 kCommitProducts + kWaitForProducts,
             {"a register of it is one of a product of 16 columns", "without wgmma.fence between"}},
            // Results are used after a wait for their group.
            {kBegin + kFence + kProduct + kCommitProducts + "{{||" + kWaitForProducts + "}}" + use + kWaitForProducts,
             {"a register is used that the wgmma of PTX line ", "may still write: no wgmma.wait_group"}},
            {kBegin + kFence + kProduct + kCommitProducts + "wgmma.wait_group.sync.aligned {{1||0}}; " + use +
                 kWaitForProducts,
             {"may still write"}},
            {kBegin + kFence + kProduct + kCommitProducts + product(kSmall, kOthers) + kCommitProducts +
                 "wgmma.wait_group.sync.aligned 1; add.f32 %f1, {{%acc8||%acc0}}, %acc1; " + kWaitForProducts,
             {"may still write"}},
            {kBegin + kFence + kProduct + "{{||" + kCommitProducts + "}}" + kWaitForProducts + use + kCommitProducts +
                 kWaitForProducts,
             {"may still write"}},
            {kBegin + kFence + kProduct + kCommitProducts + "{{mov.f32 %acc2, 0f00000000; ||}}" + kWaitForProducts,
             {"may still write"}},
            {kBegin + kFence + kOfRegisters + kCommitProducts + "{{mov.u32 %a1, 0; ||}}" + kWaitForProducts,
             {"may still read"}},
            {kBegin + kFence + kOfRegisters + kCommitProducts + "{{||" + kWaitForProducts +
                 "}}add.u32 %r7, %a3, %a3; " + kWaitForProducts,
             {"may still read"}},
            {kBegin + kFence + kProduct + kCommitProducts + "{{||" + kWaitForProducts + "}}",
             {"the warp ends without a wgmma.wait_group"}},
            // A copy of a result waits together with it.
            {kBegin + kFence + kProduct + kCommitProducts + "mov.f32 %f5, %acc0; {{||" + kWaitForProducts +
                 "}}add.f32 %f1, %f5, %f5; " + kWaitForProducts,
             {"may still write"}},
        },
        kSpace, {}, kGroup);
}

TEST_CASE("hopper: shared memory that wgmma reads is written, visible, and unchanged meanwhile") {
    const Buffer global(std::vector<uint32_t>(4, 0));
    check(
        {
            {fill("{{||fence.proxy.async; }}") + kFence + kProduct + kCommitProducts + kWaitForProducts,
             {"wgmma's matrix B reads shared", "without fence.proxy.async between"}},
            {kBegin + "@%p0 st.shared.u32 [A+{{16||8192}}], %r5; bar.sync 0; " + kFence + kProduct + kCommitProducts +
                 kWaitForProducts,
             {"wgmma's matrix A reads shared 16, which thread 0 wrote at PTX line "}},
            {kBegin + kFence + kProduct + kCommitProducts + "{{||" + kWaitForProducts +
                 "}}bar.sync 0; @%p0 st.shared.u32 [B], %r5; " + kWaitForProducts,
             {"a write to shared 16384, which the wgmma of warp ", "may still read"}},
            {kBegin + "add.s64 %db, %db, {{1024||512}}; " + kFence + kProduct + kCommitProducts + kWaitForProducts,
             {"wgmma's matrix B of 16 bytes of shared memory", "never written"}},
            {kBegin + "add.s64 %da, %da, {{3072||960}}; " + kFence + kProduct + kCommitProducts + kWaitForProducts,
             {"wgmma's matrix A has 16 bytes at shared ", "; the block has 49160"}},
            {kBegin + "@%p0 mbarrier.init.shared::cta.b64 [bar], 1; @%p0 fence.proxy.async; bar.sync 0; " + kFence +
                 kProduct + kCommitProducts + "{{||" + kWaitForProducts +
                 "}}bar.sync 0; @%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [bar], 16; "
                 "@%p0 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [A+16], [%rd0], 16, [bar]; " +
                 wait("0") + kWaitForProducts,
             {"a bulk copy to shared 16, which the wgmma of warp ", "may still read"}},
        },
        kSpace + ".shared .align 8 .b64 bar; ", {global.address()}, kGroup);
}

TEST_CASE("hopper: all warps of a warpgroup execute wgmma") {
    check(
        {
            {kBegin + kFence + "{{@!%p3 bra SKIP; bra END; SKIP: ||}}" + kProduct + kCommitProducts + kWaitForProducts +
                 "END: ",
             {"warp 3 ends without the wgmma.mma_async.", " executed"}},
            {kBegin + kFence + "{{@%p3 add.s64 %db, %db, 64; ||}}" + kProduct + kCommitProducts + kWaitForProducts,
             {"executed that of PTX line ", " with other operands instead"}},
            {kBegin + kFence + "{{@!%p0 ||}}" + kProduct + kCommitProducts + kWaitForProducts,
             {"an instruction of a warpgroup with 31 of 32 lanes"}},
            {kBegin + "{{@!%p0 ||}}" + kFence + kProduct + kCommitProducts + kWaitForProducts,
             {"wgmma.fence with 31 of 32 lanes"}},
            {kBegin + kFence + kProduct + "{{@!%p0 ||}}" + kCommitProducts + kWaitForProducts,
             {"wgmma.commit_group with 31 of 32 lanes"}},
            {kBegin + kFence + kProduct + kCommitProducts + "{{@!%p0 ||}}" + kWaitForProducts,
             {"wgmma.wait_group with 31 of 32 lanes"}},
            {kBegin + kFence + "{{@%p0 add.s64 %db, %db, 64; ||}}" + kProduct + kCommitProducts + kWaitForProducts,
             {"its matrix descriptor is not that of lane 0"}},
            {kBegin + kFence + product(kSmall, kResults, "{{%p0||%p3}}") + kCommitProducts + kWaitForProducts,
             {"scale-d differs between lanes"}},
        },
        kSpace, {}, kGroup);
}

TEST_CASE("hopper: wgmma's shapes and immediates") {
    const auto message = [&](const std::string& snippet, const Shape& shape) {
        return fault_of([&] { run_snippet(snippet, {}, shape, kSpace); });
    };
    CHECK(
        contains(message(kDeclare + kFence + kProduct, threads(64)), "the last 2 warps of the block are no warpgroup"));
    for (const char* shape : {"m64n12k16", "m64n264k16", "m64n0k16", "m32n16k16", "m64n16k32"})
        CHECK(contains(message(kDeclare + "wgmma.mma_async.sync.aligned." + shape + ".f32.bf16.bf16 " + kResults +
                                   ", %da, %db, 1, 1, 1, 0, 0; ",
                               kGroup),
                       "instruction not known"));
    CHECK(contains(message(kDeclare + opcode(kSmall) + " " + kResults + ", %da, %db, 1, 2, 1, 0, 0; ", kGroup),
                   "a scale that is neither 1 nor -1"));
    CHECK(contains(
        message(kDeclare + opcode(kSmall) + " " + registers_named("%acc", 7) + ", %da, %db, 1, 1, 1, 0, 0; ", kGroup),
        "another number of results"));
    CHECK(contains(message(kDeclare + opcode(kSmall) + " " + kResults + ", %da, %db, 1, 1, 1; ", kGroup),
                   "operand is missing"));
}

}  // namespace virtual_gpu::test
