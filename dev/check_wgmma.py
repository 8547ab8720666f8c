#!/usr/bin/env python3
"""Checks in SASS that nothing touches the registers of a wgmma product while it runs.

wgmma runs asynchronously: until a wait (WARPGROUP.DEPBAR), the product reads the registers of its left operand and
writes those of its accumulators. PTX names neither, so the virtual GPU cannot see a mistake of ptxas there. This
follows every path through a kernel with the products in flight, and reports instructions that write a left operand or
touch an accumulator too early.

    nvcc -std=c++20 -I. -DLLMC_CUDA=1 -DFMT_USE_CONSTEXPR=1 --expt-relaxed-constexpr -arch=sm_90a -cubin \\
        -o out/forward.cubin llmc/kernels/hopper/attention_forward.cu
    nvdisasm -c out/forward.cubin > out/forward.sass          # CUDA's, or the one in Triton's Python package
    dev/check_wgmma.py out/forward.sass

Exits with code 1 if it found something, and 2 if a file has no wgmma.
"""
import re
import sys

# Instructions without a destination register. All others write their first register operand.
NO_RESULT = re.compile(r"(ST|RED|BAR|BSSY|BSYNC|NOP|WARPSYNC|SYNCS|UTMA|FENCE|MEMBAR|ERRBAR|CCTL|WARPGROUP|NANOSLEEP|"
                       r"YIELD|BREAK|CALL|USETMAXREG|BMOV|UBLK|R2UR|R2P|[FIDH]?SETP|HSETP2|PLOP3|VOTEU|U[A-Z0-9]+\b)")
GMMA = re.compile(r"[HQ]GMMA\.64x(\d+)x\d+\.F32\S* R(\d+), (?:R(\d+)|gdesc)")
REGISTER = re.compile(r"\bR(\d+)(\.64)?")


def functions(lines):
    """Yields (name, [(address, instruction)], {label: index})."""
    name, code, labels = None, [], {}
    for line in lines:
        if found := re.match(r"\s*\.section\s+\.text\.([^,\s]+)", line):
            if code:
                yield name, code, labels
            name, code, labels = found[1], [], {}
        elif found := re.match(r"(\.L_\w+):", line):
            labels[found[1]] = len(code)
        elif found := re.match(r"\s*/\*([0-9a-f]{4,})\*/\s+(.*?)\s*;", line):
            code.append((found[1], found[2]))
    if code:
        yield name, code, labels


def registers(text):
    found = set()
    for number, wide in REGISTER.findall(text):
        found |= {int(number), int(number) + bool(wide)}
    return found


def written_and_read(instruction):
    """The registers that an ordinary instruction writes and reads."""
    operation, _, operands = instruction.partition(" ")
    result = None if NO_RESULT.match(operation) else re.match(r"(?:U?P[T\d], )*R(\d+)\b", operands)
    if not result:
        return set(), registers(operands)
    shape = re.search(r"\.(64|128)\b|\.M88\.(\d)", operation)
    if "HMMA" in operation:
        width = 4
    elif shape:
        width = int(shape[2]) if shape[2] else int(shape[1]) // 32
    else:
        width = 2 if ".WIDE" in operation or operation.startswith("D") else 1
    first = int(result[1])
    return set(range(first, first + width)), registers(operands[result.end():])


class Product:
    """The registers of one wgmma instruction, and whether it ends a group that a wait can wait for."""

    def __init__(self, instruction):
        columns, result, left = GMMA.match(instruction).groups()
        self.accumulators = set(range(int(result), int(result) + int(columns) // 2))
        self.left = set(range(int(left), int(left) + 4)) if left else set()
        self.ends_group = "gsb0" in instruction


def conflicts(code, labels):
    """Returns {(address, instruction): problem}. Paths are followed once for each set of products in flight."""
    plain = [re.sub(r"^@!?U?P\w+\s+", "", instruction) for _, instruction in code]
    products = {i: Product(text) for i, text in enumerate(plain) if GMMA.match(text)}
    if unknown := [text for i, text in enumerate(plain) if "GMMA" in text and i not in products]:
        raise SystemExit(f"unknown form of wgmma: {unknown[0]}")
    touched = [written_and_read(text) for text in plain]
    problems, seen, paths = {}, set(), [(0, (), frozenset())]
    while paths:
        at, groups, group = paths.pop()  # complete groups in flight, oldest first; the open group
        while at < len(code) and (at, groups, group) not in seen:
            seen.add((at, groups, group))
            text, conditional = plain[at], code[at][1].startswith("@")
            # Products of one group add to the same accumulators in order.
            written, read = (products[at].accumulators, products[at].left) if at in products else touched[at]
            for product in (products[i] for some in (*groups, group) for i in some):
                if written & product.left:
                    problems[code[at]] = "writes the left operand of a product in flight"
                elif read & product.accumulators or (at not in products and written & product.accumulators):
                    problems[code[at]] = "touches the accumulators of a product in flight"
            if at in products:
                group |= {at}
                if products[at].ends_group:
                    groups, group = groups + (group,), frozenset()
            elif text.startswith("WARPGROUP.DEPBAR"):
                left = int(re.search(r"gsb0, (0x[0-9a-f]+)", text)[1], 16)
                groups = groups[-left:] if left else ()
            elif text.startswith("BRA") and (label := re.search(r"`\((\.L_\w+)\)", text)):
                if conditional or re.match(r"BRA\S* !?U?P\d", text) or "DIV" in text:
                    paths.append((labels[label[1]], groups, group))
                else:
                    at = labels[label[1]]
                    continue
            elif text.startswith(("EXIT", "RET")):
                if not conditional:
                    break
            at += 1
    return problems, len(products)


def main(paths):
    status = 0
    for path in paths:
        with open(path, encoding="utf-8") as file:
            found = [(name, *conflicts(code, labels)) for name, code, labels in functions(file)]
        kernels = [(name, problems) for name, problems, products in found if products]
        if not kernels:
            print(f"{path}: no kernel has wgmma")
            status = 2
        else:
            print(f"{path}: {len(kernels)} kernels with wgmma, {sum(bool(p) for _, p in kernels)} with problems")
        for name, problems in kernels:
            for (address, instruction), problem in problems.items():
                print(f"  {name} at {address}: {instruction} {problem}")
                status = status or 1
    return status


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1:]))
