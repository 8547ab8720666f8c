// The scanner and parser of PTX text (text.h).
#include "dev/virtual_gpu/ptx/text.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <cstring>

#include "dev/virtual_gpu/fault.h"

namespace virtual_gpu {
namespace {

bool is_space(char c) { return std::isspace(static_cast<unsigned char>(c)) || c == '\0'; }
bool is_digit(char c) { return std::isdigit(static_cast<unsigned char>(c)); }
bool is_name(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '$' || c == '_' || c == '%'; }

// Splits at commas outside of brackets.
std::vector<std::string_view> split_operands(std::string_view s) {
    std::vector<std::string_view> parts;
    int depth = 0;
    size_t begin = 0;
    for (size_t i = 0; i < s.size(); i++) {
        if (s[i] == '{' || s[i] == '[') depth++;
        if (s[i] == '}' || s[i] == ']') depth--;
        if (s[i] == ',' && depth == 0) {
            parts.push_back(trim(s.substr(begin, i - begin)));
            begin = i + 1;
        }
    }
    if (!trim(s.substr(begin)).empty()) parts.push_back(trim(s.substr(begin)));
    return parts;
}

}  // namespace

uint64_t number(std::string_view decimal) { return std::strtoull(std::string(decimal).c_str(), nullptr, 10); }

void bad_ptx(uint32_t line, const std::string& why) { fault("PTX line %u: %s", line, why.c_str()); }

std::vector<std::string_view> split(std::string_view text, char by) {
    std::vector<std::string_view> parts;
    for (size_t begin = 0; begin <= text.size();) {
        const size_t end = std::min(text.find(by, begin), text.size());
        parts.push_back(text.substr(begin, end - begin));
        begin = end + 1;
    }
    return parts;
}

std::string_view trim(std::string_view text) {
    while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
    while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
    return text;
}

std::string_view line_of(std::string_view text, uint32_t number) {
    const std::vector<std::string_view> lines = split(text, '\n');
    return number && number <= lines.size() ? trim(lines[number - 1]) : "?";
}

int bytes_of_type(std::string_view type) {
    if (type.ends_with("128")) return 16;
    if (type.ends_with("64")) return 8;
    if (type.ends_with("32") || type.ends_with("x2")) return 4;
    if (type.ends_with("16")) return 2;
    return 1;
}

// ---- Scanner -------------------------------------------------------------------------------------------------------

uint32_t Scanner::line() {
    for (; line_at_ < at_; line_at_++) line_ += text_[line_at_] == '\n';
    return line_;
}

void Scanner::skip_space() {
    while (at_ < text_.size()) {
        if (is_space(text_[at_])) {
            at_++;
        } else if (text_.substr(at_, 2) == "//") {
            skip_line();
        } else if (text_.substr(at_, 2) == "/*") {
            const size_t end = text_.find("*/", at_);
            at_ = end == std::string_view::npos ? text_.size() : end + 2;
        } else {
            return;
        }
    }
}
void Scanner::skip_line() { at_ = std::min(text_.find('\n', at_), text_.size()); }

bool Scanner::at_end() {
    skip_space();
    return at_ >= text_.size();
}

bool Scanner::take(char c) {
    if (at_end() || text_[at_] != c) return false;
    at_++;
    return true;
}

std::string_view Scanner::word() {
    skip_space();
    const size_t begin = at_;
    while (at_ < text_.size() && !is_space(text_[at_]) && !std::strchr("({[;,", text_[at_])) at_++;
    if (at_ == begin && at_ < text_.size()) at_++;
    return text_.substr(begin, at_ - begin);
}

std::string_view Scanner::group(char close) {
    const size_t end = text_.find(close, at_);
    if (end == std::string_view::npos) bad_ptx(line(), std::string("no '") + close + "' follows");
    const std::string_view s = text_.substr(at_, end - at_);
    at_ = end + 1;
    return trim(s);
}
std::string_view Scanner::statement() { return group(';'); }

std::string_view Scanner::label() {
    size_t end = at_;
    while (end < text_.size() && is_name(text_[end])) end++;
    if (end == at_ || end >= text_.size() || text_[end] != ':') return {};
    const std::string_view name = text_.substr(at_, end - at_);
    at_ = end + 1;
    return name;
}

// ---- declarations --------------------------------------------------------------------------------------------------

void declare_shared(std::string_view declaration, uint32_t line, Symbols& symbols, uint64_t& next) {
    uint64_t align = 1, element = 1, bytes = 0;
    bool is_extern = false;
    std::string name;
    Scanner words(declaration, line);
    while (!words.at_end()) {
        const std::string_view word = words.word();
        if (word == ".extern") {
            is_extern = true;
        } else if (word == ".align") {
            align = number(words.word());
        } else if (word == ".shared") {
            continue;
        } else if (word[0] == '.') {
            element = static_cast<uint64_t>(bytes_of_type(word));
        } else {
            name = std::string(word);
            bytes = element * (words.take('[') ? number(words.group(']')) : 1);
        }
    }
    if (name.empty()) bad_ptx(line, "declaration: " + std::string(declaration));
    if (is_extern) {
        symbols[name] = {Symbol::dynamic_shared, align};
        return;
    }
    next = (next + align - 1) / align * align;
    symbols[name] = {Symbol::shared, next};
    next += bytes;
}

// ---- bodies --------------------------------------------------------------------------------------------------------

namespace {

class BodyReader {
public:
    BodyReader(std::string_view text, uint32_t line) : scanner_(text, line) {}

    Body read(Symbols& symbols, uint64_t& shared_end) {
        open_scope();
        while (!scanner_.at_end()) {
            if (scanner_.take('{')) {
                open_scope();
            } else if (scanner_.take('}')) {
                if (scopes_.size() == 1) bad_ptx(scanner_.line(), "a brace too many");
                scopes_.pop_back();
                open_scopes_.pop_back();
            } else if (scanner_.take(';')) {
                continue;
            } else if (const std::string_view label = scanner_.label(); !label.empty()) {
                body_.labels[in_scope(label, open_scopes_.back())] = body_.code.size();
            } else if (scanner_.text().substr(scanner_.position(), 5) == ".loc ") {
                scanner_.skip_line();
            } else {
                const uint32_t line = scanner_.line();
                const std::string_view s = scanner_.statement();
                if (s.starts_with(".reg")) {
                    declare_registers(trim(s.substr(4)));
                } else if (s.starts_with(".shared")) {
                    declare_shared(s, line, symbols, shared_end);
                } else if (s.starts_with('.')) {
                    if (!s.starts_with(".pragma")) bad_ptx(line, "directive: " + std::string(s));
                } else {
                    instruction(s, line);
                }
            }
        }
        find_labels();
        return std::move(body_);
    }

private:
    void open_scope() {
        scopes_.emplace_back();
        open_scopes_.push_back(scope_count_++);
    }
    static std::string in_scope(std::string_view label, int scope) {
        return std::string(label) + (scope ? "@" + std::to_string(scope) : "");
    }
    // A branch goes to the label in the innermost enclosing scope that has it, even if it comes later in the text.
    void find_labels() {
        for (const Branch& b : branches_)
            for (size_t n = b.scopes.size(); n-- > 0;)
                if (std::string label = in_scope(body_.code[b.at].label, b.scopes[n]); body_.labels.contains(label)) {
                    body_.code[b.at].label = std::move(label);
                    break;
                }
    }

    // "%r<9>" declares %r0 to %r8.
    struct Family {
        std::string prefix;
        int first, count;
    };

    void declare_registers(std::string_view s) {  // ".b32 %r<9>" or ".b16 low, high"
        const size_t space = s.find_first_of(" \t");
        const std::string_view type = s.substr(0, space);
        const char width = type == ".pred" ? 'p' : bytes_of_type(type) == 8 ? 'l' : 'w';
        for (std::string_view name : split(s.substr(space), ',')) {
            name = trim(name);
            const int first = static_cast<int>(body_.registers.size());
            const size_t angle = name.find('<');
            size_t count = 1;
            if (angle == std::string_view::npos) {
                scopes_.back()[std::string(name)] = first;
            } else {
                count = number(name.substr(angle + 1));
                families_.push_back({std::string(name.substr(0, angle)), first, static_cast<int>(count)});
            }
            body_.registers.insert(body_.registers.end(), count, Register{width});
        }
    }

    int find_register(std::string_view name) const {
        for (size_t i = scopes_.size(); i-- > 0;) {
            const auto found = scopes_[i].find(name);
            if (found != scopes_[i].end()) return found->second;
        }
        size_t digits = name.size();
        while (digits > 0 && is_digit(name[digits - 1])) digits--;
        if (digits == name.size()) return -1;
        const int index = static_cast<int>(number(name.substr(digits)));
        for (const Family& f : families_)
            if (f.prefix == name.substr(0, digits) && index < f.count) return f.first + index;
        return -1;
    }

    // Text inside the brackets: "%rd1+16", "%rd1, {%r1, %r2}".
    Operand memory(std::string_view s, uint32_t line) const {
        Operand o;
        o.kind = Operand::memory;
        for (std::string_view part : split_operands(s)) o.parts.push_back(operand(part, line));
        if (o.parts.empty()) bad_ptx(line, "empty address");
        const std::string_view address = split_operands(s)[0];
        if (const size_t plus = address.find('+'); plus != std::string_view::npos) {
            o.offset = std::strtoll(std::string(address.substr(plus + 1)).c_str(), nullptr, 0);
            o.parts[0] = operand(address.substr(0, plus), line);
        }
        return o;
    }

    Operand operand(std::string_view s, uint32_t line) const {
        s = trim(s);
        if (s.empty()) bad_ptx(line, "empty operand");
        if (s[0] == '[') return memory(s.substr(1, s.size() - 2), line);
        Operand o;
        if (s == "_") return o;
        if (s[0] == '{') {
            o.kind = Operand::vector;
            for (std::string_view part : split_operands(s.substr(1, s.size() - 2)))
                o.parts.push_back(operand(part, line));
            return o;
        }
        if (s[0] == '!') {
            o.negated = true;
            s = trim(s.substr(1));
        }
        o.text = std::string(s);
        o.id = find_register(s);
        o.kind = is_digit(s[0]) || s[0] == '-' ? Operand::number : o.id >= 0 ? Operand::reg : Operand::name;
        return o;
    }

    void instruction(std::string_view s, uint32_t line) {
        Instruction i;
        i.line = line;
        if (s[0] == '@') {
            i.negate = s[1] == '!';
            const size_t begin = i.negate ? 2 : 1, end = s.find_first_of(" \t");
            i.predicate = find_register(s.substr(begin, end - begin));
            if (i.predicate < 0) bad_ptx(line, "predicate: " + std::string(s));
            s = trim(s.substr(end));
        }
        const size_t space = std::min(s.find_first_of(" \t\n"), s.size());
        i.opcode = std::string(s.substr(0, space));
        const std::string_view rest = trim(s.substr(space));
        if (i.opcode == "bra" || i.opcode == "bra.uni") {
            i.label = std::string(rest);
            branches_.push_back({body_.code.size(), open_scopes_});
        } else {
            for (std::string_view part : split_operands(rest)) {
                const size_t bar = part[0] == '{' || part[0] == '[' ? std::string_view::npos : part.find('|');
                i.operands.push_back(operand(part.substr(0, bar), line));
                if (bar != std::string_view::npos) i.operands.push_back(operand(part.substr(bar + 1), line));
            }
        }
        body_.code.push_back(std::move(i));
    }

    Scanner scanner_;
    Body body_;
    std::vector<std::map<std::string, int, std::less<>>> scopes_;
    std::vector<Family> families_;
    struct Branch {
        size_t at;
        std::vector<int> scopes;  // enclosing scopes, the outermost first
    };
    std::vector<Branch> branches_;
    std::vector<int> open_scopes_;
    int scope_count_ = 0;
};

}  // namespace

Body read_body(std::string_view text, uint32_t line, Symbols& symbols, uint64_t& shared_end) {
    return BodyReader(text, line).read(symbols, shared_end);
}

}  // namespace virtual_gpu
