// Basic blocks, post-dominators and placement of registers (graph.h).
#include "dev/virtual_gpu/ptx/graph.h"

#include <algorithm>
#include <map>
#include <set>

namespace virtual_gpu {
namespace {

// Immediate post-dominators: dominators of the reversed graph, whose root is one exit after all ends. Follows Cooper,
// Harvey and Kennedy, "A Simple, Fast Dominance Algorithm" (2001).
class PostDominators {
public:
    PostDominators(const Body& body, const std::vector<BasicBlock>& blocks)
        : exit_(static_cast<int>(blocks.size())), after_(blocks.size() + 1), before_(blocks.size() + 1) {
        for (int b = 0; b < exit_; b++) {
            const BasicBlock& block = blocks[static_cast<size_t>(b)];
            for (int next : block.next) link(b, next);
            // Lanes that end under a predicate meet no others; only the remaining lanes count.
            const Instruction& last = body.code[block.last - 1];
            if (ends_thread(last) && last.predicate < 0) link(b, exit_);
        }
        number_blocks();
        solve();
    }
    int of(int block) const { return dominator_[at(block)] == exit_ ? -1 : dominator_[at(block)]; }

private:
    static size_t at(int block) { return static_cast<size_t>(block); }
    void link(int from, int to) {
        after_[at(from)].push_back(to);
        before_[at(to)].push_back(from);
    }

    // Numbers the blocks by postorder of a walk from the exit against the edges.
    void number_blocks() {
        number_.assign(after_.size(), -1);
        std::vector<char> seen(after_.size(), 0);
        std::vector<std::pair<int, size_t>> stack{{exit_, 0}};
        seen[at(exit_)] = 1;
        while (!stack.empty()) {
            auto& [block, index] = stack.back();
            if (index < before_[at(block)].size()) {
                const int next = before_[at(block)][index++];
                if (!seen[at(next)]) {
                    seen[at(next)] = 1;
                    stack.push_back({next, 0});
                }
            } else {
                number_[at(block)] = static_cast<int>(order_.size());
                order_.push_back(block);
                stack.pop_back();
            }
        }
    }

    int meet(int a, int b) const {
        while (a != b) {
            while (number_[at(a)] < number_[at(b)]) a = dominator_[at(a)];
            while (number_[at(b)] < number_[at(a)]) b = dominator_[at(b)];
        }
        return a;
    }

    void solve() {
        dominator_.assign(after_.size(), -1);
        dominator_[at(exit_)] = exit_;
        for (bool changed = true; changed;) {
            changed = false;
            for (size_t o = order_.size(); o-- > 0;) {
                const int block = order_[o];
                if (block == exit_) continue;
                int best = -1;
                for (int next : after_[at(block)])
                    if (dominator_[at(next)] >= 0) best = best < 0 ? next : meet(next, best);
                if (best < 0 || dominator_[at(block)] == best) continue;
                dominator_[at(block)] = best;
                changed = true;
            }
        }
        for (int& d : dominator_)
            if (d < 0) d = exit_;  // an infinite loop
    }

    const int exit_;
    std::vector<std::vector<int>> after_, before_;
    std::vector<int> order_, number_, dominator_;
};

template <class F>
void each_register(const Operand& o, F f) {
    if (o.kind == Operand::reg) f(static_cast<size_t>(o.id));
    for (const Operand& part : o.parts) each_register(part, f);
}

// The number of operands that an instruction writes. Operands of unknown instructions count as read, which is always
// correct but costs a place.
size_t results_of(const Instruction& i, const Body& body) {
    const std::string& c = i.opcode;
    for (const char* without :
         {"st.", "bar", "cp.", "red.", "fence", "membar", "mbarrier", "wgmma", "stmatrix", "setmaxnreg", "discard"})
        if (c.starts_with(without)) return 0;
    if (i.operands.empty()) return 0;
    const bool predicate_too = c.starts_with("shfl") && i.operands[1].kind == Operand::reg &&
                               body.registers[static_cast<size_t>(i.operands[1].id)].width == 'p';
    return predicate_too ? 2 : 1;
}

}  // namespace

bool is_branch(const Instruction& i) { return i.opcode == "bra" || i.opcode == "bra.uni"; }
bool ends_thread(const Instruction& i) { return i.opcode == "ret" || i.opcode == "exit" || i.opcode == "trap"; }

void return_at_once(Body& body) {
    for (Instruction& i : body.code) {
        if (!is_branch(i)) continue;
        const auto found = body.labels.find(i.label);
        if (found == body.labels.end() || found->second == body.code.size()) continue;
        const Instruction& target = body.code[found->second];
        if ((target.opcode == "ret" || target.opcode == "exit") && target.predicate < 0) i.opcode = target.opcode;
    }
}

std::vector<BasicBlock> find_blocks(const Body& body) {
    const auto& code = body.code;
    if (code.empty()) bad_ptx(0, "a kernel without instructions");
    std::set<size_t> leaders{0};
    for (size_t i = 0; i < code.size(); i++) {
        if (is_branch(code[i])) {
            const auto found = body.labels.find(code[i].label);
            if (found == body.labels.end()) bad_ptx(code[i].line, "no such label: " + code[i].label);
            if (found->second == code.size()) bad_ptx(code[i].line, "branch to the end of the text");
            leaders.insert(found->second);
        }
        if (is_branch(code[i]) || ends_thread(code[i])) leaders.insert(i + 1);
    }
    leaders.erase(code.size());
    std::map<size_t, int> index;
    std::vector<BasicBlock> blocks;
    for (auto leader = leaders.begin(); leader != leaders.end(); ++leader) {
        index[*leader] = static_cast<int>(blocks.size());
        const auto after = std::next(leader);
        blocks.push_back({*leader, after == leaders.end() ? code.size() : *after, {}});
    }
    for (size_t b = 0; b < blocks.size(); b++) {
        const Instruction& i = code[blocks[b].last - 1];
        if (is_branch(i)) blocks[b].next.push_back(index[body.labels.find(i.label)->second]);
        const bool goes_on = !(is_branch(i) || ends_thread(i)) || i.predicate >= 0;
        if (!goes_on) continue;
        if (b + 1 == blocks.size()) bad_ptx(i.line, "the kernel falls off its end");
        blocks[b].next.push_back(static_cast<int>(b + 1));
    }
    const PostDominators post_dominators(body, blocks);
    for (size_t b = 0; b < blocks.size(); b++) {
        blocks[b].meet = post_dominators.of(static_cast<int>(b));
        if (blocks[b].next.size() > 1 && blocks[b].meet >= 0)
            blocks[static_cast<size_t>(blocks[b].meet)].is_meeting = true;
    }
    return blocks;
}

RegisterFile place_registers(Body& body, const std::vector<BasicBlock>& blocks) {
    struct Life {
        int block = -1;
        size_t last = 0;
        bool shares = true;
    };
    std::vector<Life> lives(body.registers.size());
    for (size_t b = 0; b < blocks.size(); b++)
        for (size_t i = blocks[b].first; i < blocks[b].last; i++) {
            const Instruction& in = body.code[i];
            const auto touch = [&](size_t r, bool writes) {
                Life& l = lives[r];
                if (l.block < 0) l.block = static_cast<int>(b), l.shares = writes && in.predicate < 0;
                if (l.block != static_cast<int>(b)) l.shares = false;
                if (in.opcode.starts_with("wgmma")) l.shares = false;  // its registers are used later in the text
                l.last = i;
            };
            if (in.predicate >= 0) touch(static_cast<size_t>(in.predicate), false);
            const size_t results = results_of(in, body);
            for (size_t o = results; o < in.operands.size(); o++)
                each_register(in.operands[o], [&](size_t r) { touch(r, false); });
            for (size_t o = 0; o < results; o++) each_register(in.operands[o], [&](size_t r) { touch(r, true); });
        }
    RegisterFile own;
    const auto take = [](RegisterFile& file, char width) {
        if (width == 'p') return file.predicates++;
        const uint32_t place = file.words;
        file.words += width == 'l' ? 64 : 32;
        return place;
    };
    for (size_t r = 0; r < lives.size(); r++)
        if (lives[r].block >= 0 && !lives[r].shares) body.registers[r].place = take(own, body.registers[r].width);
    RegisterFile most = own;
    std::vector<char> placed(lives.size(), 0);
    for (const BasicBlock& block : blocks) {
        RegisterFile here = own;
        std::map<char, std::vector<uint32_t>> free;
        std::vector<std::vector<size_t>> ends(block.last - block.first);
        for (size_t i = block.first; i < block.last; i++) {
            for (const Operand& o : body.code[i].operands)
                each_register(o, [&](size_t r) {
                    if (!lives[r].shares || placed[r]) return;
                    placed[r] = 1;
                    Register& reg = body.registers[r];
                    std::vector<uint32_t>& pool = free[reg.width];
                    reg.place = pool.empty() ? take(here, reg.width) : pool.back();
                    if (!pool.empty()) pool.pop_back();
                    ends[lives[r].last - block.first].push_back(r);
                });
            for (size_t r : ends[i - block.first]) free[body.registers[r].width].push_back(body.registers[r].place);
        }
        most.words = std::max(most.words, here.words);
        most.predicates = std::max(most.predicates, here.predicates);
    }
    return most;
}

}  // namespace virtual_gpu
