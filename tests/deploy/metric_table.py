"""The names of common/metrics/metric_names.h, and those that an expression uses."""
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]
BOARDS = ROOT / "deploy/grafana"
RULES = ROOT / "deploy/prometheus/quire.rules.yml"


def metric_names():
    header = (ROOT / "common/metrics/metric_names.h").read_text(encoding="utf-8")
    names = re.findall(r'constexpr MetricInfo \w+\{\s*"([^"]+)"', header)
    assert len(names) > 40 and len(names) == header.count("constexpr MetricInfo "), names
    return set(names)


def names_in(expression):
    """Returns the metric names of an expression as a scrape spells them, a histogram's with its ending.
    Names of recorded metrics have colons."""
    return set(re.findall(r"\b(?:quire[_:]|process_|vllm:)[\w:]+", expression))


def family(name, known):
    """Returns the metric's name in the table, or None."""
    base = re.sub(r"_(bucket|sum|count)$", "", name)
    return name if name in known else base if base in known else None
