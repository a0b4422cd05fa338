#!/usr/bin/env python3
"""mixed_load.py --model DIR --build DIR [--build DIR]... [--serve-flags FLAGS]...: what chats feel beside long prompts.

Servers take turns, each with a fresh start: 16 clients send prompts of 128 tokens and get 64, one request after the
other, while one prompt of 2,048 tokens a second comes and gets 8 (--long-rate 0: none does). Prints of the chats the
time between two tokens and to the first one, p50 and p99 in ms, and their tokens a second; and how long the host of a
virtual machine kept its processors from it, all of them together: a second of it in a turn makes the p99. Each --build
is run with each --serve-flags.
"""
import argparse
import itertools
import json
import os
import pathlib
import random
import re
import statistics
import subprocess
import tempfile

CHAT_INPUT, CHAT_OUTPUT = 128, 64
LONG_INPUT, LONG_OUTPUT = 2048, 8
FIGURES = ["p50_itl_ms", "p99_itl_ms", "p50_ttft_ms", "p99_ttft_ms", "output_throughput", "stolen_ms"]


def stolen_ms():
    ticks = int(pathlib.Path("/proc/stat").read_text().split()[8])
    return 1000 * ticks / os.sysconf("SC_CLK_TCK")


def bench(build, address, *flags):
    return subprocess.Popen([build / "bin/quire", "bench", "serve", "--server", address, "--ignore-eos",
                             "--seed", str(random.randrange(1 << 30)), *map(str, flags)], stdout=subprocess.DEVNULL)


def chats_beside_long_prompts(build, address, options):
    stolen_before = stolen_ms()
    with tempfile.NamedTemporaryFile() as file:
        longs = options.long_rate > 0 and bench(
            build, address, "--num-prompts", 100_000, "--request-rate", options.long_rate,
            "--random-input-len", LONG_INPUT, "--random-output-len", LONG_OUTPUT)
        try:
            chats = bench(build, address, "--num-prompts", options.requests, "--max-concurrency", options.chats,
                          "--random-input-len", CHAT_INPUT, "--random-output-len", CHAT_OUTPUT,
                          "--metric-percentiles", "50,99", "--save-result", "--result-filename", file.name)
            assert chats.wait() == 0
        finally:
            if longs:
                assert longs.poll() is None, "the long prompts were refused"
                longs.kill()
                longs.wait()
        return {**json.loads(pathlib.Path(file.name).read_text()), "stolen_ms": stolen_ms() - stolen_before}


def measure(build, flags, options):
    command = [build / "bin/quire", "serve", "--model", options.model, "--threads", options.threads, "--port", 0,
               "--http-port", 0, *flags.split()]
    server = subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, text=True)
    try:
        ready = next(filter(None, (re.match(r"quire: ready grpc=(\S+)", line) for line in server.stdout)), None)
        assert ready, "quire serve was never ready"
        return chats_beside_long_prompts(build, ready.group(1), options)
    finally:
        server.terminate()
        server.communicate()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--build", required=True, action="append", type=pathlib.Path)
    parser.add_argument("--serve-flags", action="append", help="more flags of quire serve")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--chats", type=int, default=16)
    parser.add_argument("--requests", type=int, default=128, help="of the chats, in a turn")
    parser.add_argument("--long-rate", type=float, default=1.0, help="long prompts a second")
    options = parser.parse_args()
    servers = list(itertools.product(options.build, options.serve_flags or [""]))
    values = {server: [] for server in servers}
    for round_number in range(options.rounds):
        for build, flags in servers:
            result = measure(build, flags, options)
            values[build, flags].append(result)
            print(round_number + 1, build, flags, *(f"{name}={result[name]:.0f}" for name in FIGURES), flush=True)
    for (build, flags), results in values.items():
        medians = (f"{name}={statistics.median(result[name] for result in results):.0f}" for name in FIGURES)
        print("median", build, flags, *medians)


if __name__ == "__main__":
    main()
