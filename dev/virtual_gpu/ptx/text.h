// Parses PTX text: modules into kernels, and a kernel's body into instructions with their operands. decode.cpp gives
// them meaning. The grammar is that of the PTX ISA, chapters 4 and 5, to the extent that nvcc uses it.
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
    uint64_t address;  // for dynamic_shared its alignment; its address is known only after all static variables
};
using Symbols = std::map<std::string, Symbol, std::less<>>;

struct Register {
    char width;          // p for a predicate, w for up to 32 bits, l for 64 bits
    uint32_t place = 0;  // assigned by graph.cpp
};

struct Operand {
    enum Kind { none, reg, number, vector, memory, name } kind = none;
    int id = -1;                 // of a register: its index in Body::registers
    std::string text;            // of a number or a name (a symbol or a special register)
    std::vector<Operand> parts;  // of a vector: its elements; of memory: the address, and coordinates of a tensor copy
    int64_t offset = 0;          // of memory: added to the address
    bool negated = false;        // for a predicate with ! before it
};

struct Instruction {
    std::string opcode;
    std::vector<Operand> operands;  // destinations first; a second destination (d|p) is a separate operand
    int predicate = -1;             // a register, or -1
    bool negate = false;
    uint32_t line = 0;  // in the module's text
    std::string label;  // of a branch
};

struct Body {
    std::vector<Register> registers;
    std::vector<Instruction> code;
    // Index of the following instruction; labels of inner scopes have the scope's number appended: "LOOP@3".
    std::map<std::string, size_t, std::less<>> labels;
};

// Throws Fault with the line.
[[noreturn]] void bad_ptx(uint32_t line, const std::string& why);

std::vector<std::string_view> split(std::string_view text, char by);
std::string_view trim(std::string_view text);
// Counted from 1, trimmed; "?" if there is no such line.
std::string_view line_of(std::string_view text, uint32_t number);
int bytes_of_type(std::string_view type);  // "u16", ".f64", "b128"

// One pass through text that skips spaces and comments and counts lines.
class Scanner {
public:
    Scanner(std::string_view text, uint32_t first_line) : text_(text), line_(first_line) {}
    uint32_t line();
    bool at_end();  // ignores spaces and comments
    char next() const { return text_[at_]; }
    bool take(char c);                   // takes c if it is next
    std::string_view word();             // up to a space or one of ({[;,
    std::string_view statement();        // up to the semicolon, which is taken too
    std::string_view group(char close);  // up to `close`, which is taken too
    std::string_view label();            // takes "NAME:" and returns the name; "" if there is none
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

uint64_t number(std::string_view decimal);

// Parses ".shared .align 16 .b8 name[40]", also with ".extern", and adds it to `symbols`. `next` is the place for the
// next static variable.
void declare_shared(std::string_view declaration, uint32_t line, Symbols& symbols, uint64_t& next);

// Parses the text between a kernel's braces, which begins at `line`. Adds its own shared variables to `symbols`.
Body read_body(std::string_view text, uint32_t line, Symbols& symbols, uint64_t& shared_end);

}  // namespace virtual_gpu
