#!/usr/bin/python3
"""Writes rules.yaml: the rules of deploy/prometheus as an object of the Prometheus Operator."""
import pathlib

HERE = pathlib.Path(__file__).resolve().parent
RULES = HERE.parents[2] / "deploy/prometheus/quire.rules.yml"
HEAD = """\
# Made by make_rules.py from deploy/prometheus/quire.rules.yml: change that, and run it again.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: quire
spec:
"""


def rules_text():
    lines = RULES.read_text(encoding="utf-8").splitlines()
    body = lines[lines.index("groups:"):]
    return HEAD + "".join(f"  {line}".rstrip() + "\n" for line in body)


if __name__ == "__main__":
    (HERE / "rules.yaml").write_text(rules_text(), encoding="utf-8")
