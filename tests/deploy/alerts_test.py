#!/usr/bin/python3
"""deploy/prometheus: promtool takes the configuration and the rules, and each alert fires when it should."""
import re
import shutil
import subprocess
import unittest

from metric_table import ROOT, RULES, family, metric_names, names_in

TESTS = ROOT / "tests/deploy/alerts_test.yml"
README = ROOT / "deploy/prometheus/README.md"


def alerts():
    """The text of each alert, by name."""
    parts = re.split(r"(?m)^ +- alert: (\w+)\n", RULES.read_text(encoding="utf-8"))
    return dict(zip(parts[1::2], parts[2::2]))


class RulesTest(unittest.TestCase):

    def promtool(self, *arguments):
        done = subprocess.run(["promtool", *arguments], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    @unittest.skipUnless(shutil.which("promtool"), "promtool is not installed")
    def test_promtool_takes_configuration_and_rules(self):
        self.promtool("check", "config", str(ROOT / "deploy/prometheus/prometheus.yml"))
        self.promtool("check", "rules", "--lint-fatal", str(RULES))

    @unittest.skipUnless(shutil.which("promtool"), "promtool is not installed")
    def test_alerts_fire_when_they_should_and_not_just_below(self):
        self.promtool("test", "rules", str(TESTS))

    def test_every_alert_is_tested_and_says_what_to_do(self):
        self.assertGreater(len(alerts()), 15)
        tests = TESTS.read_text(encoding="utf-8")
        runbook = README.read_text(encoding="utf-8")
        for name, text in alerts().items():
            with self.subTest(name):
                severity = re.search(r"severity: (critical|warning)\n", text).group(1)
                self.assertRegex(text, r"summary: \S")
                self.assertRegex(text, r"description: >-\n +\S")
                self.assertRegex(tests, f'labels: ALERTS{{alertname="{name}",alertstate="firing",'
                                 f'.*severity="{severity}"')
                self.assertRegex(runbook, rf"(?m)^\| `{name}` \| {severity} \| \S")
        self.assertEqual(set(re.findall(r"(?m)^\| `(Quire\w+)`", runbook)), set(alerts()))

    def test_rules_name_only_what_there_is(self):
        text = re.sub(r"(?m)^\s*#.*", "", RULES.read_text(encoding="utf-8"))
        recorded = set(re.findall(r"record: (\S+)", text))
        known = metric_names()
        for name in names_in(text):
            self.assertTrue(name in recorded or family(name, known), name)


if __name__ == "__main__":
    unittest.main(verbosity=2)
