"""Rules of the house that a machine can check: includes, lengths of files, the places of files, and plain English."""

import os
import re
import subprocess
import unittest

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))

# A folder of llmc/ includes only itself and folders listed before it.
FOLDERS = ["base", "device", "kernels", "data", "comm", "shard", "fp8", "linear", "optim", "model", "checkpoint", "train",
           "log", "plan", "flags", "run", "commands"]

TOP_LEVEL = {"Makefile", "README.md", "LICENSE", "train_gpt.cu", "llmc", "data", "dev", "scripts", "test", ".ci", ".github",
             ".clang-format", ".devcontainer", ".dockerignore", ".gitignore"}

SOURCE = (".cpp", ".cu", ".cuh", ".h", ".py", ".sh")
LONGEST_FILE = 800  # lines
LONGEST_FUNCTION = 100  # lines between its braces
MOST_PARAMETERS = 10  # but for kernels and their launchers
MOST_HEADERS_OF_ONE_FILE = 10  # see headers_of_one_file(); lower it with each that joins its file
# What takes long to compile, and the headers of llmc/ that reach it through any number of includes: every file that
# includes one of these pays for it. Other headers declare what they only point at.
THREADS = ["llmc/checkpoint/saver.h", "llmc/comm/watchdog.h", "llmc/data/loader.h", "llmc/run/ranks.h"]
SLOW_HEADERS = {
    **dict.fromkeys(["nlohmann/json.hpp", "dnnl.hpp", "mpi.h", "fmt/format.h", "fmt/ranges.h", "regex",
                     "filesystem", "iostream", "fstream", "sstream", "random", "future", "llmc/train/trainer.h"], []),
    "chrono": ["llmc/base/clock.h"],
    "thread": THREADS,
    "condition_variable": THREADS[1:],
    "llmc/model/transformer.h": ["llmc/train/trainer.h"],
    "llmc/data/loader.h": [],
    "llmc/checkpoint/weight_source.h": ["llmc/checkpoint/hf_weights.h", "llmc/checkpoint/llmc_model.h"],
    "llmc/train/state.h": ["llmc/run/resume.h", "llmc/train/staging.h"],
    "llmc/comm/watchdog.h": ["llmc/run/ranks.h"],
    "llmc/flags/options.h": ["llmc/commands/model_command.h", "llmc/commands/planning.h", "llmc/flags/flags.h",
                             "llmc/flags/rows.h", "llmc/run/ranks.h"],
}
LARGEST_FILE = 256 << 10  # bytes
LARGEST_FIXTURE = 2 << 20  # reference values in test/fixtures/

# Places on somebody's machine. The brackets keep this line from finding itself.
MACHINE_PATH = re.compile(r"/(w[o]rk|f[a]rm|t[m]p|h[o]me|r[o]ot)/[A-Za-z._$]")


def project_files():
    """Paths relative to the root: what git has, and what it would take. Without a git checkout, the tests are skipped."""
    try:
        listing = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT,
                                 capture_output=True, check=True).stdout.decode()
    except (OSError, subprocess.CalledProcessError):
        raise unittest.SkipTest("not a git checkout")
    return sorted(path for path in set(listing.split("\0")) if path and os.path.isfile(os.path.join(ROOT, path)))


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return file.read()


def output_of(*command):
    """The output of a program, or "" if it does not exist."""
    try:
        return subprocess.run(command, capture_output=True, text=True).stdout
    except OSError:
        return ""


def includes_of(text):
    return re.findall(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', text, re.MULTILINE)


def forbidden_includes(path, text):
    """Includes that go against the order of the folders, or do not start at the root."""
    folder = path.split("/")[1]
    allowed = FOLDERS[:FOLDERS.index(folder) + 1]
    wrong = []
    for include in includes_of(text):
        parts = include.split("/")
        if parts[0] == "llmc":
            if parts[1] not in allowed:
                wrong.append(include)
        elif parts[0] in ("test", "dev", "data", "..", "."):
            wrong.append(include)
    return wrong


def headers_that_reach(target, headers):
    """Those of {path: text} that include `target`, themselves or through others of them."""
    users = {}
    for path, text in headers.items():
        for include in includes_of(text):
            users.setdefault(include, []).append(path)
    found, waiting = set(), [target]
    while waiting:
        new = set(users.get(waiting.pop(), [])) - found
        found |= new
        waiting += new
    return sorted(found)


def headers_of_one_file(sources):
    """{header: the only file in its folder that includes it, or None} for the headers of {path: text}. Tests and a header's
    own source do not count. A header that another folder includes is a public face of its folder, and is left out."""
    users = {}
    for path, text in sources.items():
        for include in includes_of(text):
            users.setdefault(include, set()).add(path)
    found = {}
    for header in sources:
        if header.endswith((".h", ".cuh")):
            stem = os.path.splitext(header)[0]
            others = sorted(users.get(header, set()) - {stem + ".cpp", stem + ".cu"})
            if not others or len(others) == 1 and os.path.dirname(others[0]) == os.path.dirname(header):
                found[header] = others[0] if others else None
    return found


def without_comments(text):
    """C++ with nothing between quotes, and no comments and preprocessor lines; as many lines as before."""
    def blank(found):
        return "\n" * found[0].count("\n") if found[0].lstrip()[0] in "/#" else '""'
    return re.sub(r"""//[^\n]*|/\*.*?\*/|^[ \t]*\#(?:[^\n]*\\\n)*[^\n]*|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])+'""", blank, text,
                  flags=re.DOTALL | re.MULTILINE)


def parameters_of(header):
    """(name, number of parameters) of what stands before a function's body."""
    for found in re.finditer(r"(\w+|operator\W+)\s*\(", header):
        if found[1] in ("__launch_bounds__", "requires", "decltype", "alignas", "__attribute__"):
            continue
        depth, commas, inside = 0, 0, ""
        for character in header[found.end():]:
            depth += (character in "([{<") - (character in ")]}>")
            if depth < 0:
                break
            commas += character == "," and depth == 0
            inside += character
        return found[1], commas + 1 if inside.strip() else 0
    return None


def functions_of(text):
    """(name, parameters, first line, lines of the body) of the functions of a C++ file; lambdas belong to theirs."""
    text = without_comments(text)
    blocks, header_begin = [], 0  # those open now: (where it begins, header of a function or "", whether code)
    for at, character in enumerate(text):
        if character == "{":
            header = text[header_begin:at].strip()
            in_code = any(code for _, _, code in blocks)
            scope = re.match(r"((inline )?namespace|extern|(template.*>\s*)?(class|struct|union|enum))\b[^()]*$", header,
                             re.DOTALL)
            code = in_code or not scope
            is_function = code and not in_code and "(" in header and not header.startswith(",") and header[-1] != "="
            blocks.append((at, header if is_function else "", code))
        elif character == "}":
            begin, header, _ = blocks.pop()
            if header and (found := parameters_of(header)):
                yield *found, text.count("\n", 0, begin) + 1, text.count("\n", begin, at)
        if character in ";{}":
            header_begin = at + 1


class House(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.files = project_files()
        cls.sources = [path for path in cls.files if path.endswith(SOURCE)]

    def test_files_were_found(self):
        self.assertIn("train_gpt.cu", self.sources)
        self.assertGreater(len(self.sources), 50)

    def test_top_level(self):
        self.assertEqual({path.split("/")[0] for path in self.files} - TOP_LEVEL, set())

    def test_folders_of_llmc(self):
        folders = {path.split("/")[1] for path in self.files if path.startswith("llmc/")}
        self.assertEqual(folders - set(FOLDERS), set())

    def test_includes_go_to_earlier_folders(self):
        for path in self.sources:
            if path.startswith("llmc/") and not path.endswith(".py"):
                self.assertEqual(forbidden_includes(path, read(path)), [], path)

    def test_the_order_of_includes_can_be_broken(self):
        text = '#include <vector>\n#include "llmc/flags/options.h"\n  # include "llmc/base/error.h"\n#include "../x.h"'
        self.assertEqual(forbidden_includes("llmc/data/shards.cpp", text), ["llmc/flags/options.h", "../x.h"])
        self.assertEqual(forbidden_includes("llmc/run/start.cpp", text), ["../x.h"])

    def test_the_host_device_is_included_by_its_own_files_alone(self):
        for path in self.sources:
            own = path.startswith("llmc/device/") or re.search(r"_host\.\w+$", path)
            if path.startswith("llmc/") and not own:
                inside = [i for i in includes_of(read(path)) if i.startswith("llmc/device/host/")]
                self.assertEqual(inside, [], path)

    def test_the_virtual_gpu_and_the_rest_include_nothing_of_each_other(self):
        for path in self.sources:
            if not path.endswith((".py", ".sh")):
                own = [i.startswith("dev/virtual_gpu/") for i in includes_of(read(path)) if re.match("(llmc|test|dev)/", i)]
                self.assertEqual(set(own) - {path.startswith("dev/virtual_gpu/")}, set(), path)

    def test_headers_are_included_once(self):
        for path in self.sources:
            if path.endswith((".h", ".cuh")):
                self.assertIn("#pragma once", read(path), path)

    def test_headers_of_one_file_belong_in_that_file(self):
        product = [path for path in self.sources if path == "train_gpt.cu" or
                   path.startswith(("llmc/", "test/kernels/specifications/"))]
        found = headers_of_one_file({path: read(path) for path in product if not path.endswith((".py", ".sh"))})
        found = {header: user for header, user in found.items() if header.startswith("llmc/")}
        self.assertLessEqual(len(found), MOST_HEADERS_OF_ONE_FILE, found)

    def test_headers_of_one_file_are_found(self):
        include = '#include "llmc/data/%s"\n'
        sources = {"llmc/data/a.h": "", "llmc/data/a.cpp": include % "a.h", "llmc/data/b.h": include % "a.h" + include % "c.h",
                   "llmc/data/c.h": "", "llmc/data/d.h": "", "llmc/run/e.cpp": include % "b.h" + include % "c.h"}
        self.assertEqual(headers_of_one_file(sources), {"llmc/data/a.h": "llmc/data/b.h", "llmc/data/d.h": None})

    def test_slow_headers_reach_few_headers(self):
        headers = {path: read(path) for path in self.sources if re.match(r"llmc/.*\.(h|cuh)$", path)}
        for slow, allowed in SLOW_HEADERS.items():
            self.assertEqual(headers_that_reach(slow, headers), allowed, f"{slow}: include it in the .cpp files that need it")

    def test_headers_that_reach_another_are_found(self):
        headers = {"llmc/data/a.h": "#include <regex>\n", "llmc/data/b.h": '#include "llmc/data/a.h"\n',
                   "llmc/run/c.h": '#include "llmc/data/b.h"\n#include <vector>\n', "llmc/run/d.h": "#include <vector>\n"}
        self.assertEqual(headers_that_reach("regex", headers), ["llmc/data/a.h", "llmc/data/b.h", "llmc/run/c.h"])
        self.assertEqual(headers_that_reach("llmc/data/b.h", headers), ["llmc/run/c.h"])

    def test_length_of_files(self):
        for path in self.sources:
            self.assertLessEqual(len(read(path).splitlines()), LONGEST_FILE, path)

    def test_length_of_functions(self):
        seen = 0
        for path in self.sources:
            if path != "train_gpt.cu" and not (path.startswith("llmc/") and path.endswith((".cpp", ".cu", ".cuh", ".h"))):
                continue
            for name, parameters, line, length in functions_of(read(path)):
                seen += 1
                self.assertLessEqual(length, LONGEST_FUNCTION, f"{path}:{line}: {name}")
                if not path.startswith("llmc/kernels/") and not (path.endswith(".cu") and path.startswith("llmc/")):
                    self.assertLessEqual(parameters, MOST_PARAMETERS, f"{path}:{line}: {name}")
        self.assertGreater(seen, 1000)

    def test_functions_are_counted(self):
        text = '''#define TWO(x) \\
    { x }
namespace a { /* } */
struct S : Base<int> {
    S(int a, std::map<int, int> b) : a_(a), b_{b} {}
    int none() const { return '}'; }
};
template <class F, int N>
static __global__ void __launch_bounds__(N)
    kernel(float (&x)[N], F f) {
    const auto inner = [&](int, int, int) {
        return "}";  // }
    };
}
const int table[] = {1, 2};
}  // namespace a
'''
        self.assertEqual(list(functions_of(text)), [("S", 2, 5, 0), ("none", 0, 6, 0), ("kernel", 2, 10, 4)])

    def test_format(self):
        """clang-format has the last word on layout, in the version whose taste the sources have."""
        if "version 14." not in output_of("clang-format", "--version"):
            self.skipTest("no clang-format 14")
        sources = [path for path in self.sources if path.endswith((".cpp", ".cu", ".cuh", ".h"))]
        wrong = subprocess.run(["clang-format", "--dry-run", "--ferror-limit=1", *sources], cwd=ROOT,
                               capture_output=True, text=True).stderr
        self.assertEqual(sorted(set(re.findall(r"^([^:\n]+):\d+:\d+: (?:warning|error)", wrong, re.MULTILINE))), [],
                         "clang-format -i mends them")

    def test_no_large_files(self):
        for path in self.files:
            most = LARGEST_FIXTURE if path.startswith("test/fixtures/") else LARGEST_FILE
            self.assertLessEqual(os.path.getsize(os.path.join(ROOT, path)), most, path)

    def test_no_paths_of_a_machine(self):
        for path in self.files:
            try:
                text = read(path)
            except UnicodeDecodeError:
                continue  # a fixture
            for number, line in enumerate(text.splitlines(), 1):
                self.assertIsNone(MACHINE_PATH.search(line), f"{path}:{number}: {line.strip()}")

    def test_marks_for_the_build_are_known(self):
        """A line "// build: ..." has marks that the Makefile or dev/build.mk explains, and each of those is in use."""
        marks = {mark for path in self.sources
                 for line in re.findall(r"^// build: (.*)$", read(path), re.MULTILINE) for mark in line.split(", ")}
        self.assertEqual(marks, {"per device", "optimized", "threads", "addresses", "gpu test", "fuzzed"})

    def test_every_kernel_has_a_specification_or_a_test(self):
        """A specification or a test in test/kernels/ includes each header that declares launchers."""
        tested = {include for path in self.sources if path.startswith("test/kernels/")
                  for include in includes_of(read(path))}
        for path in self.files:
            if re.fullmatch(r"llmc/kernels/\w+\.h", path) and path[:-2] + ".cu" in self.files:
                self.assertIn(path, tested)

    def test_specifications_are_checked_on_cards_and_in_unit_tests(self):
        declared = re.findall(r"void (add_\w+)\(Items& items(?:, const KernelUse& use)?\);", read("test/kernels/specifications/specifications.h"))
        checks = read("test/kernels/specifications/kernel_checks.cpp")
        tests = "".join(read(path) for path in self.files if re.match(r"test/(comm|kernels)/\w+\.", path))
        self.assertGreater(len(declared), 20)
        for name in declared:
            self.assertIn(f"check::{name}", tests if name.endswith("_tests") else checks)

    def test_scripts_are_executable(self):
        for path in self.files:
            with open(os.path.join(ROOT, path), "rb") as file:
                is_script = path.startswith((".ci/", "scripts/", "dev/")) and file.read(2) == b"#!"
            self.assertTrue(not is_script or os.access(os.path.join(ROOT, path), os.X_OK), path)

    def test_no_script_ends_because_head_closes_a_pipe(self):
        """With pipefail and set -e, `sort | head` ends a script once sort writes more than head reads."""
        for path in self.files:
            if path.endswith(".sh") and "pipefail" in read(path):
                self.assertNotRegex(read(path), r"\| *(head|grep -\w*q)\b", path)


def rows_of_flags(text):
    """(long name, struct, field) of each row of the table in llmc/flags/flags.cpp."""
    return re.findall(r"""\bflag\(\s*(?:'\w'|0),\s*"([a-z0-9-]+)",\s*"[^"]*",\s*&(\w+)::(\w+),""", text)


# Flags whose field has another name in its struct.
OTHER_FIELDS = {"config": "config_file", "model": "model_name", "max-steps": "steps",
                "schedule": "kind", "final-lr-fraction": "final_fraction", "optimizer": "kind", "master": "masters",
                "average": "average_decay", "zero": "stage", "shard-within": "within", "reduce": "wire",
                "fp8-amax-algo": "algorithm", "fp8-fast-accum": "fast_accumulation"}


def wrong_fields(rows):
    """Rows that set another field than that of their name, which in Fp8Config lacks the prefix."""
    def field_of(name, struct):
        prefix = "fp8-" if struct == "Fp8Config" else ""
        return OTHER_FIELDS.get(name, name.removeprefix(prefix).replace("-", "_"))
    return [(name, field) for name, struct, field in rows if field != field_of(name, struct)]


class Flags(unittest.TestCase):
    def test_a_row_sets_the_field_of_its_name(self):
        text = read("llmc/flags/flags.cpp")
        rows = rows_of_flags(text)
        self.assertEqual(len(rows), len(re.findall(r"\bflag\(\s*['0]", text)))
        self.assertGreater(len(rows), 60)
        self.assertEqual(wrong_fields(rows), [])

    def test_a_wrong_field_is_found(self):
        text = """flag(0, "beta1", "X", &OptimizerConfig::beta2, {.max = 1}, "help"),
                  once(flag(
                      'b', "batch", "N", &Options::batch, {}, "help")),
                  flag(0, "fp8-margin", "N", &Fp8Config::margin, {}, "help"),
                  flag(0, "fp8-history", "N", &Fp8Config::margin, {}, "help"),
                  flag(0, "config", "", &Options::config_file, {}, "help")"""
        self.assertEqual(len(rows_of_flags(text)), 5)
        self.assertEqual(wrong_fields(rows_of_flags(text)), [("beta1", "beta2"), ("fp8-history", "margin")])


def without_code(text):
    """A page without its blocks of code."""
    return re.sub(r"^    [^\n]*$|^ *```.*?^ *```$", "", text, flags=re.MULTILINE | re.DOTALL)


def anchors_of(text):
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)", without_code(text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def broken_links(path, text):
    """Relative links of a page that lead nowhere."""
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", without_code(text)):
        place, _, anchor = link.partition("#")
        target = os.path.normpath(os.path.join(os.path.dirname(path), place)) if place else path
        if not place.startswith("http") and not (os.path.exists(os.path.join(ROOT, target)) and
                                                 (not anchor or anchor in anchors_of(read(target)))):
            broken.append(link)
    return broken


def quoted_code(text):
    """(file, lines) of the blocks of code that begin with the name of the file they are from."""
    for block in re.findall(r"^ *```cpp\n(.*?)^ *```$", text, re.MULTILINE | re.DOTALL):
        first, *lines = [line.strip() for line in block.splitlines()]
        yield first.removeprefix("// "), lines


def named_flags(text):
    return set(re.findall(r"(?<![\w-])--([a-z][a-z0-9-]+)", text))


class Pages(unittest.TestCase):
    """README, guides and notes: what they name exists."""

    @classmethod
    def setUpClass(cls):
        cls.files = project_files()
        cls.pages = {path: read(path) for path in cls.files if path.endswith(".md")}

    def test_length(self):
        self.assertLessEqual(len(self.pages["README.md"].splitlines()), 130)
        for path, text in self.pages.items():
            if path.startswith(("dev/guide/", "dev/notes/")) and path != "dev/guide/flags.md":
                self.assertLessEqual(len(text.splitlines()), 200, path)

    def test_links(self):
        for path, text in self.pages.items():
            self.assertEqual(broken_links(path, text), [], path)

    def test_broken_links_are_found(self):
        text = "[a](nowhere.md) [b](README.md) [c](README.md#no-such-heading) [d](https://a.org)\n    [code](no.md)\n"
        self.assertEqual(broken_links("README.md", text), ["nowhere.md", "README.md#no-such-heading"])

    def test_flags(self):
        """Those of the program are in dev/guide/flags.md; others belong to this project's scripts, or to other programs."""
        known = named_flags(self.pages["dev/guide/flags.md"]) | {"help-all", "help-markdown"}
        for path in self.files:
            if path.startswith(("scripts/", "data/", "dev/")) and path.endswith((".py", ".sh", ".sbatch")):
                known |= named_flags(read(path).replace('"', " ").replace("'", " "))
        other_programs = {"bind-to", "oversubscribe", "map-by", "mca", "mpi", "signal", "gpus", "ipc", "no-python",
                          "nproc-per-node", "rdzv-id", "model", "tasks", "trace", "test-case", "first-last-layers-bf16"}
        for path, text in self.pages.items():
            if path == "README.md" or path.startswith(("dev/guide/", "scripts/", "data/")):
                self.assertEqual(named_flags(text) - known - other_programs, set(), path)
        self.assertNotIn("no-such-flag", known)

    def test_files_and_folders(self):
        for path, text in self.pages.items():
            if path == "README.md" or path.startswith(("dev/README", "dev/guide/", "dev/notes/", "llmc/")):
                for name in re.findall(r"`((?:llmc|data|dev|scripts|test|\.ci)/[\w./-]*)`", text):
                    if "NAME" not in name:
                        self.assertTrue(os.path.exists(os.path.join(ROOT, name)), f"{path}: {name}")

    def test_quoted_code(self):
        """Code in notes is code of the project as it is."""
        quotes = [(path, *quote) for path in self.pages for quote in quoted_code(self.pages[path])]
        self.assertGreater(len(quotes), 3)
        for path, source, lines in quotes:
            code = {line.strip() for line in read(source).splitlines()}
            self.assertEqual([line for line in lines if line not in code], [], f"{path} quotes {source}")

    def test_make_targets(self):
        makefile = read("Makefile") + read("dev/build.mk") + read("dev/virtual_gpu/build.mk")
        for path in ("README.md", "dev/README.md"):
            for target in re.findall(r"make ([a-z][a-z_-]+)", self.pages[path]):
                self.assertRegex(makefile, rf"(?m)^{re.escape(target)}( \w+)*:", target)


WITHOUT_COMMAND = {"README.md", "flags.md", "robustness.md"}  # guides that answer no "how do I" with one command

# Turns of phrase that a reader has to decode, and what to write instead.
DIALECT = {
    r"aloud": "with a message",
    r"anew": "again",
    r"in place of": "instead of",
    r"(?:is|are|was|were) to be had": "is available",
    r"g[ia]ves? way": "falls back",
    r"so (?:much|many) of": "the number",
    r"passed over": "skipped",
    r"whoever": "the reader, the program",
    r"for ever": "forever",
    r"beside": "next to",
    r"and leave(?=[.;,]|$)": "and exit",
}


def dialect_in(text):
    """(line, words, what to write) for each turn of phrase in `text`."""
    return [(text.count("\n", 0, found.start()) + 1, found[0], plain) for words, plain in DIALECT.items()
            for found in re.finditer(rf"\b(?:{words})(?![\w-])", text)]


def printed_texts(text):
    """The string literals of a C++ file that have a space, split ones joined."""
    text = re.sub(r"//[^\n]*", "", text)
    for found in re.finditer(r'"(?:\\.|[^"\\\n])*"(?:\s*"(?:\\.|[^"\\\n])*")*', text):
        literal = "".join(re.findall(r'"((?:\\.|[^"\\\n])*)"', found[0]))
        if " " in literal:
            yield literal


def first_command(page):
    """The line of the first block of code, counted from 1; none: the page has no code."""
    for number, line in enumerate(page.splitlines(), 1):
        if line.startswith(("    ", "```")):
            return number
    return None


class Words(unittest.TestCase):
    """Help, messages and guides are in plain English, and guides begin with what to type."""

    def guides(self):
        folder = os.path.join("dev", "guide")
        return {name: read(os.path.join(folder, name)) for name in sorted(os.listdir(os.path.join(ROOT, folder)))
                if name.endswith(".md")}

    def test_guides_have_no_dialect(self):
        for name, page in {**self.guides(), "the README": read("README.md")}.items():
            self.assertEqual(dialect_in(page), [], name)

    def test_printed_texts_have_no_dialect(self):
        seen = 0
        for path in project_files():
            if path == "train_gpt.cu" or re.fullmatch(r"llmc/.*\.(cpp|cu|h|cuh)", path):
                for literal in printed_texts(read(path)):
                    seen += 1
                    self.assertEqual(dialect_in(literal), [], path)
        self.assertGreater(seen, 1000)

    def test_dialect_is_found(self):
        text = "It fails aloud.\nA run that gives way, anew, to whoever is beside it; is to be had"
        self.assertEqual(sorted((line, words) for line, words, _ in dialect_in(text)),
                         [(1, "aloud"), (2, "anew"), (2, "beside"), (2, "gives way"), (2, "is to be had"), (2, "whoever")])
        self.assertEqual(dialect_in("besides, an allowed renewal of a place"), [])
        self.assertEqual(list(printed_texts('f("one", "passed "\n "over: %s"); // "no text"')), ["passed over: %s"])

    def test_guides_have_no_dates_of_experiments(self):
        """They are for notes. A time of day follows the date of a record that a program prints."""
        for name, page in self.guides().items():
            self.assertEqual(re.findall(r"\b20\d\d-\d\d-\d\d\b(?!T)", page), [], name)

    def test_commands_of_data_prepare_have_one_spelling(self):
        """data/prepare/README.md says why. It is the one that users paste; scripts may call the Python of .venv."""
        for path in project_files():
            if path.endswith(".md"):
                for line in read(path).splitlines():
                    if re.search(r"-m (?:data\.)?prepare\b", line):
                        self.assertIn("python3 -m data.prepare", line, path)

    def test_guides_begin_with_a_title_and_a_command(self):
        for name, page in self.guides().items():
            self.assertRegex(page, r"\A# \S", name)
            if name not in WITHOUT_COMMAND:
                self.assertLessEqual(first_command(page) or 99, 15, name)

    def test_each_question_has_a_command_and_a_link(self):
        questions = re.split(r"^### ", read("dev/guide/README.md"), flags=re.MULTILINE)[1:]
        self.assertGreater(len(questions), 20)
        for question in questions:
            self.assertRegex(question, r"(?s)\A[^\n]+\n\n    \S.*\]\(", question.split("\n")[0])

    def test_the_first_command_is_found(self):
        self.assertEqual(first_command("# T\n\n    make\n"), 3)
        self.assertEqual(first_command("# T\n```\nmake\n"), 2)
        self.assertIsNone(first_command("# T\nwords\n"))


# Fragments that comments must not contain, besides DIALECT, each with the form to write.
FRAGMENTS = {
    r"\A(?:Of|Beside|In place of) [a-z`]": "a subject and a verb",
    r"\A(?:What|Whether|Where|Who|Whom|Whose) [^?]*\Z": "the noun, or a sentence",
    r"\bso (?:many|much)\b(?! that)": "the number or the name",
    r"""(?:\bnullptr|"")(?:, |: )(?:none|nothing|no |it )""": "X if ...",
    r"\bthe one that\b|\bwhat (?:it|they) (?:is|are)\b": "the noun",
}


def comments_of(path, text):
    """(line, text) of each comment of a C++, Python, shell or make file. Comments on consecutive lines are one."""
    if path.endswith((".cpp", ".cu", ".cuh", ".h")):
        pattern = r"""R"\(.*?\)"|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])+'|//[^\n]*(?:\n[ \t]*//[^\n]*)*"""
        mark = "//"
    else:
        pattern = r"""\"{3}.*?\"{3}|"(?:\\.|[^"\\\n])*"|'[^'\n]*'|(?<![^\s])\#[^\n]*(?:\n[ \t]*\#[^\n]*)*"""
        mark = "#"
    for found in re.finditer(pattern, text, re.DOTALL):
        lines = found[0].strip('"').split("\n")
        if found[0].startswith(mark):
            lines = [line.strip().lstrip(mark).strip() for line in lines]
        elif not found[0].startswith('"' * 3):
            continue
        yield text.count("\n", 0, found.start()) + 1, "\n".join(line.strip() for line in lines)


def fragments_in(text):
    """Turns of phrase in one comment that a reader has to decode, each as (words, what to write)."""
    return [(words, plain) for _, words, plain in dialect_in(text)] + [
        (found[0].split("\n")[0], plain) for words, plain in FRAGMENTS.items() for found in re.finditer(words, text)]


def opens_with_a_comment(text):
    """True if the first line of a source, after a shebang, is a docstring or a comment other than a mark for the build."""
    return re.match(r'(#![^\n]*\n)?(//(?! build:)|# |""")', text) is not None


class Comments(unittest.TestCase):
    """Comments are plain sentences, and every source opens with one that says what it is for."""

    def test_comments_are_plain_english(self):
        found, seen = [], 0
        for path in project_files():
            if path.endswith((*SOURCE, "Makefile", ".mk")) and path != "test/end_to_end/test_house.py":
                for line, comment in comments_of(path, read(path)):
                    seen += 1
                    found += [(f"{path}:{line}", *fragment) for fragment in fragments_in(comment)]
        self.assertGreater(seen, 5000)
        self.assertEqual(found, [])

    def test_every_source_opens_with_a_comment(self):
        without = [path for path in project_files() if path.endswith(SOURCE) and not opens_with_a_comment(read(path))]
        self.assertEqual(without, [])

    def test_fragments_are_found(self):
        def found(text):
            return [words for _, comment in comments_of("a.h", text) for words, _ in fragments_in(comment)]
        self.assertEqual(found("// Of a step that is verified."), ["Of a"])
        self.assertEqual(found("int x;  // What is\n        // kept of it."), ["What is"])
        self.assertEqual(found("T* p;  // nullptr: it has none"), ["nullptr: it "])
        self.assertEqual(found("// The first so many decay, aloud,\n// and whoever reads it is lost."),
                         ["aloud", "whoever", "so many"])
        self.assertEqual(found('char c[] = "// Of a", d = \'"\';  // Says what is wrong.\n// Offers a way.'), [])

    def test_comments_of_each_language(self):
        self.assertEqual(list(comments_of("a.cpp", 'f("//");  // one\n// two\n  // three\n\nint i;')),
                         [(1, "one\ntwo\nthree")])
        self.assertEqual(list(comments_of("a.sh", 'echo "# no" $#  # one\n# two\n')), [(1, "one\ntwo")])
        self.assertEqual(list(comments_of("a.py", '"""One."""\nx = "#"  # two\n')), [(1, "One."), (2, "two")])

    def test_an_opening_is_found(self):
        self.assertTrue(opens_with_a_comment("#!/bin/bash\n# Runs it."))
        self.assertTrue(opens_with_a_comment('"""Runs it."""'))
        self.assertFalse(opens_with_a_comment('#include "a.h"\n// Runs it.'))
        self.assertFalse(opens_with_a_comment("// build: per device\n// Runs it."))
        self.assertFalse(opens_with_a_comment("// build: optimized\n// Runs it."))


if __name__ == "__main__":
    unittest.main()
