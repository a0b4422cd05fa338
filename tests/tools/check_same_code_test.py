#!/usr/bin/env python3
"""check_same_code.py sees every change of code, and none of a comment."""
import unittest

from check_same_code import cpp_tokens, first_difference, python_tree, script_lines, yaml_documents

CPP_SAME = [
    ('int a; // x "\nint b;', "int a;\n/* y */ int b;"),
    ("x; // it's\ny;", "x;y;"),
    ("a(1'000); // one's\nb", "a(1'000);\n\nb"),
    ("#define A 1 // x\nint b;", "#define A 1\nint\n  b;"),
    ("#define A 1 \\\n  + 2 // x\n", "#define A 1 + 2\n"),
    ('f("\\"", "// \\\\"); // a', 'f("\\"", "// \\\\");'),
]
CPP_OTHER = [
    ('f("// no");', 'f("// yes");'),
    ("#define A 1 // x\nint b;", "#define A 1 int b;"),
    ('u8R"(// a)"', 'u8R"(// b)"'),
    ('R"x(")" // a)x"', 'R"x(")" // b)x"'),
    ("a = b;", "a == b;"),
    ("c = '\"'; f(1); // \"", "c = '\"'; f(2); // \""),
    ("int a; // b\n", "int a; // b\nint c;"),
    ("a; /* b */ c;", "a; /* b c; */"),
]


class CheckSameCodeTest(unittest.TestCase):
    def test_cpp(self):
        for before, after in CPP_SAME:
            self.assertEqual(cpp_tokens(before), cpp_tokens(after))
        for before, after in CPP_OTHER:
            self.assertNotEqual(cpp_tokens(before), cpp_tokens(after))

    def test_python(self):
        before = 'def f():\n    """A."""\n    return "x"  # a'
        self.assertEqual(python_tree(before), python_tree('def f():\n    """B."""\n    return "x"'))
        self.assertNotEqual(python_tree(before), python_tree(before.replace('"x"', '"y"')))

    def test_scripts(self):
        self.assertEqual(script_lines('#!/bin/sh\na # b\n# c\nd "#x"'), script_lines('#!/bin/sh\na\n\n  d "#x"'))
        self.assertNotEqual(script_lines('a "#x"'), script_lines('a "#y"'))
        self.assertNotEqual(script_lines("#!/bin/sh"), script_lines("#!/bin/bash"))

    def test_yaml(self):
        self.assertEqual(yaml_documents("a: 1 # b\n---\nc: [2]"), yaml_documents("# d\na: 1\n---\nc:\n  - 2"))
        self.assertNotEqual(yaml_documents("a: 1"), yaml_documents("a: 2"))

    def test_the_first_difference_is_told(self):
        self.assertEqual(first_difference(["a", "b"], ["a"]), "'b' is None now")
        self.assertIsNone(first_difference(["a"], ["a"]))


if __name__ == "__main__":
    unittest.main()
