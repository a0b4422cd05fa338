#!/usr/bin/env python3
"""clang-tidy, as run_clang_tidy.py runs it, finds each forgotten lock of testdata/forgotten_locks.cc and
nothing else there.
"""
import pathlib
import re
import unittest

import run_clang_tidy

SOURCE = pathlib.Path(__file__).parent / "testdata/forgotten_locks.cc"


class RunClangTidyTest(unittest.TestCase):
    def test_forgotten_locks_are_errors(self):
        lines = SOURCE.read_text().splitlines()
        wrong = [number for number, line in enumerate(lines, 1) if line.endswith("// wrong")]
        text = run_clang_tidy.check(None, ["-x", "c++", "-std=c++20", f"-I{run_clang_tidy.ROOT}"],
                                    [str(SOURCE)])
        found = re.findall(re.escape(SOURCE.name) + r":(\d+):\d+: error: .*\[(.*)\]", text)
        self.assertEqual([int(line) for line, _ in found], wrong, text)
        for _, rule in found:
            self.assertTrue(rule.startswith("clang-diagnostic-thread-safety"), rule)


if __name__ == "__main__":
    unittest.main()
