#!/usr/bin/env python3
"""Puts what the phases of run.sh left behind into one results.json and one results.md."""
import argparse
import json
import pathlib
import sys

import targets

SERVED_PHASES = ("served", "large", "company", "transformers")


def read_lines(path):
    """Objects of a file of JSON lines; a line that was cut off is left out."""
    objects = []
    if path.is_file():
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                objects.append(json.loads(line))
            except ValueError:
                pass
    return objects


def read_object(path):
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def read_probe(path):
    if not path.is_file():
        return {}
    pairs = (line.partition("=") for line in path.read_text(encoding="utf-8").splitlines())
    return {key: value for key, separator, value in pairs if separator}


def read_tests(folder):
    """Returns, for each program, the number of tests and failures, and the names of failed tests."""
    tests = []
    for path in sorted(folder.glob("*.json")):
        result = read_object(path)
        if result is None:
            tests.append({"program": path.stem, "note": "left no result"})
            continue
        failed = [f"{case.get('classname', suite['name'])}.{case['name']}"
                  for suite in result["testsuites"] for case in suite["testsuite"]
                  if case.get("failures")]
        tests.append({"program": path.stem, "tests": result["tests"],
                      "failures": result["failures"], "failed": failed[:20]})
    return tests


def read_clocks(path):
    """Least and greatest of each column while everything ran."""
    names = ("sm_mhz", "memory_mhz", "temperature_c", "power_w")
    rows = []
    if path.is_file():
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                rows.append([float(word) for word in line.split(",")])
            except ValueError:
                pass
    columns = list(zip(*(row for row in rows if len(row) == len(names))))
    return {name: {"min": min(column), "max": max(column)}
            for name, column in zip(names, columns)}


def read_phases(work):
    phases = read_lines(work / "phases.jsonl")
    for phase in phases:
        reason = work / f"note.{phase['phase']}"
        if reason.is_file():
            phase["note"] = reason.read_text(encoding="utf-8").strip()
    return phases


def peers_among(figures):
    """Returns the figures of peers that gpu_bench measured in turn with our kernels, as lines of peers. Each is
    compared with our fastest kernel of the case."""
    peers = []
    for figure in figures:
        if "peer" in figure and "us" in figure:
            own = [other["us"] for other in figures if "us" in other and "peer" not in other and
                   "CTAs" not in other["case"] and
                   (other["group"], other.get("of")) == (figure["group"], figure["of"])]
            if own:
                peers.append({**figure, "our_us": min(own), "ratio": figure["us"] / min(own)})
    return peers


def collect(work):
    figures = read_lines(work / "figures.jsonl")
    results = {"machine": read_probe(work / "probe.txt"),
               "clocks_while_running": read_clocks(work / "clocks.csv"),
               "phases": read_phases(work),
               "tests": read_tests(work / "gtest"),
               "sanitizers": read_lines(work / "sanitizers.jsonl"),
               "figures": [figure for figure in figures if "peer" not in figure],
               "peers": read_lines(work / "peers.jsonl") + peers_among(figures),
               "profiles": read_lines(work / "profiles.jsonl"),
               **{name: read_object(work / f"{name}.json") for name in SERVED_PHASES}}
    return {**results, "targets": targets.judge(results)}


# ---- The table ----------------------------------------------------------------------------------

def cell(value, digits=2):
    if value is None:
        return ""
    return f"{value:.{digits}f}" if isinstance(value, float) else str(value)


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return lines + ["| " + " | ".join(row) + " |" for row in rows]


def machine_lines(results):
    machine = results["machine"]
    lines = [f"- {key}: {value}" for key, value in machine.items()]
    for name, range_ in results["clocks_while_running"].items():
        lines.append(f"- {name} while running: {range_['min']:g} to {range_['max']:g}")
    return lines


def peer_cell(peer, figure):
    error = f", error {peer['error']:.1e}" if "error" in peer else ""
    return f"{peer['peer']} {peer['us']:.1f}, {peer['us'] / figure['us']:.2f} x{error}"


def clock_cell(figure):
    """The SM clock, and FLOP or else bytes of an SM in a cycle."""
    if "sm_mhz" not in figure:
        return ""
    per_cycle = next((f", {figure[key]:.1f} {unit}" for key, unit in
                      (("flop_per_sm_cycle", "FLOP"), ("bytes_per_sm_cycle", "B")) if key in figure), "")
    return f"{figure['sm_mhz']:.0f}{per_cycle}"


def figure_lines(results):
    peers = {}
    for peer in results["peers"]:
        if "us" in peer:
            peers.setdefault((peer["group"], peer.get("of", peer["case"])), []).append(peer)
    lines = []
    for group in dict.fromkeys(figure["group"] for figure in results["figures"]):
        rows = []
        for figure in results["figures"]:
            if figure["group"] != group:
                continue
            fastest = min(peers.get((group, figure.get("of", figure["case"])), []),
                          key=lambda peer: peer["us"], default=None) if "us" in figure else None
            note = figure.get("note", "") + ("" if figure["ok"] else " **wrong**")
            peer = peer_cell(fastest, figure) if fastest else ""
            rows.append([figure["case"], cell(figure.get("us")), cell(figure.get("us_min")),
                         cell(figure.get("gb_per_s"), 0), cell(figure.get("tflop_per_s"), 1),
                         cell(figure.get("floor_us")), cell(figure.get("fraction"), 3),
                         clock_cell(figure), peer, note.strip()])
        head = ["case", "us", "least us", "GB/s", "TFLOP/s", "floor us", "fraction",
                "MHz, work of an SM a cycle", "fastest peer: us, its time / ours", "note"]
        lines += ["", f"## {group}", ""] + table(head, rows)
    return lines


def sanitizer_cell(run):
    result = targets.sanitizer_result(run)
    return f"failed, exit {run['rc']}" if result == "failed" else result


def test_lines(results):
    rows = [[test["program"], cell(test.get("tests")), cell(test.get("failures")),
             test.get("note", " ".join(test.get("failed", [])))] for test in results["tests"]]
    lines = ["", "## Tests", ""] + table(["program", "tests", "failures", "failed"], rows)
    rows = [[run["tool"], run["program"], sanitizer_cell(run), cell(run["seconds"])]
            for run in results["sanitizers"]]
    return lines + ["", "## compute-sanitizer", ""] + \
        table(["tool", "program", "result", "seconds"], rows)


def profile_lines(results):
    rows = [[profile["case"], profile["kernel"],
             "; ".join(f"{name} {value}" for name, value in profile["counters"].items())]
            for profile in results["profiles"]]
    return ["", "## Profiles by ncu", ""] + table(["case", "kernel", "counters"], rows) if rows else []


def target_lines(results):
    rows = [[row["target"], row["measured"], row["status"]] for row in results["targets"]]
    return ["", "## Targets", ""] + table(["target", "measured", "status"], rows)


def comparison_lines(title, comparison):
    lines = [f"- {title}: {comparison['note']}"] if "note" in comparison else []
    for case in comparison["cases"]:
        gap = case.get("gap_where_they_part")
        parted = f", then a gap of {gap:.3f} nats" if gap is not None else ""
        lines.append(f"- {title}, {case['prompt']!r}: {case['equal_tokens']} of "
                     f"{case['num_tokens']} tokens as on the CPU{parted}")
    return lines


def value_lines(result, keys, prefix=""):
    return [f"- {prefix}{key}: {cell(result[key])}" for key in keys if key in result]


def served_lines(results):
    served = results["served"]
    if served is None:
        return []
    lines = ["", "## Served model", "", f"- ok: {served['ok']} {served.get('note', '')}".rstrip()]
    for key, title in (("against_cpu", "bf16"), ("fp8_cache_against_cpu", "fp8 cache"),
                       ("fp8_weights_against_cpu", "fp8 weights"),
                       ("two_ranks_against_one", "two ranks beside one")):
        if key in served:
            lines += comparison_lines(title, served[key])
    lines += value_lines(served, ("same_tokens_in_company", "same_bits_without_graphs",
                                  "same_bits_without_graphs_by_default", "seconds_to_ready"))
    lines += value_lines(served.get("bench_batch_invariant", {}),
                         ("output_throughput", "median_itl_ms"), "batch-invariant, bench serve, ")
    windows = served.get("through_windows", {})
    lines += value_lines(windows, ("bits", "note"), "through windows, ")
    lines += value_lines(windows.get("bench", {}), ("output_throughput", "median_itl_ms"),
                         "through windows, bench serve, ")
    return lines + value_lines(
        served.get("bench", {}),
        ("output_throughput", "median_ttft_ms", "median_itl_ms", "p99_itl_ms"), "bench serve, ")


def flat(value, prefix=""):
    """Returns pairs of name and value of all levels. A name joins the keys with dots."""
    if not isinstance(value, dict):
        return [(prefix.rstrip("."), value)]
    return [pair for key, inner in value.items() for pair in flat(inner, f"{prefix}{key}.")]


def other_server_lines(results):
    titles = {"large": "8B of random weights", "company": "Answers in changing company",
              "transformers": "Beside transformers"}
    lines = []
    for name, title in titles.items():
        if results[name] is not None:
            lines += ["", f"## {title}", ""]
            lines += [f"- {key}: {cell(value)}" for key, value in flat(results[name])]
    return lines


def to_markdown(results):
    rows = [[phase["phase"], phase["status"], cell(phase["seconds"]), phase.get("note", "")]
            for phase in results["phases"]]
    lines = ["# GPU run", ""]
    if results["machine"].get("rehearsal") == "yes":
        lines += ["**A rehearsal on an emulated device: no time here means anything.**", ""]
    lines += machine_lines(results)
    lines += ["", "## Phases", ""] + table(["phase", "status", "seconds", "note"], rows)
    lines += target_lines(results) + test_lines(results) + figure_lines(results)
    lines += profile_lines(results)
    lines += served_lines(results) + other_server_lines(results)
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    arguments = parser.parse_args()
    results = collect(arguments.work)
    (arguments.out / "results.json").write_text(json.dumps(results, indent=1) + "\n",
                                                encoding="utf-8")
    (arguments.out / "results.md").write_text(to_markdown(results), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
