// PTX text taken apart: modules into kernels, and a kernel's body into instructions with their operands. What they mean
// is decode.cpp's; the grammar is that of the PTX ISA, chapters 4 and 5, as far as nvcc writes it.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace virtual_gpu {

// A name that stands for an address.
struct Symbol {
    enum Space { shared, dynamic_shared, parameter } space;
    uint64_t address;  // dynamic_shared: its alignment; the address is known when all static variables are
};
using Symbols = std::map<std::string, Symbol, std::less<>>;

struct Register {
    char width;          // p predicate, w up to 32 bits, l 64 bits
    uint32_t place = 0;  // graph.cpp gives it one
};

struct Operand {
    enum Kind { none, reg, number, vector, memory, name } kind = none;
    int id = -1;                 // reg: in Body::registers
    std::string text;            // number, name (a symbol or a special register)
    std::vector<Operand> parts;  // vector: its elements; memory: the address, for a tensor copy with its coordinates
    int64_t offset = 0;          // memory: added to the address
    bool negated = false;        // a predicate with ! before it
};

struct Instruction {
    std::string opcode;
    std::vector<Operand> operands;  // destinations first; a second destination (d|p) is one of its own
    int predicate = -1;             // a register
    bool negate = false;
    uint32_t line = 0;  // in the module's text
    std::string label;  // of a branch
};

struct Body {
    std::vector<Register> registers;
    std::vector<Instruction> code;
    std::map<std::string, size_t, std::less<>> labels;  // to the instruction that follows; those of inner scopes have
                                                        // the scope's number behind them: "LOOP@3"
};

// Throws Fault with the line.
[[noreturn]] void bad_ptx(uint32_t line, const std::string& why);

std::vector<std::string_view> split(std::string_view text, char by);
std::string_view trim(std::string_view text);
std::string_view line_of(std::string_view text, uint32_t number);  // from 1 on, trimmed; "?": there is none
int bytes_of_type(std::string_view type);                          // "u16", ".f64", "b128"

// One pass through text: spaces and comments skipped, lines counted.
class Scanner {
public:
    Scanner(std::string_view text, uint32_t first_line) : text_(text), line_(first_line) {}
    uint32_t line();
    bool at_end();  // after spaces and comments
    char next() const { return text_[at_]; }
    bool take(char c);                   // if that is next
    std::string_view word();             // up to a space or one of ({[;,
    std::string_view statement();        // up to the semicolon, which is taken too
    std::string_view group(char close);  // up to `close`, which is taken too
    std::string_view label();            // "NAME:" taken and returned without the colon; empty where there is none
    void skip_line();
    size_t position() const { return at_; }
    void go_to(size_t position) { at_ = position; }
    std::string_view text() const { return text_; }

private:
    void skip_space();
    std::string_view text_;
    size_t at_ = 0, line_at_ = 0;
    uint32_t line_;
};

// ".shared .align 16 .b8 name[40]", also ".extern": adds it to `symbols`; `next` is where the next static one may go.
void declare_shared(std::string_view declaration, uint32_t line, Symbols& symbols, uint64_t& next);

// What lies between a kernel's braces, which begins at `line`. Its own shared variables go to `symbols`.
Body read_body(std::string_view text, uint32_t line, Symbols& symbols, uint64_t& shared_end);

}  // namespace virtual_gpu
