// Decodes PTX instructions into the machine's operations.
#include <map>
#include <utility>

#include "dev/virtual_gpu/fault.h"
#include "dev/virtual_gpu/options.h"
#include "dev/virtual_gpu/planned_faults.h"
#include "dev/virtual_gpu/ptx/decoder.h"
#include "dev/virtual_gpu/ptx/graph.h"
#include "dev/virtual_gpu/ptx/instructions.h"
#include "dev/virtual_gpu/ptx/lanes.h"
#include "dev/virtual_gpu/ptx/machine.h"
#include "dev/virtual_gpu/ptx/mbarrier.h"
#include "dev/virtual_gpu/ptx/source.h"
#include "dev/virtual_gpu/ptx/text.h"

namespace virtual_gpu {
namespace {

constexpr std::pair<const char*, Special> kSpecialNames[] = {
    {"%tid.x", kTidX},     {"%tid.y", kTidY},     {"%tid.z", kTidZ},     {"%laneid", kLane},   {"%ctaid.x", kCtaX},
    {"%ctaid.y", kCtaY},   {"%ctaid.z", kCtaZ},   {"%ntid.x", kNtidX},   {"%ntid.y", kNtidY},  {"%ntid.z", kNtidZ},
    {"%nctaid.x", kNctaX}, {"%nctaid.y", kNctaY}, {"%nctaid.z", kNctaZ}, {"%warpid", kWarpId}, {"%clock", kClock},
};

Space space_of(std::string_view name) {
    if (name == "global") return Space::global;
    if (name.starts_with("shared")) return Space::shared;
    return name == "param" ? Space::parameter : Space::generic;
}

// Parts of a load's or store's opcode besides space and type that change nothing here: order and cache hints.
bool changes_nothing(std::string_view part) {
    for (const char* known : {"nc",       "volatile", "relaxed", "acquire", "release",     "weak",  "gpu",
                              "cta",      "sys",      "cg",      "ca",      "cs",          "cv",    "wb",
                              "wt",       "lu",       "global",  "shared",  "shared::cta", "param", "L1::no_allocate",
                              "L2::128B", "L2::256B"})
        if (part == known) return true;
    return part == "cluster" || part == "shared::cluster";
}

Kind kind_of(const std::string& opcode, Space space) {
    const auto starts = [&](const char* s) { return opcode.starts_with(s); };
    if (space == Space::shared || starts("ldmatrix")) return Kind::shared;
    if (space == Space::parameter) return Kind::parameter;
    if (space == Space::global || space == Space::generic) return Kind::global;
    if (starts("mma") || starts("wgmma")) return Kind::tensor;
    if (starts("shfl") || starts("redux")) return Kind::shared;  // they use the same pipe
    if (starts("bar") || starts("cp.async") || starts("fence") || starts("membar")) return Kind::barrier;
    return starts("mov") ? Kind::move : Kind::control;
}

class Decoder final : public OperandDecoder {
public:
    explicit Decoder(const Kernel& kernel)
        : kernel_(kernel), source_(*kernel.source), symbols_(source_.symbols), code_(std::make_unique<Code>()) {}

    std::unique_ptr<Code> run() {
        uint64_t shared_end = source_.shared_begin;
        body_ = read_body(source_.body, source_.line, symbols_, shared_end);
        lay_out_shared(shared_end);
        return_at_once(body_);
        for (const Instruction& i : body_.code) has_wgmma_ |= i.opcode.starts_with("wgmma");
        blocks_ = find_blocks(body_);
        const RegisterFile file = place_registers(body_, blocks_);
        narrowed_ = file.words;
        code_->register_words = file.words + 4 * kLanes;
        code_->predicates = file.predicates;
        emit();
        lose();
        lie();
        return std::move(code_);
    }

private:
    // Lays out a block's shared memory: static variables, then the dynamic part.
    void lay_out_shared(uint64_t end) {
        uint64_t align = 16;
        for (const auto& [name, symbol] : symbols_)
            if (symbol.space == Symbol::dynamic_shared) align = std::max(align, symbol.address);
        code_->shared_end = static_cast<uint32_t>(end);
        code_->dynamic_base = static_cast<uint32_t>((end + align - 1) / align * align);
        for (auto& [name, symbol] : symbols_)
            if (symbol.space == Symbol::dynamic_shared) symbol = {Symbol::shared, code_->dynamic_base};
    }

    void emit() {
        std::vector<int> start;
        for (const BasicBlock& block : blocks_) {
            start.push_back(static_cast<int>(code_->ops.size()));
            if (block.is_meeting) {
                Op op;
                op.execute = meet;
                op.immediate = start.back();
                op.line = body_.code[block.first].line;
                add(op, "meet");
            }
            for (size_t i = block.first; i < block.last; i++) emit(body_.code[i]);
        }
        start.push_back(static_cast<int>(code_->ops.size()));
        for (size_t b = 0; b < blocks_.size(); b++) {
            if (!is_branch(body_.code[blocks_[b].last - 1])) continue;
            Op& op = code_->ops[static_cast<size_t>(start[b + 1]) - 1];
            op.target = start[static_cast<size_t>(blocks_[b].next[0])];
            if (blocks_[b].next.size() > 1 && blocks_[b].meet >= 0)
                op.meet = start[static_cast<size_t>(blocks_[b].meet)];
        }
    }

    void emit(const Instruction& i) {
        in_ = &i;
        narrow_here_ = 0;
        Op op;
        op.line = i.line;
        if (i.predicate >= 0) {
            op.predicate = static_cast<int16_t>(body_.registers[static_cast<size_t>(i.predicate)].place);
            op.negate = i.negate;
        }
        if (!decode_control(op) && !decode_lanes(op) && !decode_hopper(*this, op) && !decode_memory(op) &&
            !decode_warp(op))
            unknown();
        if (op.kind == Kind::control) op.kind = kind_of(i.opcode, op.space);
        add(op, i.opcode);
        if (has_wgmma_) code_->touches.resize(code_->ops.size(), touch_of(i, body_));
    }
    void add(const Op& op, const std::string& opcode) {
        code_->ops.push_back(op);
        code_->opcodes.push_back(opcode);
    }
    const Instruction& instruction() const override { return *in_; }
    Code& code() override { return *code_; }
    using OperandDecoder::address;
    [[noreturn]] void unknown() const override { bad_ptx(in_->line, "instruction not known: " + in_->opcode); }
    void need(bool condition, const char* what) const override {
        if (!condition) bad_ptx(in_->line, in_->opcode + ": " + what);
    }
    const Operand& operand(size_t n) const override {
        need(n < in_->operands.size(), "an operand is missing");
        return in_->operands[n];
    }

    // Applies the mistake that VIRTUAL_GPU_LOSE asks for.
    void lose() {
        const std::string& wanted = options().lose;
        if (wanted.empty() || wanted.substr(0, wanted.rfind(':')) != kernel_.name) return;
        const uint32_t line = static_cast<uint32_t>(std::strtoul(wanted.c_str() + wanted.rfind(':') + 1, nullptr, 10));
        bool found = false;
        for (size_t i = 0; i < code_->ops.size(); i++) {
            if (code_->ops[i].line != line || code_->opcodes[i] == "meet") continue;
            code_->ops[i].execute = code_->ops[i].execute == mbarrier_wait ? mbarrier_pass : nothing;
            found = true;
        }
        if (!found) fault("VIRTUAL_GPU_LOSE=%s: no instruction is there", wanted.c_str());
    }

    // Makes casts wrong if VIRTUAL_GPU_FAULT asks for it.
    void lie() {
        if (!lies("cast", kernel_.readable)) return;
        for (size_t i = 0; i < code_->ops.size(); i++)
            if (const Execute cast = find_lying_cast(code_->opcodes[i])) code_->ops[i].execute = cast;
    }

    // ---- operands ----

    uint64_t bits_of(const std::string& text) const override {
        const char* begin = text.c_str();
        char* end = nullptr;
        uint64_t bits;
        if (text.starts_with("0f") || text.starts_with("0F") || text.starts_with("0d") || text.starts_with("0D"))
            bits = std::strtoull(begin + 2, &end, 16);
        else if (text[0] == '-')
            bits = static_cast<uint64_t>(std::strtoll(begin, &end, 0));
        else
            bits = std::strtoull(begin, &end, 0);
        if (*end == 'U') end++;
        if (*end) bad_ptx(in_->line, in_->opcode + ": number not known: " + text);
        return bits;
    }
    uint32_t constant(char kind, uint64_t bits) override {
        const bool is_long = kind == 'l' || kind == 'd';
        if (!is_long) bits &= kind == 'h' ? 0xffffu : 0xffffffffu;
        const auto [found, is_new] =
            constants_.try_emplace({is_long, bits}, static_cast<uint32_t>(code_->constants.size()));
        for (int lane = 0; is_new && lane < kLanes; lane++) {
            code_->constants.push_back(static_cast<uint32_t>(bits));
            if (is_long) code_->constants.push_back(static_cast<uint32_t>(bits >> 32));
        }
        return found->second | kConstantBank;
    }

    // `kind` is as in LaneOp::operands.
    uint32_t place(const Operand& o, char kind) override {
        const char needed = kind == 'p' ? 'p' : kind == 'l' || kind == 'd' ? 'l' : 'w';
        if (o.kind == Operand::reg) {
            const Register& r = body_.registers[static_cast<size_t>(o.id)];
            if (r.width == needed) return r.place;
            if (r.width == 'l' && needed == 'w' && in_->opcode.starts_with("cvt")) return low_half(r.place);
            bad_ptx(in_->line, in_->opcode + ": operand " + o.text + " has another width");
        }
        if (o.kind == Operand::number) return kind == 'p' ? (bits_of(o.text) ? 1 : 0) : constant(kind, bits_of(o.text));
        if (o.kind == Operand::name && kind != 'p') {
            for (const auto& [name, special] : kSpecialNames)
                if (o.text == name) return static_cast<uint32_t>(special) * kLanes | kSpecialBank;
            if (o.text == "WARP_SZ") return constant(kind, kLanes);
            if (const auto s = symbols_.find(o.text); s != symbols_.end()) return constant(kind, s->second.address);
        }
        bad_ptx(in_->line, in_->opcode + ": operand not known: " + o.text);
    }
    // cvt may name a wider register and means its low half (PTX ISA, "Operand Size Exceeding Instruction-Type Size").
    uint32_t low_half(uint32_t place) {
        Op op;
        op.execute = find_lane_op("cvt.u32.u64")->execute;
        op.kind = Kind::convert;
        op.at[0] = narrowed_ + kLanes * narrow_here_++;
        op.at[1] = place;
        op.line = in_->line;
        add(op, "low half");
        return op.at[0];
    }

    // A result must be a register of exactly its width.
    void check_result(char kind) const {
        const Operand& o = operand(0);
        need(o.kind == Operand::reg, "the result is no register");
        const bool is_long = kind == 'l' || kind == 'd';
        if ((body_.registers[static_cast<size_t>(o.id)].width == 'l') != is_long)
            bad_ptx(in_->line, in_->opcode + ": operand " + o.text + " has another width");
    }

    void address(Op& op, const Operand& memory) override {
        need(memory.kind == Operand::memory, "an address is missing");
        op.immediate = memory.offset;
        const Operand& base = memory.parts[0];
        if (base.kind == Operand::reg) {
            const Register& r = body_.registers[static_cast<size_t>(base.id)];
            op.has_base = true;
            op.wide_base = r.width == 'l';
            op.at[kBase] = r.place;
        } else if (base.kind == Operand::name) {
            const auto s = symbols_.find(base.text);
            need(s != symbols_.end(), "symbol not known");
            op.immediate += static_cast<int64_t>(s->second.address);
        } else {
            op.immediate += static_cast<int64_t>(bits_of(base.text));
        }
    }

    // ---- kinds of instructions: each function returns true if it is one ----

    bool decode_control(Op& op) {
        const std::string& c = in_->opcode;
        if (is_branch(*in_))
            op.execute = branch;
        else if (c == "trap")
            op.execute = trap;
        else if (ends_thread(*in_))
            op.execute = end_lanes;
        else if (c.starts_with("membar") || c.starts_with("fence.acq_rel") || c.starts_with("fence.sc"))
            op.execute = nothing;
        else
            return false;
        return true;
    }

    bool decode_lanes(Op& op) {
        const LaneOp* const lane_op = find_lane_op(in_->opcode);
        if (!lane_op) return false;
        for (const Operand& o : in_->operands) {
            if (o.kind == Operand::vector) return false;
            need(!o.negated, "a negated predicate");
        }
        need(in_->operands.size() == lane_op->operands.size(), "another number of operands");
        check_result(lane_op->operands[0]);
        for (size_t n = 0; n < in_->operands.size(); n++) op.at[n] = place(operand(n), lane_op->operands[n]);
        op.execute = lane_op->execute;
        op.kind = lane_op->kind;
        return true;
    }

    bool decode_memory(Op& op) {
        const auto parts = split(in_->opcode, '.');
        if (parts[0] == "mov" && parts.size() == 2) return decode_vector_move(op, bytes_of_type(parts[1]));
        if (parts[0] == "ld" || parts[0] == "st") return decode_access(op, parts);
        if (parts[0] == "atom" || parts[0] == "red") return decode_atomic(op, parts);
        if (parts[0] == "ldmatrix") return decode_matrix(op, parts);
        if (in_->opcode.starts_with("cp.async")) return decode_async(op);
        return false;
    }

    bool decode_vector_move(Op& op, int bytes) {
        const bool unpacks = operand(0).kind == Operand::vector;
        const Operand &vector = operand(unpacks ? 0 : 1), &whole = operand(unpacks ? 1 : 0);
        need(vector.kind == Operand::vector && vector.parts.size() >= 2 && vector.parts.size() <= 4,
             "a vector is missing");
        op.execute = unpacks ? unpack : pack;
        op.count = static_cast<uint8_t>(vector.parts.size());
        op.size = static_cast<uint8_t>(bytes / op.count);
        need(op.size <= 4, "elements of 64 bits");
        op.wide = bytes == 8;
        op.kind = Kind::move;
        op.at[0] = place(whole, op.wide ? 'l' : 'w');
        for (size_t n = 0; n < op.count; n++) op.at[n + 1] = place_or_drop(vector.parts[n]);
        return true;
    }
    uint32_t place_or_drop(const Operand& o) {
        return o.kind == Operand::none ? narrowed_ + 3 * kLanes : place(o, 'w');
    }

    bool decode_access(Op& op, const std::vector<std::string_view>& parts) {
        const bool stores = parts[0] == "st";
        const std::string_view type = parts.back();
        op.space = Space::generic;
        for (size_t n = 1; n + 1 < parts.size(); n++) {
            if (parts[n] == "v2")
                op.count = 2;
            else if (parts[n] == "v4")
                op.count = 4;
            else if (parts[n] == "v8")
                op.count = 8;
            else if (!changes_nothing(parts[n]))
                unknown();
            if (const Space s = space_of(parts[n]); s != Space::generic) op.space = s;
        }
        const Operand& data = operand(stores ? 1 : 0);
        const std::vector<Operand> elements = data.kind == Operand::vector ? data.parts : std::vector<Operand>{data};
        need(elements.size() == op.count, "another number of elements");
        op.size = static_cast<uint8_t>(bytes_of_type(type));
        op.wide = op.size == 8;
        for (const Operand& e : elements)
            if (e.kind == Operand::reg && body_.registers[static_cast<size_t>(e.id)].width == 'l') op.wide = true;
        for (size_t n = 0; n < op.count; n++) op.at[n] = place(elements[n], op.wide ? 'l' : 'w');
        address(op, operand(stores ? 0 : 1));
        if (op.space == Space::parameter) {
            need(!stores, "parameters are not written");
            op.execute = load_parameter;
            op.mode = type[0] == 's' && op.size < 4 ? 1 : 0;
        } else {
            op.execute = stores ? find_store(type, op.wide, op.count) : find_load(type, op.wide, op.count);
        }
        if (!op.execute) unknown();
        return true;
    }

    // d, [address], b, c: only cas has c, and red has no d.
    bool decode_atomic(Op& op, const std::vector<std::string_view>& parts) {
        const std::string_view type = parts.back(), operation = parts[parts.size() - 2];
        const size_t first = parts[0] == "red" ? 0 : 1;
        op.space = Space::generic;
        for (size_t n = 1; n + 2 < parts.size(); n++)
            if (const Space s = space_of(parts[n]); s != Space::generic) op.space = s;
        op.size = static_cast<uint8_t>(bytes_of_type(type));
        const char kind = op.size == 8 ? 'l' : 'w';
        op.count = first == 1 && operand(0).kind == Operand::reg;
        if (op.count) op.at[0] = place(operand(0), kind);
        address(op, operand(first));
        op.at[1] = place(operand(first + 1), kind);
        op.at[2] = in_->operands.size() > first + 2 ? place(operand(first + 2), kind) : op.at[1];
        op.execute = find_atomic(operation, type);
        if (!op.execute) unknown();
        return true;
    }

    bool decode_matrix(Op& op, const std::vector<std::string_view>& parts) {
        if (!in_->opcode.starts_with("ldmatrix.sync.aligned.m8n8.x") || parts.back() != "b16") return false;
        op.mode = in_->opcode.find(".trans") != std::string::npos ? 1 : 0;
        op.count = static_cast<uint8_t>(operand(0).parts.size());
        need(op.count == 1 || op.count == 2 || op.count == 4, "another number of matrices");
        for (size_t n = 0; n < op.count; n++) op.at[n] = place(operand(0).parts[n], 'w');
        address(op, operand(1));
        op.space = Space::shared;
        op.execute = load_matrix;
        return true;
    }

    bool decode_async(Op& op) {
        const std::string& c = in_->opcode;
        op.kind = Kind::barrier;
        if (c == "cp.async.commit_group") {
            op.execute = async_commit;
        } else if (c == "cp.async.wait_group" || c == "cp.async.wait_all") {
            op.immediate = c.ends_with("all") ? -1 : static_cast<int64_t>(bits_of(operand(0).text));
            op.execute = async_wait;
        } else if (c == "cp.async.cg.shared.global" || c == "cp.async.ca.shared.global") {
            address(op, operand(0));
            op.space = Space::shared;
            const Operand& from = operand(1);
            need(from.kind == Operand::memory && from.parts[0].kind == Operand::reg, "an address is missing");
            op.at[0] = place(from.parts[0], 'l');
            op.at[1] = constant('l', static_cast<uint64_t>(from.offset));
            op.size = static_cast<uint8_t>(bits_of(operand(2).text));
            need(op.size == 16 || (c[9] == 'c' && c[10] == 'a' && (op.size == 4 || op.size == 8)), "bytes");
            op.at[2] = in_->operands.size() > 3 ? place(operand(3), 'w') : constant('w', op.size);
            op.execute = async_copy;
            op.kind = Kind::global;
        } else {
            return false;
        }
        return true;
    }

    bool decode_warp(Op& op) {
        const std::string& c = in_->opcode;
        const auto parts = split(c, '.');
        if (c == "bar.sync" || c == "barrier.sync" || c == "barrier.sync.aligned" || c == "bar.arrive") {
            op.mode = c == "bar.arrive" ? kArrive : kSync;
            op.count = static_cast<uint8_t>(in_->operands.size());
            for (size_t n = 0; n < op.count; n++) op.at[n] = place(operand(n), 'w');
            op.execute = barrier;
        } else if (c == "bar.warp.sync") {
            op.at[0] = place(operand(0), 'w');
            op.execute = warp_barrier;
        } else if (c.starts_with("shfl.sync.")) {
            decode_shuffle(op, parts[2]);
        } else if (c.starts_with("vote.sync.")) {
            op.mode = static_cast<uint8_t>(parts[2] == "ballot" ? 'b'
                                           : parts[2] == "any"  ? 'y'
                                           : parts[2] == "all"  ? 'l'
                                                                : 'u');
            op.at[0] = place(operand(0), op.mode == 'b' ? 'w' : 'p');
            op.at[1] = place(operand(1), 'p');
            op.at[2] = place(operand(2), 'w');
            op.immediate = operand(1).negated;
            op.execute = vote;
        } else if (c == "activemask.b32") {
            op.at[0] = place(operand(0), 'w');
            op.execute = active_mask;
        } else if (c.starts_with("redux.sync.") && parts.size() == 4) {
            for (size_t n = 0; n < 3; n++) op.at[n] = place(operand(n), 'w');
            op.execute = find_reduction(parts[2], parts[3]);
            if (!op.execute) unknown();
        } else if (Execute mma = find_mma(c)) {
            size_t n = 0;
            for (const Operand& fragment : in_->operands)
                for (const Operand& e : fragment.parts) {
                    need(n < op.at.size(), "another number of operands");
                    op.at[n++] = place(e, 'w');
                }
            need(n == op.at.size(), "another number of operands");
            op.execute = mma;
        } else {
            return false;
        }
        return true;
    }

    void decode_shuffle(Op& op, std::string_view mode) {  // d|p, a, b, c, members
        const bool two = in_->operands.size() == 6;
        op.count = two ? 2 : 1;
        op.mode = static_cast<uint8_t>(mode[0]);
        op.at[0] = place(operand(0), 'w');
        if (two) op.at[1] = place(operand(1), 'p');
        for (size_t n = 0; n < 4; n++) op.at[2 + n] = place(operand((two ? 2 : 1) + n), 'w');
        op.execute = shuffle;
    }

    const Kernel& kernel_;
    const Source& source_;
    Symbols symbols_;
    std::unique_ptr<Code> code_;
    Body body_;
    std::vector<BasicBlock> blocks_;
    std::map<std::pair<bool, uint64_t>, uint32_t> constants_;
    const Instruction* in_ = nullptr;
    bool has_wgmma_ = false;
    uint32_t narrowed_ = 0, narrow_here_ = 0;  // where low halves lie, and their number in this instruction
};

}  // namespace

std::unique_ptr<Code> decode(const Kernel& kernel) { return Decoder(kernel).run(); }

}  // namespace virtual_gpu
