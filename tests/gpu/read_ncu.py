#!/usr/bin/env python3
"""Reads the counters of ncu --csv --page raw, and appends a line of JSON for each kernel."""
import argparse
import csv
import json
import pathlib
import sys

# A dozen of the counters. A version of ncu that has no such counter leaves it out.
COUNTERS = {
    "time": "gpu__time_duration.sum",
    "cycles": "sm__cycles_elapsed.max",
    "registers a thread": "launch__registers_per_thread",
    "CTAs an SM, limit by shared memory": "launch__occupancy_limit_shared_mem",
    "warps active": "sm__warps_active.avg.pct_of_peak_sustained_active",
    "instructions a cycle and scheduler": "smsp__issue_active.avg.per_cycle_active",
    "SM throughput": "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "DRAM throughput": "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
    "DRAM bytes a second": "dram__bytes_read.sum.per_second",
    "L2 hit rate": "lts__t_sector_hit_rate.pct",
    "stall, long scoreboard": "smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio",
    "stall, short scoreboard": "smsp__average_warps_issue_stalled_short_scoreboard_per_issue_active.ratio",
    "stall, barrier": "smsp__average_warps_issue_stalled_barrier_per_issue_active.ratio",
    "stall, wait": "smsp__average_warps_issue_stalled_wait_per_issue_active.ratio",
    "stall, math pipe": "smsp__average_warps_issue_stalled_math_pipe_throttle_per_issue_active.ratio",
}


def read_kernels(text):
    """Yields name and counters of each profiled kernel: a row of names, a row of units, then the kernels."""
    lines = text.splitlines()
    head = next((i for i, line in enumerate(lines) if line.startswith('"ID",')), None)
    if head is None:
        return
    rows = [row for row in csv.reader(lines[head:]) if row]
    names, units = rows[0], rows[1]
    for row in rows[2:]:
        if len(row) != len(names):  # what the program printed
            continue
        values = dict(zip(names, zip(row, units)))
        counters = {}
        for ours, theirs in COUNTERS.items():
            if theirs in values and values[theirs][0]:
                value, unit = values[theirs]
                counters[ours] = f"{value} {unit}".strip()
        yield values["Kernel Name"][0].split("(")[0], counters


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--group", required=True)
    parser.add_argument("--case", required=True)
    parser.add_argument("--json", type=pathlib.Path, required=True, help="appended to")
    parser.add_argument("csv", type=pathlib.Path)
    arguments = parser.parse_args()
    kernels = list(read_kernels(arguments.csv.read_text(encoding="utf-8", errors="replace")))
    with arguments.json.open("a", encoding="utf-8") as out:
        for name, counters in kernels:
            out.write(json.dumps({"group": arguments.group, "case": arguments.case, "kernel": name,
                                  "counters": counters}) + "\n")
    return 0 if kernels else 1


if __name__ == "__main__":
    sys.exit(main())
