// Products of warpgroups: descriptors, tracking of registers, and the products (wgmma.h).
#include "dev/virtual_gpu/ptx/wgmma.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "dev/virtual_gpu/arithmetic/formats.h"
#include "dev/virtual_gpu/arithmetic/fused_sum.h"
#include "dev/virtual_gpu/options.h"
#include "dev/virtual_gpu/ptx/async.h"
#include "dev/virtual_gpu/ptx/races.h"
#include "dev/virtual_gpu/ptx/tensor_map.h"

namespace virtual_gpu {
namespace {

constexpr uint32_t kPiece = 16;  // bytes; matrices in shared memory consist of rows of this size
constexpr int kWarpRows = 16;    // rows of A and D that a warp computes
constexpr int kRowPieces = 2;    // along k: 32 bytes per instruction for every element type
constexpr int kRegistersOfA = 4;

// PTX ISA, "wgmma: Matrix Descriptor Format".
struct Descriptor {
    uint32_t start, leading, stride, base, swizzle_bytes;
    explicit Descriptor(uint64_t bits)
        : start(field(bits, 0)),
          leading(field(bits, 16)),
          stride(field(bits, 32)),
          base(static_cast<uint32_t>(bits >> 49 & 7)),
          swizzle_bytes(bits >> 62 ? 256u >> (bits >> 62) : 0) {}
    static uint32_t field(uint64_t bits, int at) { return static_cast<uint32_t>(bits >> at & 0x3fff) << 4; }

    // The offset of a piece. `row` counts along M or N, `column` along K; the one along which the matrix is stored
    // counts pieces (PTX ISA, "Strides"; the canonical layouts are in its figures).
    uint32_t piece(bool mn_major, uint32_t row, uint32_t column) const {
        uint32_t offset;
        if (mn_major && swizzle_bytes == 0) {
            offset = row * stride + column % 8 * kPiece + column / 8 * leading;
        } else if (mn_major) {
            const uint32_t across = swizzle_bytes / kPiece;
            offset = row % across * kPiece + row / across * leading + column % 8 * swizzle_bytes + column / 8 * stride;
        } else if (swizzle_bytes == 0) {
            offset = row % 8 * kPiece + row / 8 * stride + column * leading;
        } else {
            offset = row % 8 * swizzle_bytes + row / 8 * stride + column * kPiece;
        }
        // The pattern's rows count from its start; the base offset gives that for unaligned starts.
        const uint32_t address = start + offset, shift = base << 7;
        return swizzled(address - shift, swizzle_bytes) + shift;
    }
};

// A or B in shared memory: `rows` rows, beginning with `first`.
struct Matrix {
    Descriptor descriptor;
    uint32_t first, rows;
    Element type;
    bool mn_major;

    // Calls f(address of a piece, row of its first element, byte along k of its first element).
    template <class F>
    void each_piece(F f) const {
        if (mn_major) {
            for (uint32_t r = 0; r < rows; r += 8)
                for (uint32_t k = 0; k < 16; k++) f(descriptor.piece(true, (first + r) / 8, k), r, k);
        } else {
            for (uint32_t r = 0; r < rows; r++)
                for (uint32_t p = 0; p < kRowPieces; p++) f(descriptor.piece(false, first + r, p), r, p * kPiece);
        }
    }
};

uint32_t k_of(Element type) { return type == Element::bf16 ? 16 : 32; }

Matrix matrix_a(const Warp& w, const WgmmaShape& s, uint64_t descriptor) {
    return {Descriptor(descriptor), static_cast<uint32_t>(w.index % kWarpgroup * kWarpRows), kWarpRows, s.a,
            s.transposed_a};
}
Matrix matrix_b(const WgmmaShape& s, uint64_t descriptor) {
    return {Descriptor(descriptor), 0, s.columns, s.b, s.transposed_b};
}

float widen(Element type, const uint8_t* bytes) {
    if (type == Element::e4m3) return float_of_e4m3(*bytes);
    if (type == Element::e5m2) return float_of_e5m2(*bytes);
    uint16_t bits;
    std::memcpy(&bits, bytes, sizeof bits);
    return float_of_bf16(bits);
}
uint32_t bytes_of(Element type) { return type == Element::bf16 ? 2 : 1; }

// Reads a whole matrix as [row][k].
void gather(Block& block, const Matrix& m, bool negative, std::vector<float>& to) {
    const uint32_t K = k_of(m.type), size = bytes_of(m.type);
    const float sign = negative ? -1.0f : 1.0f;
    const auto read = [&](auto widen_one) {
        m.each_piece([&](uint32_t address, uint32_t row, uint32_t k) {
            const uint8_t* const from = reinterpret_cast<const uint8_t*>(block.shared_bytes(address));
            float* const first = &to[row * K + (m.mn_major ? k : k / size)];
            const uint32_t step = m.mn_major ? K : 1;
            for (uint32_t e = 0; e < kPiece / size; e++) first[e * step] = sign * widen_one(from + e * size);
        });
    };
    if (m.type == Element::bf16)
        read([](const uint8_t* bytes) { return widen(Element::bf16, bytes); });
    else
        read([&](const uint8_t* bytes) { return widen(m.type, bytes); });
}

// Reads A from registers. The fragment is that of mma.sync: lane 4 g + t has rows g and g + 8.
void spread(const std::vector<uint32_t>& registers, Element type, bool negative, std::vector<float>& to) {
    const uint32_t K = k_of(type), size = bytes_of(type), elements = 4 / size;
    const float sign = negative ? -1.0f : 1.0f;
    for (uint32_t r = 0; r < kRegistersOfA; r++)
        for (uint32_t lane = 0; lane < kLanes; lane++) {
            const uint32_t row = lane / 4 + r % 2 * 8, k = lane % 4 * elements + r / 2 * (K / 2);
            uint8_t bytes[4];
            std::memcpy(bytes, &registers[r * kLanes + lane], 4);
            for (uint32_t e = 0; e < elements; e++) to[row * K + k + e] = sign * widen(type, bytes + e * size);
        }
}

// D += A B^T, with rows of `K` elements.
void multiply(const std::vector<float>& A, const std::vector<float>& B, const WgmmaShape& s, std::vector<float>& D) {
    const uint32_t K = k_of(s.a), N = s.columns;
    if (options().arithmetic == Arithmetic::fp32) {
        std::vector<float> BT(size_t{K} * N);
        for (uint32_t k = 0; k < K; k++)
            for (uint32_t n = 0; n < N; n++) BT[k * N + n] = B[n * K + k];
        for (uint32_t m = 0; m < kWarpRows; m++)
            for (uint32_t k = 0; k < K; k++) {
                const float a = A[m * K + k];
                float* const d = &D[m * N];
                const float* const b = &BT[k * N];
                for (uint32_t n = 0; n < N; n++) d[n] = std::fma(a, b[n], d[n]);
            }
        return;
    }
    const TensorCore core = tensor_core(options().arithmetic, operands_of(s.a));
    const Exponents exponents{least_exponent(s.a), least_exponent(s.b)};
    for (uint32_t m = 0; m < kWarpRows; m++)
        for (uint32_t n = 0; n < N; n++)
            D[m * N + n] = tensor_sum(&A[m * K], &B[n * K], static_cast<int>(K), D[m * N + n], core, exponents);
}

// Row and column of a lane's r-th result.
uint32_t place_of(uint32_t r, uint32_t lane, uint32_t N) {
    return (lane / 4 + r / 2 % 2 * 8) * N + r / 4 * 8 + lane % 4 * 2 + r % 2;
}

uint64_t uniform(Warp& w, const Op& op, uint32_t place) {
    const uint64_t* const d = w.at<const uint64_t>(place);
    for (int lane = 1; lane < kLanes; lane++)
        if (d[lane] != d[0]) w.fail(op, lane, "its matrix descriptor is not that of lane 0");
    return d[0];
}

// Checks that the data a product is about to read was written and is visible to the async proxy.
void check_matrix(Warp& w, const Op& op, const Matrix& m, const char* name) {
    Block& block = *w.block;
    const std::string what = std::string("wgmma's matrix ") + name, reads = what + " reads";
    if (block.races)
        m.each_piece([&](uint32_t address, uint32_t, uint32_t) {
            if (address >= kSharedBase && address + kPiece <= block.shared_end) block.races->expect(address, kPiece);
        });
    m.each_piece([&](uint32_t address, uint32_t, uint32_t) {
        if (address < kSharedBase || address + kPiece > block.shared_end)
            w.fail(op, 0, "%s has 16 bytes at shared %lld; the block has %u", what.c_str(),
                   static_cast<long long>(address) - kSharedBase, block.shared_end - kSharedBase);
        Addresses at;
        at.is_shared = true;
        at.bytes[0] = block.shared_bytes(address);
        at.written[0] = block.shared_shadow(address);
        if (!all_written<kPiece>(at.written[0])) fail_unwritten(w, op, 0, at, kPiece, what.c_str());
        block.async->proxies.check(w, op, 0, address, kPiece, reads.c_str());
        if (block.races) {
            w.mask = 1;
            block.races->note(w, op, at, kPiece, Access::read);
            w.mask = kAllLanes;
        }
    });
}

}  // namespace

void log_of_warpgroup(Warp& w, const Op& op, uint64_t a, uint64_t b) {
    w.need_all_lanes(op, "an instruction of a warpgroup");
    if (static_cast<size_t>(w.index / kWarpgroup * kWarpgroup + kWarpgroup) > w.block->warps.size())
        w.fail(op, 0, "the last %zu warps of the block are no warpgroup", w.block->warps.size() % kWarpgroup);
    WarpgroupLog& log = w.block->async->warpgroups[static_cast<size_t>(w.index / kWarpgroup)];
    uint32_t& count = log.count[w.index % kWarpgroup];
    if (count == log.entries.size()) {
        log.entries.push_back({&op, a, b, w.index});
    } else if (const auto& other = log.entries[count]; other.op != &op || other.a != a || other.b != b) {
        w.fail(op, 0, "warp %d of the warpgroup executed that of PTX line %u%s instead", other.warp, other.op->line,
               other.op == &op ? " with other operands" : "");
    }
    count++;
}

// ---- registers -----------------------------------------------------------------------------------------------------

void WarpProducts::start(const Warp& w) {
    registers_.assign(w.code->register_words / kLanes, {});
    queue_.clear();
    next_number_ = 1;
    open_group_ = 0;
    fenced_ = false;
}

// ptxas may use one register for a copy and its source. So the copy of a result that is not there yet also waits for
// it, and a copy does not count as a use that wgmma.fence must follow.
void WarpProducts::check_move(const Warp& w, const Op& op, const std::vector<uint32_t>& registers) {
    WatchedRegister& to = registers_[registers[0]];
    const WatchedRegister from = registers.size() > 1 ? registers_[registers[1]] : WatchedRegister{};
    if (from.product && !from.is_input) {
        to = from;
        return;
    }
    if (to.product) fail_watched(w, op, to);
    if (registers.size() > 1) to.touched = from.touched;
}

void WarpProducts::fail_watched(const Warp& w, const Op& op, const WatchedRegister& r) {
    w.fail(op, first_lane(w.mask), "a register is used that the wgmma of PTX line %u may still %s: no wgmma.wait_group",
           r.line, r.is_input ? "read" : "write");
}

void WarpProducts::check(Warp& w, const Op& op) {
    const Code::Touch& touch = w.code->touches[static_cast<size_t>(&op - w.code->ops.data())];
    if (touch.is_wgmma || touch.registers.empty()) return;
    if (touch.moves) return check_move(w, op, touch.registers);
    for (uint32_t r : touch.registers) {
        if (registers_[r].product) fail_watched(w, op, registers_[r]);
        registers_[r].touched = op.line;
    }
}

void WarpProducts::fence() {
    fenced_ = true;
    for (WatchedRegister& r : registers_) r.touched = r.columns = 0;
}

void WarpProducts::check_fenced(const Warp& w, const Op& op, const WatchedRegister& r) const {
    if (r.touched) w.fail(op, 0, "a register of it was used at PTX line %u without wgmma.fence between", r.touched);
}

void WarpProducts::take_results(Warp& w, const Op& op, const WgmmaShape& s, Product& p) {
    const size_t count = s.columns / 2;
    p.inputs.resize(count);
    p.sums.assign(count * kLanes, 0.0f);
    for (size_t n = 0; n < count; n++) {
        WatchedRegister& r = registers_[s.results[n] / kLanes];
        check_fenced(w, op, r);
        if (r.product && r.is_input) fail_watched(w, op, r);
        if (r.columns && r.columns != s.columns)
            w.fail(op, 0,
                   "a register of it is one of a product of %d columns (PTX line %u) without wgmma.fence between",
                   r.columns, r.line);
        if (p.accumulates && r.product) p.inputs[n] = {r.product, r.index};
        if (p.accumulates && !r.product)
            std::memcpy(&p.sums[n * kLanes], w.at<const float>(s.results[n]), kLanes * sizeof(float));
    }
    for (size_t n = 0; n < count; n++)
        registers_[s.results[n] / kLanes] = {p.number, static_cast<uint16_t>(n), false, op.line, 0, s.columns};
}

void WarpProducts::take_a(Warp& w, const Op& op, const WgmmaShape& s, Product& p) {
    if (!s.a_in_registers) {
        p.a = uniform(w, op, s.a_places[0]);
        check_matrix(w, op, matrix_a(w, s, p.a), "A");
        return;
    }
    for (uint32_t place : s.a_places) {
        WatchedRegister& r = registers_[place / kLanes];
        check_fenced(w, op, r);
        if (r.product && !r.is_input) fail_watched(w, op, r);
        const uint32_t* const values = w.at<const uint32_t>(place);
        p.a_registers.insert(p.a_registers.end(), values, values + kLanes);
    }
    for (uint32_t place : s.a_places) {
        WatchedRegister& r = registers_[place / kLanes];
        r.product = p.number;
        r.is_input = true;
        r.line = op.line;
    }
}

// ---- products ------------------------------------------------------------------------------------------------------

void WarpProducts::add(Warp& w, const Op& op) {
    const WgmmaShape& s = w.code->wgmma[static_cast<size_t>(op.list)];
    Product p;
    p.number = next_number_++;
    p.group = open_group_;
    p.op = &op;
    if (w.mask == kAllLanes) p.b = uniform(w, op, s.b_place);
    log_of_warpgroup(w, op, s.a_in_registers || w.mask != kAllLanes ? 0 : uniform(w, op, s.a_places[0]), p.b);
    if (!fenced_) w.fail(op, 0, "no wgmma.fence before the first wgmma");
    const uint32_t accumulates = w.predicates[s.scale_d];
    if (accumulates != 0 && accumulates != kAllLanes) w.fail(op, 0, "scale-d differs between lanes");
    p.accumulates = accumulates != 0;
    check_matrix(w, op, matrix_b(s, p.b), "B");
    take_a(w, op, s, p);
    take_results(w, op, s, p);
    count_reads(w, p, 1);
    queue_.push_back(std::move(p));
}

void WarpProducts::count_reads(const Warp& w, const Product& p, int by) {
    std::vector<uint16_t>& reads = w.block->async->product_reads;
    const auto count = [&](uint32_t address, uint32_t, uint32_t) {
        uint16_t& n = reads[(address - kSharedBase) / kPiece];
        n = static_cast<uint16_t>(n + by);
    };
    const WgmmaShape& s = w.code->wgmma[static_cast<size_t>(p.op->list)];
    if (!s.a_in_registers) matrix_a(w, s, p.a).each_piece(count);
    matrix_b(s, p.b).each_piece(count);
}

void WarpProducts::run(Warp& w, Product& p) {
    count_reads(w, p, -1);
    const WgmmaShape& s = w.code->wgmma[static_cast<size_t>(p.op->list)];
    const uint32_t N = s.columns, K = k_of(s.a), count = N / 2;
    std::vector<float> A(size_t{kWarpRows} * K), B(size_t{N} * K), D(size_t{kWarpRows} * N);
    if (s.a_in_registers)
        spread(p.a_registers, s.a, s.negative_a, A);
    else
        gather(*w.block, matrix_a(w, s, p.a), s.negative_a, A);
    gather(*w.block, matrix_b(s, p.b), s.negative_b, B);
    for (uint32_t r = 0; r < count; r++)
        for (uint32_t lane = 0; lane < kLanes; lane++) D[place_of(r, lane, N)] = p.sums[r * kLanes + lane];
    multiply(A, B, s, D);
    for (uint32_t r = 0; r < count; r++)
        for (uint32_t lane = 0; lane < kLanes; lane++) p.sums[r * kLanes + lane] = D[place_of(r, lane, N)];

    for (Product& later : queue_)
        for (size_t n = 0; n < later.inputs.size(); n++) {
            if (later.inputs[n].product != p.number) continue;
            std::memcpy(&later.sums[n * kLanes], &p.sums[size_t{later.inputs[n].index} * kLanes],
                        kLanes * sizeof(float));
            later.inputs[n] = {};
        }
    for (size_t place = 0; place < registers_.size(); place++) {
        WatchedRegister& r = registers_[place];
        if (r.product != p.number) continue;
        if (!r.is_input)
            std::memcpy(w.registers.data() + place * kLanes, &p.sums[size_t{r.index} * kLanes], kLanes * sizeof(float));
        r.product = 0;
        r.is_input = false;
    }
}

void WarpProducts::wait(Warp& w, uint32_t left) {
    while (!queue_.empty() && uint64_t{queue_.front().group} + left < open_group_) {
        Product p = std::move(queue_.front());
        queue_.pop_front();
        run(w, p);
    }
}

void WarpProducts::finish(const Warp& w) const {
    if (!queue_.empty()) w.fail(*queue_.front().op, 0, "the warp ends without a wgmma.wait_group for it");
}

const Product* WarpProducts::reader_of(const Warp& w, uint32_t address, uint32_t bytes) const {
    for (const Product& p : queue_) {
        const WgmmaShape& s = w.code->wgmma[static_cast<size_t>(p.op->list)];
        bool reads = false;
        const auto look = [&](uint32_t piece, uint32_t, uint32_t) {
            reads |= piece < address + bytes && address < piece + kPiece;
        };
        if (!s.a_in_registers) matrix_a(w, s, p.a).each_piece(look);
        matrix_b(s, p.b).each_piece(look);
        if (reads) return &p;
    }
    return nullptr;
}

// ---- instructions --------------------------------------------------------------------------------------------------

void wgmma(Warp& w, const Op& op) { w.products->add(w, op); }

// These three also belong to a warpgroup, but do not make its warps wait for each other.
void wgmma_fence(Warp& w, const Op& op) {
    w.need_all_lanes(op, "wgmma.fence");
    w.products->fence();
}
void wgmma_commit(Warp& w, const Op& op) {
    w.need_all_lanes(op, "wgmma.commit_group");
    w.products->commit();
}
void wgmma_wait(Warp& w, const Op& op) {
    w.need_all_lanes(op, "wgmma.wait_group");
    w.products->wait(w, static_cast<uint32_t>(op.immediate));
}

}  // namespace virtual_gpu
