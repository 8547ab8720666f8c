// Reads PTX modules: headers of kernels at once, bodies when they first run.
#include <cxxabi.h>

#include <cstdlib>
#include <cstring>

#include "dev/virtual_gpu/fault.h"
#include "dev/virtual_gpu/ptx/kernel.h"
#include "dev/virtual_gpu/ptx/machine.h"
#include "dev/virtual_gpu/ptx/source.h"
#include "dev/virtual_gpu/ptx/text.h"

namespace virtual_gpu {

Kernel::Kernel() = default;
Kernel::~Kernel() = default;

namespace {

std::string demangled(const std::string& name) {
    int status = 0;
    char* const readable = abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status);
    const std::string result = status == 0 ? readable : name;
    std::free(readable);
    return result;
}

// Reads ".param .u64 .ptr .global .align 16 name" or ".param .align 8 .b8 name[24]".
void read_parameter(std::string_view text, uint32_t line, Kernel& kernel, Symbols& symbols) {
    uint32_t align = 0, element = 1, count = 1;
    std::string name;
    bool pointer = false;
    Scanner words(text, line);
    while (!words.at_end()) {
        const std::string_view word = words.word();
        if (word == ".param") continue;
        if (word == ".ptr") {
            pointer = true;
        } else if (word == ".align") {
            const uint32_t value = static_cast<uint32_t>(number(words.word()));
            if (!pointer) align = value;  // otherwise it is the alignment of the pointed-to data
        } else if (word == ".global" || word == ".shared" || word == ".const" || word == ".local") {
            continue;
        } else if (word[0] == '.') {
            element = static_cast<uint32_t>(bytes_of_type(word));
        } else {
            name = std::string(word);
            if (words.take('[')) count = number(words.group(']'));
        }
    }
    if (name.empty()) bad_ptx(line, "parameter: " + std::string(text));
    if (align == 0) align = element;
    const uint32_t offset = (kernel.parameter_bytes + align - 1) / align * align;
    symbols[name] = {Symbol::parameter, offset};
    kernel.parameters.push_back({name, offset, element * count});
    kernel.parameter_bytes = offset + element * count;
}

// Reads the directives between ")" and "{": ".maxntid 256, 1, 1", ".minnctapersm 2", ...
void read_directives(Scanner& scanner, Kernel& kernel) {
    while (!scanner.take('{')) {
        if (scanner.at_end()) bad_ptx(scanner.line(), "the kernel has no body");
        const std::string_view word = scanner.word();
        if (word == ".maxntid") {
            kernel.max_threads = number(scanner.word());
            while (scanner.take(',')) kernel.max_threads *= number(scanner.word());
        } else if (word == ".minnctapersm" || word == ".maxnreg") {
            scanner.word();
        } else {
            bad_ptx(scanner.line(), "directive: " + std::string(word));
        }
    }
}

// Takes the text up to the brace that closes the body.
std::string_view take_body(Scanner& scanner) {
    const std::string_view text = scanner.text();
    const size_t begin = scanner.position();
    int depth = 1;
    for (size_t at = text.find_first_of("{}", begin); at != std::string_view::npos;
         at = text.find_first_of("{}", at + 1)) {
        depth += text[at] == '{' ? 1 : -1;
        if (depth > 0) continue;
        scanner.go_to(at + 1);
        return text.substr(begin, at - begin);
    }
    bad_ptx(scanner.line(), "end of text in a kernel");
}

std::unique_ptr<Kernel> read_kernel(Scanner& scanner, const Symbols& module_symbols, uint64_t shared_end) {
    auto kernel = std::make_unique<Kernel>();
    auto source = std::make_unique<Source>();
    source->symbols = module_symbols;
    kernel->name = std::string(scanner.word());
    kernel->readable = demangled(kernel->name);
    if (scanner.take('(')) {
        const uint32_t line = scanner.line();
        for (std::string_view p : split(scanner.group(')'), ','))
            if (!trim(p).empty()) read_parameter(p, line, *kernel, source->symbols);
    }
    read_directives(scanner, *kernel);
    source->line = scanner.line();
    source->body = take_body(scanner);
    // Shared variables; only their total size matters here.
    Symbols names;
    uint64_t end = shared_end;
    constexpr std::string_view kDeclaration = ".shared .";  // in an opcode no space follows
    for (size_t at = 0; (at = source->body.find(kDeclaration, at)) != std::string_view::npos; at++)
        declare_shared(source->body.substr(at, source->body.find(';', at) - at), source->line, names, end);
    kernel->shared_bytes = static_cast<uint32_t>(end - kSharedBase);
    source->shared_begin = shared_end;
    source->text = scanner.text();
    kernel->source = std::move(source);
    return kernel;
}

}  // namespace

std::vector<std::unique_ptr<Kernel>> read_module(std::string_view text) {
    std::vector<std::unique_ptr<Kernel>> kernels;
    Symbols symbols;
    uint64_t shared_end = kSharedBase;
    Scanner scanner(text, 1);
    while (!scanner.at_end()) {
        const size_t begin = scanner.position();
        const std::string_view word = scanner.word();
        if (word == ".version" || word == ".target" || word == ".address_size" || word == ".file") {
            scanner.skip_line();
        } else if (word == ".visible" || word == ".weak") {
            continue;
        } else if (word == ".entry") {
            kernels.push_back(read_kernel(scanner, symbols, shared_end));
        } else if (word == ".extern" || word == ".shared") {
            scanner.go_to(begin);
            declare_shared(scanner.statement(), scanner.line(), symbols, shared_end);
        } else {
            bad_ptx(scanner.line(), "not known in a module: " + std::string(word));
        }
    }
    return kernels;
}

}  // namespace virtual_gpu
