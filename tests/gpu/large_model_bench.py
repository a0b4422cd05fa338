#!/usr/bin/env python3
"""Decode steps of a model of 8 billion random weights: as long as the memory takes to read, or longer?

Serves the model with --load-format dummy, sends --batch prompts of --context tokens, and reads the
server's metrics while all of them are decoded. An interval between two readings counts if each of its
steps held all sequences and no prompt. The time of a step is the median of the intervals, by the worker's
clock. It contains building the step, the model, and sampling, which waits for the device. The floor is
the time to read every weight and the context's keys and values once, at the speed of a copy. One JSON
object goes to --json.
"""
import argparse
import pathlib
import sys
import tempfile
import time

import made_model
import quire_programs

PARTS = ("worker_build", "worker_forward", "worker_sample", "round_trip")
COPY_GB_PER_S = 4300.0  # of an H200; used if the run measured no copy
TARGET_OVER_FLOOR = 1.15
SECONDS_BETWEEN_READINGS = 0.05


class Reading:
    """The metrics at one moment."""

    def __init__(self, server):
        metrics = server.metrics()
        self.prompt_tokens = metrics['quire_tokens_total{kind="prompt"}']
        self.generated = metrics['quire_tokens_total{kind="generated"}']
        self.sequences = metrics["quire_step_batch_sequences_sum"]
        self.steps = metrics["quire_step_batch_sequences_count"]
        self.tokens = metrics["quire_step_batch_tokens_sum"]
        self.seconds = {part: metrics[f'quire_step_duration_seconds_sum{{part="{part}"}}']
                        for part in PARTS}


def is_decode_of(batch, before, after):
    steps = after.steps - before.steps
    return (steps > 0 and after.prompt_tokens == before.prompt_tokens and
            after.sequences - before.sequences == steps * batch and
            after.tokens - before.tokens == steps * batch)


def read_while_running(programs, server, bench):
    readings = []
    while bench.poll() is None and programs.seconds_left() > 1:
        readings.append(Reading(server))
        time.sleep(SECONDS_BETWEEN_READINGS)
    return readings


def decode_intervals(readings, batch):
    """Returns the intervals between readings whose steps all held all sequences. Each has the number of
    its steps, milliseconds of each part of a step, and the mean context."""
    intervals = []
    for before, after in zip(readings, readings[1:]):
        if is_decode_of(batch, before, after):
            steps = after.steps - before.steps
            intervals.append({
                "steps": steps,
                "context": (after.prompt_tokens + (before.generated + after.generated) / 2) / batch,
                **{part: 1e3 * (after.seconds[part] - before.seconds[part]) / steps
                   for part in PARTS}})
    if not intervals:
        raise RuntimeError("no step of all sequences was seen")
    return intervals


def step_ms(interval):
    """Returns milliseconds of a step, by the worker's clock."""
    return interval["worker_build"] + interval["worker_forward"] + interval["worker_sample"]


def summary(intervals):
    """Returns the figures of the median interval, since the first steps record graphs."""
    ordered = sorted(intervals, key=step_ms)
    median = ordered[len(ordered) // 2]
    return {"steps": sum(interval["steps"] for interval in intervals),
            "intervals": len(intervals), "context": median["context"],
            "step_ms": step_ms(median), "step_ms_min": step_ms(ordered[0]),
            "step_ms_max": step_ms(ordered[-1]), "parts_ms": {part: median[part] for part in PARTS}}


def floor_ms(config, batch, context, copy_gb_per_s):
    read = made_model.weight_bytes_of_step(config) + \
        batch * context * made_model.kv_bytes_per_token(config)
    return read / copy_gb_per_s / 1e6


def measure(arguments, programs, folder, config, path):
    flags = ["--load-format", "dummy", "--max-num-seqs", arguments.batch,
             "--max-model-len", arguments.context + arguments.tokens + 16,
             "--max-num-batched-tokens", arguments.step_tokens]
    with programs.serve_on_device(folder, *flags) as server:
        bench = programs.start_bench(
            server, path, "--num-prompts", arguments.batch, "--num-warmups", 0,
            "--random-input-len", arguments.context, "--random-output-len", arguments.tokens)
        try:
            readings = read_while_running(programs, server, bench)
        finally:
            load = programs.read_bench(bench, path)
        result = {"seconds_to_ready": server.seconds_to_ready,
                  **summary(decode_intervals(readings, arguments.batch))}
    step = result["step_ms"]
    floor = floor_ms(config, arguments.batch, result["context"], arguments.copy_gb_per_s)
    return {**result, "floor_ms": floor, "step_over_floor": step / floor,
            "floor_ms_at_first": floor_ms(config, arguments.batch, arguments.context,
                                          arguments.copy_gb_per_s),
            "copy_gb_per_s": arguments.copy_gb_per_s,
            "decode_tokens_per_s": 1e3 * arguments.batch / step,
            "bench": {key: load[key] for key in ("output_throughput", "total_token_throughput",
                                                 "median_ttft_ms", "median_itl_ms", "p99_itl_ms")}}


def run(arguments):
    programs = quire_programs.Programs(arguments)
    with tempfile.TemporaryDirectory(prefix="quire-gpu-") as name:
        folder = pathlib.Path(name)
        config = made_model.write_config(folder / "model", arguments.shape)
        result = measure(arguments, programs, folder / "model", config, folder / "bench.json")
    # A low speed is no failure here, since targets.py judges it.
    return {"device": arguments.device, "shape": arguments.shape, "batch": arguments.batch,
            "ok": True, **result}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    quire_programs.add_arguments(parser)
    parser.add_argument("--shape", choices=made_model.SHAPES, default="8b")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--context", type=int, default=4096)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--step-tokens", type=int, default=8192)
    parser.add_argument("--copy-gb-per-s", type=float, default=COPY_GB_PER_S)
    return quire_programs.write_result(parser.parse_args(), run)


if __name__ == "__main__":
    sys.exit(main())
