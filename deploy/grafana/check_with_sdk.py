#!/usr/bin/env python3
"""Reads the boards with Grafana's own types, writes them again, and prints the fields that Grafana does not know.

    python3 -m venv /tmp/sdk && /tmp/sdk/bin/pip install grafana-foundation-sdk
    /tmp/sdk/bin/python deploy/grafana/check_with_sdk.py
"""
import json
import pathlib
import sys

from grafana_foundation_sdk.cog import encoder, plugins
from grafana_foundation_sdk.models.dashboard import Dashboard


def lost(ours, theirs, where=""):
    """Returns the values of `ours` that `theirs` lacks or has differently. `theirs` may have more."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        return [fault for key, value in ours.items()
                for fault in lost(value, theirs.get(key), f"{where}.{key}")]
    if isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        return [fault for i, value in enumerate(ours)
                for fault in lost(value, theirs[i], f"{where}[{i}]")]
    return [] if ours == theirs else [f"{where}: {ours!r}, not {theirs!r}"]


def main():
    plugins.register_default_plugins()
    faults = []
    for path in sorted(pathlib.Path(__file__).resolve().parent.glob("*.json")):
        ours = json.loads(path.read_text(encoding="utf-8"))
        again = encoder.JSONEncoder(sort_keys=True).encode(Dashboard.from_json(ours))
        found = lost(ours, json.loads(again))
        print(f"{path.name}: {len(ours['panels'])} panels, {len(found)} faults")
        faults += found
    print("\n".join(faults))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
