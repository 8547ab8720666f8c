// Decodes the instructions that came with sm_90 and that kernels of the product use. Refused as unknown are, among
// others: clusters and their instructions (barrier.cluster, mapa, st.async, multicast), elect.sync, griddepcontrol,
// prefetches, reductions by bulk copies (cp.reduce.async.bulk), im2col copies, sparse products, and products other than
// BF16 and FP8 with FP32 sums.
#include "dev/virtual_gpu/ptx/async.h"
#include "dev/virtual_gpu/ptx/decoder.h"
#include "dev/virtual_gpu/ptx/instructions.h"

namespace virtual_gpu {

void OperandDecoder::address(std::vector<uint32_t>& list, const Operand& memory) {
    need(memory.kind == Operand::memory, "an address is missing");
    Op op;
    address(op, memory);
    list.push_back(op.has_base ? op.at[kBase] : constant('l', 0));
    list.push_back(op.has_base && !op.wide_base ? 0 : 1);
    list.push_back(constant('l', static_cast<uint64_t>(op.immediate)));
}

uint64_t address_at(Warp& w, const std::vector<uint32_t>& list, size_t first, int lane) {
    const uint64_t offset = w.at<const uint64_t>(list[first + 2])[lane];
    if (list[first + 1]) return w.at<const uint64_t>(list[first])[lane] + offset;
    return static_cast<uint32_t>(w.at<const uint32_t>(list[first])[lane] + static_cast<uint32_t>(offset));
}

namespace {

void note_registers(const Operand& o, const Body& body, Code::Touch& touch) {
    if (o.kind == Operand::reg && body.registers[static_cast<size_t>(o.id)].width == 'w')
        touch.registers.push_back(body.registers[static_cast<size_t>(o.id)].place / kLanes);
    for (const Operand& part : o.parts) note_registers(part, body, touch);
}

}  // namespace

Code::Touch touch_of(const Instruction& i, const Body& body) {
    Code::Touch touch;
    for (const Operand& o : i.operands) note_registers(o, body, touch);
    touch.moves = i.predicate < 0 && i.operands.size() == 2 && i.operands[0].kind == Operand::reg &&
                  !touch.registers.empty() && (i.opcode == "mov.f32" || i.opcode == "mov.b32" || i.opcode == "mov.u32");
    touch.is_wgmma = i.opcode.starts_with("wgmma.mma_async");
    return touch;
}

namespace {

using Parts = std::vector<std::string_view>;

bool has_part(const Parts& parts, std::string_view part) {
    for (std::string_view p : parts)
        if (p == part) return true;
    return false;
}

// Requires every part to be one of these, so that no part is silently ignored.
void only(const OperandDecoder& d, const Parts& parts, std::initializer_list<std::string_view> known) {
    for (std::string_view part : parts) {
        bool found = false;
        for (std::string_view k : known) found |= k == part;
        if (!found) d.unknown();
    }
}

void set_list(OperandDecoder& d, Op& op, std::vector<uint32_t> list) {
    op.list = static_cast<int32_t>(d.code().lists.size());
    d.code().lists.push_back(std::move(list));
}

// ---- mbarrier ------------------------------------------------------------------------------------------------------

void decode_barrier_wait(OperandDecoder& d, Op& op) {
    op.at[0] = d.place(d.operand(0), 'p');
    d.address(op, d.operand(1));
    op.at[1] = d.place(d.operand(2), 'w');
    if (d.instruction().operands.size() > 3) d.place(d.operand(3), 'w');  // the time limit
    op.execute = mbarrier_wait;
}

void decode_barrier_arrive(OperandDecoder& d, Op& op, const Parts& parts) {
    op.mode = has_part(parts, "expect_tx") ? 1 : 0;
    d.need(d.operand(0).kind != Operand::memory && d.operand(0).kind != Operand::reg,
           "only arrivals without a result are known: _");
    d.address(op, d.operand(1));
    const bool counted = d.instruction().operands.size() > 2;
    d.need(counted || op.mode == 0, "a count is missing");
    op.at[1] = counted ? d.place(d.operand(2), 'w') : d.constant('w', 1);
    op.execute = mbarrier_arrive;
}

bool decode_mbarrier(OperandDecoder& d, Op& op, const Parts& parts) {
    only(d, parts,
         {"mbarrier", "init", "arrive", "expect_tx", "try_wait", "parity", "release", "acquire", "relaxed", "cta",
          "shared", "shared::cta", "b64"});
    if (parts.size() < 3) return false;
    const std::string_view what = parts[1];
    op.kind = Kind::barrier;
    d.code().is_async = true;
    op.space = Space::generic;
    for (std::string_view p : parts)
        if (p.starts_with("shared")) op.space = Space::shared;
    if (what == "try_wait" && has_part(parts, "parity")) {
        decode_barrier_wait(d, op);
    } else if (what == "arrive") {
        decode_barrier_arrive(d, op, parts);
    } else if (what == "init") {
        d.address(op, d.operand(0));
        op.at[1] = d.place(d.operand(1), 'w');
        op.execute = mbarrier_init;
    }
    return op.execute != nullptr;
}

// ---- bulk copies ---------------------------------------------------------------------------------------------------

// [shared], [global], size, [mbarrier] or [shared], [map, {x, y}], [mbarrier]. A store has the first two in reverse
// order and no mbarrier.
bool decode_bulk_copy(OperandDecoder& d, Op& op, const Parts& parts) {
    only(d, parts,
         {"cp", "async", "bulk", "tensor", "1d", "2d", "3d", "4d", "5d", "shared::cta", "shared::cluster", "tile",
          "global", "mbarrier::complete_tx::bytes", "bulk_group"});
    const bool tensor = has_part(parts, "tensor"), loads = has_part(parts, "mbarrier::complete_tx::bytes");
    const size_t to = tensor ? 5 : 3;
    if (loads == has_part(parts, "bulk_group") || parts.size() < to + 2) return false;
    // It copies from shared memory to that of another block.
    if ((loads ? parts[to + 1] : parts[to]) != "global") return false;
    op.mode = loads ? kBulkLoad : kBulkStore;
    op.count = tensor ? static_cast<uint8_t>(parts[4][0] - '0') : 0;
    const Operand &shared = d.operand(loads ? 0 : 1), &global = d.operand(loads ? 1 : 0);
    std::vector<uint32_t> list;
    d.address(list, shared);
    d.address(list, global);
    if (tensor) {
        d.need(global.parts.size() == 2 && global.parts[1].parts.size() == op.count, "another number of coordinates");
        for (const Operand& coordinate : global.parts[1].parts) list.push_back(d.place(coordinate, 'w'));
    } else {
        list.push_back(d.place(d.operand(2), 'w'));
    }
    if (loads) d.address(list, d.operand(tensor ? 2 : 3));
    set_list(d, op, std::move(list));
    op.execute = bulk_copy;
    op.kind = Kind::global;
    d.code().is_async = true;
    return true;
}

bool decode_bulk(OperandDecoder& d, Op& op, const Parts& parts) {
    if (parts.size() < 4) return false;
    op.kind = Kind::barrier;
    if (parts[3] == "commit_group") {
        d.code().is_async = true;
        op.execute = bulk_commit;
        return true;
    }
    if (parts[3] == "wait_group") {
        d.code().is_async = true;
        op.mode = parts.back() == "read" ? 1 : 0;
        op.immediate = static_cast<int64_t>(d.bits_of(d.operand(0).text));
        op.execute = bulk_wait;
        return true;
    }
    return decode_bulk_copy(d, op, parts);
}

// ---- products of warpgroups ----------------------------------------------------------------------------------------

bool type_of(std::string_view name, Element& type) {
    type = name == "bf16" ? Element::bf16 : name == "e4m3" ? Element::e4m3 : Element::e5m2;
    return name == "bf16" || name == "e4m3" || name == "e5m2";
}

// d, a, b, scale-d, imm-scale-a, imm-scale-b, and for BF16 imm-trans-a (if a is a descriptor), imm-trans-b.
bool decode_product(OperandDecoder& d, Op& op, const Parts& parts) {
    WgmmaShape s;
    if (parts.size() != 8 || parts[2] != "sync" || parts[3] != "aligned" || parts[5] != "f32") return false;
    if (!type_of(parts[6], s.a) || !type_of(parts[7], s.b)) return false;
    const bool bf16 = s.a == Element::bf16;
    if (bf16 != (s.b == Element::bf16)) return false;
    const std::string shape(parts[4]);
    const unsigned long N = shape.starts_with("m64n") ? std::strtoul(shape.c_str() + 4, nullptr, 10) : 0;
    if (N == 0 || N % 8 || N > 256 || shape != "m64n" + std::to_string(N) + (bf16 ? "k16" : "k32")) return false;
    s.columns = static_cast<uint16_t>(N);
    const Operand &results = d.operand(0), &a = d.operand(1);
    d.need(results.parts.size() == N / 2, "another number of results");
    for (const Operand& r : results.parts) s.results.push_back(d.place(r, 'w'));
    s.a_in_registers = a.kind == Operand::vector;
    if (s.a_in_registers) {
        d.need(a.parts.size() == 4, "another number of registers of A");
        for (const Operand& r : a.parts) {
            d.need(r.kind == Operand::reg, "A is no register");
            s.a_places.push_back(d.place(r, 'w'));
        }
    } else {
        s.a_places.push_back(d.place(a, 'l'));
    }
    s.b_place = d.place(d.operand(2), 'l');
    d.need(!d.operand(3).negated, "a negated predicate");
    s.scale_d = d.place(d.operand(3), 'p');
    const auto sign = [&](size_t n) {
        const int64_t value = static_cast<int64_t>(d.bits_of(d.operand(n).text));
        d.need(value == 1 || value == -1, "a scale that is neither 1 nor -1");
        return value == -1;
    };
    s.negative_a = sign(4);
    s.negative_b = sign(5);
    size_t next = 6;
    const auto transposed = [&] {
        const uint64_t value = d.bits_of(d.operand(next++).text);
        d.need(value <= 1, "a transpose that is neither 0 nor 1");
        return value == 1;
    };
    if (bf16 && !s.a_in_registers) s.transposed_a = transposed();
    if (bf16) s.transposed_b = transposed();
    d.need(d.instruction().operands.size() == next, "another number of operands");
    for (const Operand& r : results.parts) d.need(r.kind == Operand::reg, "a result is no register");
    op.list = static_cast<int32_t>(d.code().wgmma.size());
    d.code().wgmma.push_back(std::move(s));
    op.execute = wgmma;
    return true;
}

bool decode_wgmma(OperandDecoder& d, Op& op, const Parts& parts) {
    const std::string& c = d.instruction().opcode;
    d.code().is_async = true;
    op.kind = Kind::tensor;
    if (c == "wgmma.fence.sync.aligned") {
        op.execute = wgmma_fence;
    } else if (c == "wgmma.commit_group.sync.aligned") {
        op.execute = wgmma_commit;
    } else if (c == "wgmma.wait_group.sync.aligned") {
        op.immediate = static_cast<int64_t>(d.bits_of(d.operand(0).text));
        op.execute = wgmma_wait;
    } else {
        return parts.size() > 1 && parts[1] == "mma_async" && decode_product(d, op, parts);
    }
    return true;
}

// ---- the rest ------------------------------------------------------------------------------------------------------

bool decode_fence(OperandDecoder& d, Op& op) {
    const std::string& c = d.instruction().opcode;
    op.kind = Kind::barrier;
    if (c == "fence.mbarrier_init.release.cluster")
        op.mode = 1;
    else if (c != "fence.proxy.async" && c != "fence.proxy.async.shared::cta" &&
             c != "fence.proxy.async.shared::cluster")
        return c == "fence.proxy.async.global" && (op.execute = nothing);  // proxies of global memory are not tracked
    d.code().is_async = true;
    op.execute = fence_async;
    return true;
}

bool decode_matrix_store(OperandDecoder& d, Op& op, const Parts& parts) {
    only(d, parts, {"stmatrix", "sync", "aligned", "m8n8", "x1", "x2", "x4", "trans", "shared", "shared::cta", "b16"});
    const Operand& data = d.operand(1);
    op.count = static_cast<uint8_t>(data.kind == Operand::vector ? data.parts.size() : 1);
    d.need(has_part(parts, "x" + std::to_string(op.count)), "another number of matrices");
    for (size_t n = 0; n < op.count; n++) op.at[n] = d.place(data.kind == Operand::vector ? data.parts[n] : data, 'w');
    op.mode = has_part(parts, "trans") ? 1 : 0;
    d.address(op, d.operand(0));
    op.space = Space::generic;
    for (std::string_view p : parts)
        if (p.starts_with("shared")) op.space = Space::shared;
    op.kind = Kind::shared;
    op.execute = store_matrix;
    return true;
}

bool decode_set_max_registers(OperandDecoder& d, Op& op) {
    const std::string& c = d.instruction().opcode;
    if (c != "setmaxnreg.inc.sync.aligned.u32" && c != "setmaxnreg.dec.sync.aligned.u32") return false;
    op.mode = c[11] == 'i' ? 1 : 0;
    op.immediate = static_cast<int64_t>(d.bits_of(d.operand(0).text));
    d.need(op.immediate % 8 == 0 && op.immediate >= 24 && op.immediate <= 256, "registers: 24 to 256, a multiple of 8");
    op.execute = set_max_registers;
    d.code().is_async = true;
    return true;
}

}  // namespace

bool decode_hopper(OperandDecoder& d, Op& op) {
    const std::string& c = d.instruction().opcode;
    const Parts parts = split(c, '.');
    if (parts[0] == "mbarrier") return decode_mbarrier(d, op, parts);
    if (c.starts_with("cp.async.bulk.")) return decode_bulk(d, op, parts);
    if (parts[0] == "wgmma") return decode_wgmma(d, op, parts);
    if (c.starts_with("fence.proxy.") || c.starts_with("fence.mbarrier_init.")) return decode_fence(d, op);
    if (parts[0] == "stmatrix") return decode_matrix_store(d, op, parts);
    if (parts[0] == "setmaxnreg") return decode_set_max_registers(d, op);
    if (c == "cvta.param.u64") {
        op.at[0] = d.place(d.operand(0), 'l');
        op.at[1] = d.place(d.operand(1), 'l');
        op.execute = generic_of_parameter;
        op.kind = Kind::move;
        return true;
    }
    return false;
}

}  // namespace virtual_gpu
