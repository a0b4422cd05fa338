"""A round's figures: their judgement, their text, and their lines in a file."""
import collections
import dataclasses
import json
import os

import standstill
from checker import KINDS_OF_LOSS, quantile

# Bounds of the p99 gap, in seconds. Only a timeout tells a stopped process from a slow one.
TARGETS = {"kill": 3.0, "kill-in-exchange": 3.0, "cut": 3.0, "cut-to-worker": 3.0,
           "cut-to-scheduler": 3.0, "stop": 6.0, "pause": 6.0, "host-cut": 3.0,
           "scheduler-cut": 3.0}
ENDS = ("kill", "kill-in-exchange", "stop", "scheduler-kill", "scheduler-stop")  # kinds that end a process
PROXY_COUNTS = {"cut": "held", "cut-to-worker": "held", "cut-to-scheduler": "held",
                "delay": "delayed", "reset": "reset", "garbage": "spoiled", "host-cut": "lost",
                "scheduler-cut": "lost", "part": "parted", "long-part": "parted"}


@dataclasses.dataclass
class Round:
    seed: int
    kinds: dict  # kind of fault to how many
    minutes: float
    num_calls: int
    num_tokens: int
    losses: dict
    examples: list
    gaps: list  # of checker.measure_gaps
    counts: dict  # of ServedModel.counts
    proxy: dict
    replay: str
    slow_turns: list  # of standstill.slow_turns
    num_broken: int = 0  # attempts that broke or were refused


def faults_of(done, judges_time):
    """Returns the faults of a round, in words; none if the round is good."""
    faults = [f"{done.losses[kind]} x {kind}" for kind in KINDS_OF_LOSS if done.losses.get(kind)]
    faults += [f"{kind}: no stream was under way at any of them" for kind in done.kinds
               if not any(gap["num_streams"] for gap in done.gaps if gap["kind"] == kind)]
    faults += [f"the proxy did nothing in {kind}" for kind in done.kinds
               if kind in PROXY_COUNTS and not done.proxy.get(PROXY_COUNTS[kind])]
    num_ends = sum(done.kinds.get(kind, 0) for kind in ENDS)
    # Rarely two faults end the same epoch, so most ends must begin an epoch.
    if done.counts.get("epochs begun", 0) < 1 + 0.8 * num_ends:
        faults.append(f"too few epochs: {done.counts} after {num_ends} ends of processes")
    if done.counts.get("lost survivors"):
        faults.append(f"{done.counts['lost survivors']} ranks ended with another one")
    if done.counts.get("weights read again"):
        faults.append(f"{done.counts['weights read again']} ranks that lived read weights again")
    for name in ("num_prefix_hit_tokens", "num_swap_preemptions"):
        if not done.counts.get(name):
            faults.append(f"no pressure on the KV cache: {name} is 0")
    if done.counts.get("exit code of serve"):
        faults.append(f"serve ended with {done.counts['exit code of serve']}")
    if not done.counts.get("turns"):
        faults.append("no turn of the scheduling loop was measured")
    faults += standstill.faults_of(done.slow_turns)
    if "identical" not in done.replay:
        faults.append(f"the step log does not replay: {done.replay}")
    if judges_time:
        faults += [f"{kind}: gap of {row['gap p99']:.2f} s at p99, target {TARGETS[kind]} s"
                   for kind, row in gap_rows(done).items()
                   if row["gap p99"] > TARGETS.get(kind, float("inf"))]
    return faults


def gap_rows(done):
    """Returns figures by kind of fault."""
    rows = {}
    for kind in done.kinds:
        of_kind = [gap for gap in done.gaps if gap["kind"] == kind]
        gaps, silences = ([gap[name] for gap in of_kind if gap[name] is not None]
                          for name in ("gap", "silence"))
        pauses = [pause for gap in of_kind for pause in gap["pauses"]]
        row = {"faults": len(of_kind), "streams": sum(gap["num_streams"] for gap in of_kind)}
        for name, values in (("gap", gaps), ("silence", silences), ("pause", pauses)):
            for share, label in ((0.5, "p50"), (0.99, "p99"), (1.0, "max")):
                row[f"{name} {label}"] = quantile(values, share) or 0.0
        rows[kind] = row
    return rows


def text_of(done, faults):
    lines = [f"seed {done.seed}: {sum(done.kinds.values())} faults in {done.minutes:g} minutes, "
             f"{done.num_calls} streams, {done.num_tokens} tokens"
             + (f", {done.num_broken} attempts broken or refused" if done.num_broken else ""),
             ", ".join(f"{kind}: {done.losses.get(kind, 0)}" for kind in KINDS_OF_LOSS),
             "", "p50 / p99 / max, in seconds:", "",
             "| fault | faults | streams under way | gap | silence | pause of a stream |",
             "|---|---|---|---|---|---|"]
    for kind, row in gap_rows(done).items():
        figures = (" / ".join(f"{row[f'{name} {label}']:.2f}" for label in ("p50", "p99", "max"))
                   for name in ("gap", "silence", "pause"))
        lines.append(" | ".join((f"| {kind}", str(row["faults"]), str(row["streams"]), *figures))
                     + " |")
    lines += ["", "inside: " + ", ".join(f"{name}: {n}" for name, n in done.counts.items()),
              "proxy: " + ", ".join(f"{name}: {n}" for name, n in done.proxy.items()),
              "scheduling loop: " + standstill.longest_of(done.slow_turns),
              "step log: " + "; ".join(" ".join(line.split()) for line in done.replay.splitlines())]
    return "\n".join(lines + done.examples + [f"FAILED: {fault}" for fault in faults])


def merged(rounds):
    """Returns one round that adds up many."""
    def add(dicts):
        total = collections.Counter()
        for one in dicts:
            total.update(one)
        return dict(total)

    return Round(seed=rounds[0].seed, kinds=add(r.kinds for r in rounds),
                 minutes=sum(r.minutes for r in rounds), num_calls=sum(r.num_calls for r in rounds),
                 num_tokens=sum(r.num_tokens for r in rounds),
                 num_broken=sum(r.num_broken for r in rounds),
                 losses=add(r.losses for r in rounds), examples=[],
                 gaps=[gap for r in rounds for gap in r.gaps], counts=add(r.counts for r in rounds),
                 proxy=add(r.proxy for r in rounds), replay=rounds[-1].replay,
                 slow_turns=[turn for r in rounds for turn in r.slow_turns])


def append_round(path, done):
    with open(path, "a", encoding="ascii") as file:
        file.write(json.dumps(dataclasses.asdict(done)) + "\n")


def read_rounds(path):
    if not os.path.exists(path):
        return []
    with open(path, encoding="ascii") as file:
        return [Round(**json.loads(line)) for line in file]
