#!/usr/bin/python3
"""deploy/grafana: the boards are what the script makes, whole, and name only metrics that there are."""
import itertools
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

from metric_table import BOARDS, family, metric_names, names_in


def boards():
    return {path.name: json.loads(path.read_text(encoding="utf-8")) for path in BOARDS.glob("*.json")}


def panels(board):
    return [panel for panel in board["panels"] if panel["type"] != "row"]


def expressions():
    return [(f"{name}: {panel['title']}", target["expr"]) for name, board in boards().items()
            for panel in panels(board) for target in panel["targets"]]


class BoardsTest(unittest.TestCase):

    def test_they_are_what_the_script_makes(self):
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([sys.executable, "-B", BOARDS / "make_boards.py", folder], check=True)
            made = {path.name: path.read_text(encoding="utf-8")
                    for path in pathlib.Path(folder).iterdir()}
        self.assertEqual(made, {path.name: path.read_text(encoding="utf-8")
                                for path in BOARDS.glob("*.json")})
        self.assertEqual(len(made), 4)

    def test_no_two_panels_overlap_and_none_leaves_the_grid(self):
        for name, board in boards().items():
            taken = {}
            for panel in board["panels"]:
                at = panel["gridPos"]
                self.assertGreater(at["w"] * at["h"], 0)
                self.assertLessEqual(at["x"] + at["w"], 24)
                for cell in itertools.product(range(at["x"], at["x"] + at["w"]),
                                              range(at["y"], at["y"] + at["h"])):
                    self.assertNotIn(cell, taken, f"{name}: {panel['title']}, {taken.get(cell)}")
                    taken[cell] = panel["title"]

    def test_every_panel_has_title_unit_description_and_a_datasource_to_choose(self):
        for name, board in boards().items():
            titles = [panel["title"] for panel in panels(board)]
            self.assertEqual(len(set(titles)), len(titles), name)
            self.assertEqual(len({panel["id"] for panel in board["panels"]}), len(board["panels"]))
            for panel in panels(board):
                with self.subTest(f"{name}: {panel['title']}"):
                    self.assertTrue(panel["title"])
                    self.assertGreater(len(panel["description"]), 10)
                    self.assertTrue(panel["fieldConfig"]["defaults"]["unit"])
                    self.assertTrue(panel["targets"])
                    for part in (panel, *panel["targets"]):
                        self.assertEqual(part["datasource"]["uid"], "${datasource}")
                    self.assertEqual(len({t["refId"] for t in panel["targets"]}), len(panel["targets"]))

    def test_boards_fit_any_server(self):
        uids = [board["uid"] for board in boards().values()]
        self.assertEqual(len(set(uids)), len(uids))
        for board in boards().values():
            self.assertNotIn("id", board)
            self.assertEqual([v["name"] for v in board["templating"]["list"]],
                             ["datasource", "instance"])
        for where, expression in expressions():
            with self.subTest(where):
                num_filters = expression.count('instance=~"$instance"')
                num_names = len(re.findall(r"\b(?:quire|process)_\w+", expression))
                self.assertEqual(num_filters, num_names, expression)

    def test_where_nothing_happened_a_quantile_is_dropped_instead_of_nan(self):
        quantiles = [(where, text) for where, text in expressions() if "histogram_quantile" in text]
        self.assertGreater(len(quantiles), 30)
        for where, text in quantiles:
            self.assertRegex(text, r"^histogram_quantile\(.*\) >= 0$", where)

    @unittest.skipUnless(shutil.which("promtool"), "promtool is not installed")
    def test_promtool_takes_every_expression(self):
        rules = [{"record": f"panel:{i}", "expr": expression.replace("$__rate_interval", "1m")}
                 for i, (_, expression) in enumerate(expressions())]
        with tempfile.NamedTemporaryFile("w", suffix=".yml") as file:
            json.dump({"groups": [{"name": "panels", "rules": rules}]}, file)
            file.flush()
            done = subprocess.run(["promtool", "check", "rules", file.name], capture_output=True,
                                  text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn(f"{len(rules)} rules found", done.stdout)

    def test_they_name_only_metrics_that_there_are_and_show_all_of_ours(self):
        known = metric_names()
        shown = set()
        for where, expression in expressions():
            for name in names_in(expression):
                self.assertTrue(family(name, known), f"{where}: {name}")
                shown.add(family(name, known))
        self.assertEqual({name for name in known if ":" not in name} - shown, set())


if __name__ == "__main__":
    unittest.main(verbosity=2)
