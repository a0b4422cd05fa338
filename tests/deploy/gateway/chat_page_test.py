#!/usr/bin/env python3
"""The gateway's page, as the program holds it. QUIRE_CHAT_PAGE names the program that prints it.

The browser test is chat_page_browser.py.
"""
import html.parser
import os
import re
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from fake_gateway import PAGE, policy_of  # noqa: E402

VOID = {"meta", "link", "input", "br"}
NOT_IN_PHRASING = {"div", "p", "h1", "h2", "ol", "li", "form", "section", "aside", "textarea", "button", "label"}
PHRASING = {"label": {"div", "p", "h1", "h2", "form", "section", "button", "label"},
            "button": NOT_IN_PHRASING | {"a", "input"}, "span": NOT_IN_PHRASING, "p": NOT_IN_PHRASING, "form": {"form"}}


class Outline(html.parser.HTMLParser):
    """Faults of nesting, ids, and the elements' attributes."""

    def __init__(self, page):
        super().__init__(convert_charrefs=True)
        self.open, self.faults, self.elements = [], [], []
        self.feed(page)
        self.close()
        self.faults += [f"<{tag}> is not closed" for tag in self.open]

    def handle_starttag(self, tag, attrs):
        self.faults += [f"line {self.getpos()[0]}: <{tag}> in <{each}>"
                        for each in self.open if tag in PHRASING.get(each, ())]
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.faults.append(f"line {self.getpos()[0]}: </{tag}> closes nothing")


class ChatPageTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        out = subprocess.run([os.environ["QUIRE_CHAT_PAGE"]], check=True, capture_output=True).stdout.decode()
        cls.policy, _, cls.page = out.partition("\n")
        cls.outline = Outline(cls.page)

    def test_the_program_holds_the_file(self):
        self.assertEqual(self.page, PAGE.read_text(encoding="utf-8"))

    def test_the_policy_admits_the_one_style_and_the_one_script(self):
        self.assertEqual(self.policy, policy_of(self.page))
        tags = [tag for tag, _ in self.outline.elements]
        self.assertEqual((tags.count("style"), tags.count("script")), (1, 1))

    def test_the_page_loads_nothing_and_never_parses_text_as_html(self):
        for forbidden in (r"https?://", r"\bsrc=", r"@import", r"url\(", r"innerHTML", r"outerHTML",
                          r"insertAdjacentHTML", r"document\.write", r"\beval\(", r"localStorage", r" style=", r" on\w+="):
            self.assertIsNone(re.search(forbidden, self.page), forbidden)
        for tag, attributes in self.outline.elements:
            href = attributes.get("href", "top")
            self.assertTrue(href == "top" or (tag == "link" and href.startswith("data:image/svg+xml,")), href)

    def test_elements_nest_and_ids_are_unique(self):
        self.assertEqual(self.outline.faults, [])
        ids = [attributes["id"] for _, attributes in self.outline.elements if "id" in attributes]
        self.assertEqual(sorted(ids), sorted(set(ids)))

    def test_every_id_that_is_named_exists(self):
        ids = {attributes.get("id") for _, attributes in self.outline.elements}
        named = set(re.findall(r'\$\("([\w-]+)"\)', self.page)) | set(re.findall(r'\bshow\("([\w-]+)"', self.page))
        for _, attributes in self.outline.elements:
            for name in ("for", "aria-controls", "aria-labelledby", "aria-describedby"):
                named |= set((attributes.get(name) or "").split())
        self.assertEqual(named - ids, set())

    def test_every_field_has_a_label(self):
        labels = {attributes.get("for") for tag, attributes in self.outline.elements if tag == "label"}
        for tag, attributes in self.outline.elements:
            if tag in ("input", "textarea") and attributes.get("type") != "checkbox":  # that one is inside its label
                self.assertIn(attributes["id"], labels)


if __name__ == "__main__":
    unittest.main()
