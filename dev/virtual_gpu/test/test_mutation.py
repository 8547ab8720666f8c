"""mutation.py runs for hours, so nobody runs it with every change. What it names must exist all the same."""

import os
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import mutation


class Names(unittest.TestCase):
    def test_every_specification_is_one_of_the_tests(self):
        tests = list(mutation.hopper_tests())
        files = ",".join(sorted({f"*{test.file}" for test in tests}))
        listed = subprocess.run([mutation.ROOT / "build/virtual/test_gpu", f"--source-file={files}",
                                 "--test-case=*specification*,*separate kernel*"], capture_output=True,
                                text=True, check=True, env=dict(os.environ, LLMC_SPECIFICATION="list"))
        names = set(listed.stdout.splitlines())
        self.assertGreater(len(names), 40)
        self.assertEqual([test.specification for test in tests if test.specification not in names], [])


if __name__ == "__main__":
    unittest.main()
