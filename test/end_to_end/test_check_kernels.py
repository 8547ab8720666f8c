"""dev/check_kernels.py and dev/check_wgmma.py read reports of ptxas and SASS correctly."""

import os
import unittest

from test_scripts import InDirectory, load


def report(name, registers, spilled=0, stack=0, arch="sm_90a"):
    return f"""ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '{name}' for '{arch}'
ptxas info    : Function properties for {name}
    {stack} bytes stack frame, {spilled} bytes spill stores, {spilled} bytes spill loads
ptxas info    : Used {registers} registers, used 1 barriers, {stack} bytes cumulative stack size
"""


class KernelReport(InDirectory):
    ADD = "_ZN4llmc10add_kernelIfEEvPT_i"  # void llmc::add_kernel<float>(float*, int)
    SUM = "_ZN4llmc10sum_kernelEPf"

    def check(self, text, table):
        kernels = self.module.parse_report(text)
        return self.module.check(kernels, self.module.demangle([k.mangled for k in kernels]), table)

    def setUp(self):
        super().setUp()
        self.module = load("check_kernels", "dev")

    def test_names(self):
        name = self.module.base_name
        self.assertEqual(name("void llmc::(anonymous namespace)::add_kernel<float, (int)4>(float*, int)"), "add_kernel")
        self.assertEqual(name("llmc::sum_kernel(float*)"), "sum_kernel")
        self.assertEqual(self.module.short_signature("void llmc::add_kernel<float, (bool)1>(float*)"),
                         "add_kernel<float, (bool)1>")

    def test_good_kernels(self):
        self.assertEqual(self.check(report(self.ADD, 32) + report(self.SUM, 40), {"add_kernel": 32}), [])

    def test_spills(self):
        problems = self.check(report(self.ADD, 255, spilled=16) + report(self.SUM, 40), {})
        self.assertEqual(problems, ["add_kernel<float> (sm_90a) spills 32 bytes of registers"])

    def test_serialized_products(self):
        said = "ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized due to " \
            f"... in the function '{self.ADD}'"
        fence = f"ptxas info    : (C7519) warpgroup.arrive is injected in around line 5 by compiler in function '{self.SUM}'"
        self.assertEqual(self.module.serialized(said + "\n" + fence), [(self.ADD, said)])

    def test_several_architectures_in_one_report(self):
        text = report(self.ADD, 30, arch="sm_80") + report(self.ADD, 34, arch="sm_90a", spilled=4) + \
            report(self.ADD, 30, arch="sm_89")
        self.assertEqual([(k.arch, k.registers) for k in self.module.parse_report(text)],
                         [("sm_80", 30), ("sm_90a", 34), ("sm_89", 30)])
        self.assertEqual(self.check(text, {"add_kernel": 32}),
                         ["add_kernel<float> (sm_90a) spills 8 bytes of registers",
                          "add_kernel<float> (sm_90a) uses 34 registers; dev/kernel_resources.txt allows 32"])

    def test_local_memory(self):
        self.assertIn("64 bytes in local memory", self.check(report(self.ADD, 40, stack=64), {})[0])

    def test_too_many_registers(self):
        self.assertIn("uses 33 registers; dev/kernel_resources.txt allows 32",
                      self.check(report(self.ADD, 33), {"add_kernel": 32})[0])

    def test_multiprocessors_of_1536_threads_take_40_registers_a_thread(self):
        self.assertEqual(self.check(report(self.ADD, 40, arch="sm_89"), {"add_kernel": 32}), [])
        self.assertIn("uses 41 registers; dev/kernel_resources.txt allows 40",
                      self.check(report(self.ADD, 41, arch="sm_89"), {"add_kernel": 32})[0])
        self.assertIn("uses 49 registers", self.check(report(self.ADD, 49, arch="sm_89"), {"add_kernel": 48})[0])
        self.assertIn("uses 40 registers", self.check(report(self.ADD, 40, arch="sm_80"), {"add_kernel": 32})[0])

    def test_architectures_that_no_kernel_is_tuned_for(self):
        for arch in ("sm_100", "sm_120"):
            text = report(self.ADD, 203, arch=arch, spilled=100, stack=100)
            self.assertEqual(self.check(text, {"add_kernel": 32}), [])
            self.assertIn("spills 400 bytes", self.check(report(self.ADD, 128, arch=arch, spilled=200), {})[0])
            self.assertIn("64 bytes in local memory", self.check(report(self.ADD, 40, arch=arch, stack=64), {})[0])

    def test_a_kernel_that_is_gone(self):
        self.assertIn("add_kernel is in", self.check(report(self.SUM, 33), {"add_kernel": 32})[0])

    def test_loads_in_flight(self):
        """Two loads before the first use, or each after the use of the one before."""
        def most(*lines, arch="sm_90a"):
            text = f"arch = {arch}\n\t\tFunction : {self.ADD}\n" + "".join(
                f"        /*{16 * i:04x}*/                   {line} ;      /* 0x0000 */\n" for i, line in enumerate(lines))
            return {name: self.module.loads_in_flight(code) for name, code in self.module.parse_sass(text).items()}
        loads = ["LDG.E.128 R4, desc[UR6][R20.64]", "@P1 LDG.E.128 R8, desc[UR6][R22.64]"]
        use, again, end = "FADD R1, R2, R5", "@!P0 BRA 0x0", "EXIT"
        self.assertEqual(most(*loads, use, again, end), {self.ADD: 2})
        self.assertEqual(most(loads[0], use, loads[1], again, end), {self.ADD: 1})
        self.assertEqual(most(loads[0], "LDG.E.128 R8, desc[UR6][R4.64]", use, again, end), {self.ADD: 1})
        self.assertEqual(most(*loads, use, "BRA 0x40", end), {self.ADD: 0})  # no loop
        self.assertEqual(most(*loads, use, again, end, arch="sm_80"), {})
        sass, names = {self.ADD: [(0, loads[0]), (16, use), (32, "BRA 0x0")]}, self.module.demangle([self.ADD])
        self.assertEqual(self.module.check_loads(sass, names, {"add_kernel": 1}), [])
        self.assertEqual(self.module.check_loads(sass, names, {"add_kernel": 2}),
                         ["add_kernel<float> has 1 loads in flight; dev/kernel_resources.txt requires 2"])

    def test_tables(self):
        table = self.write("table", "# comment\nadd_kernel 32\nsum_kernel 40 2  # and loads\n")
        self.assertEqual(self.module.read_table(table), ({"add_kernel": 32, "sum_kernel": 40}, {"sum_kernel": 2}))
        with self.assertRaises(SystemExit):
            self.module.read_table(self.write("table", "add_kernel many\n"))

    def test_whole_builds(self):
        self.write("build/llmc/kernels/a.cu.o.ptxas", report(self.ADD, 32))
        table = self.write("table", "# comment\nadd_kernel 32\n")
        self.module.TABLE = table
        build = os.path.join(self.directory, "build")
        self.assertEqual(self.module.main([build]), 0)
        self.assertEqual(self.module.main([build, os.path.join(self.directory, "missing")]), 1)
        self.write("build/llmc/linear/b.cu.o.ptxas", report(self.SUM, 32, spilled=4))
        self.assertEqual(self.module.main([build]), 1)


class RegistersOfWgmma(unittest.TestCase):
    """A loop that multiplies with R4 to R7 as the left operand, waits, and reads the sums."""

    LOOP = ["WARPGROUP.ARRIVE", ".L_x_1", "HGMMA.64x8x16.F32.BF16 R24, R4, gdesc[UR4], R24, gsb0", "FADD R9, R8, R8",
            "WARPGROUP.DEPBAR.LE gsb0, 0x0", "FADD R8, R27, R8", "LDS.128 R4, [R9]", "@P0 BRA `(.L_x_1)", "EXIT"]

    def check(self, lines):
        text = ['\t.section\t.text.a_kernel,"ax"'] + [
            line + ":" if line.startswith(".L") else f"        /*{16 * n:04x}*/    {line} ;" for n, line in enumerate(lines)]
        module = load("check_wgmma", "dev")
        (_, code, labels), = module.functions(text)
        problems, products = module.conflicts(code, labels)
        self.assertEqual(products, 1)
        return [f"{instruction}: {problem.split(' of ')[0]}" for (_, instruction), problem in problems.items()]

    def test_in_flight(self):
        left, sums = "writes the left operand", "touches the accumulators"
        for instruction, problem in (
                ("FADD R9, R8, R8", None), ("LDS.128 R0, [R8]", None), ("IMAD.WIDE R2, R3, 0x4, R8", None),
                ("ISETP.NE.AND P0, PT, R4, RZ, PT", None), ("MOV R7, R8", left), ("LDS.64 R6, [R8]", left),
                ("FADD R8, R27, R8", sums), ("STS.64 [R8], R26", sums), ("MOV R24, R8", sums)):
            lines = self.LOOP[:3] + [instruction] + self.LOOP[4:]
            self.assertEqual(self.check(lines), [f"{instruction}: {problem}"] if problem else [])

    def test_a_wait_for_too_little(self):
        lines = self.LOOP[:4] + ["WARPGROUP.DEPBAR.LE gsb0, 0x1"] + self.LOOP[5:]
        self.assertEqual(self.check(lines), ["FADD R8, R27, R8: touches the accumulators",
                                             "LDS.128 R4, [R9]: writes the left operand"])


if __name__ == "__main__":
    unittest.main()
