#!/usr/bin/env python3
"""Serves a small model on a device and on the CPU and compares what they generate.

Greedy tokens should be the same. The device computes in bf16, so that two tokens of nearly equal
probability may change places: where the answers part, both tokens must be within --max-gap of each
other in the CPU's log-probabilities, else the test fails. Then all prompts are sent at once to a
server with --batch-invariant: each must get the tokens that it gets alone. At last `quire bench serve`
runs shortly. One JSON object goes to --json.

Needs nothing but Python: the programs are driven through the command line.
"""
import argparse
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time

PROMPTS = ["Once upon a time", "One day, a little girl named Lily", "The dog was very happy because",
           "Tom and Sam went to the park", "\"I want to help you,\" said", "The big red ball",
           "It was raining and", "In the forest there lived a"]


class Server:
    """`quire serve` on free ports. Stopped when the block ends, whatever happens."""

    def __init__(self, arguments, *flags):
        self._lines = []
        self._ready = threading.Event()
        self.address = None
        self._process = subprocess.Popen(
            [arguments.bin / "quire", "serve", "--model", arguments.model, "--port", "0",
             "--http-port", "0", "--shutdown-timeout", "1", *flags],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
            env=arguments.environment)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        start = time.monotonic()
        while not self._ready.wait(0.1):
            late = time.monotonic() - start > arguments.start_seconds
            if late or self._process.poll() is not None:
                self.stop()
                raise RuntimeError("the server did not start:\n" + self.text())
        self.seconds_to_ready = time.monotonic() - start

    def _read(self):
        for line in self._process.stdout:
            self._lines.append(line.rstrip())
            if match := re.search(r"quire: ready grpc=(\S+)", line):
                self.address = match.group(1)
                self._ready.set()

    def text(self):
        return "\n".join(self._lines[-40:])

    def stop(self):
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._process.wait()
        self._reader.join(5)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()


def start_generate(arguments, server, prompt):
    return subprocess.Popen(
        [arguments.bin / "quire", "generate", "--server", server.address, "--prompt", prompt,
         "--max-tokens", str(arguments.tokens), "--temperature", "0", "--ignore-eos",
         "--logprobs", "5", "--json"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=arguments.environment)


def read_tokens(arguments, process):
    out, errors = process.communicate(timeout=arguments.start_seconds)
    if process.returncode != 0:
        raise RuntimeError(f"generate failed: {errors.strip()}")
    lines = [json.loads(line) for line in out.splitlines()]
    return [line for line in lines if line["token_id"] is not None]


def generate_alone(arguments, server, prompts):
    return [read_tokens(arguments, start_generate(arguments, server, prompt))
            for prompt in prompts]


def generate_together(arguments, server, prompts):
    processes = [start_generate(arguments, server, prompt) for prompt in prompts]
    return [read_tokens(arguments, process) for process in processes]


def ids(tokens):
    return [token["token_id"] for token in tokens]


def compare(prompt, expected, actual, max_gap):
    """Where the answers part, and whether it was a near tie."""
    pairs = zip(ids(expected), ids(actual))
    equal = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(expected), len(actual)))
    result = {"prompt": prompt, "num_tokens": len(expected), "equal_tokens": equal, "ok": True}
    if len(expected) != len(actual) and equal == min(len(expected), len(actual)):
        return {**result, "ok": False, "note": "one answer ended before the other"}
    if equal == len(expected):
        return result
    candidates = {top["token_id"]: top["logprob"]
                  for top in expected[equal].get("top_logprobs", [])}
    candidates[expected[equal]["token_id"]] = expected[equal]["logprob"]
    other = candidates.get(actual[equal]["token_id"])
    gap = None if other is None else expected[equal]["logprob"] - other
    return {**result, "gap_where_they_part": gap, "ok": gap is not None and gap <= max_gap}


def largest_logprob_error(expected, actual):
    """Over the tokens before the answers part."""
    error = 0.0
    for a, b in zip(expected, actual):
        if a["token_id"] != b["token_id"]:
            break
        error = max(error, abs(a["logprob"] - b["logprob"]))
    return error


def bench(arguments, server, num_prompts):
    with tempfile.TemporaryDirectory(prefix="quire-gpu-") as folder:
        path = os.path.join(folder, "bench.json")
        subprocess.run(
            [arguments.bin / "quire", "bench", "serve", "--server", server.address,
             "--num-prompts", str(num_prompts), "--max-concurrency", "32", "--random-input-len",
             "128", "--random-output-len", "64", "--ignore-eos", "--save-result",
             "--result-filename", path],
            check=True, stdout=subprocess.DEVNULL, env=arguments.environment,
            timeout=arguments.start_seconds)
        return json.loads(pathlib.Path(path).read_text(encoding="utf-8"))


def run(arguments):
    prompts = PROMPTS[:arguments.prompts]
    result = {"device": arguments.device, "model": str(arguments.model), "ok": False}
    flags = ("--device", arguments.device, *arguments.device_flags.split())

    with Server(arguments, "--device", "cpu") as server:
        expected = generate_alone(arguments, server, prompts)

    with Server(arguments, *flags) as server:
        result["seconds_to_ready"] = server.seconds_to_ready
        actual = generate_alone(arguments, server, prompts)
        if arguments.bench_prompts > 0:
            result["bench"] = bench(arguments, server, arguments.bench_prompts)
    result["against_cpu"] = [compare(*case, arguments.max_gap)
                             for case in zip(prompts, expected, actual)]
    result["largest_logprob_error"] = max(map(largest_logprob_error, expected, actual))

    with Server(arguments, *flags, "--batch-invariant") as server:
        alone = generate_alone(arguments, server, prompts)
        together = generate_together(arguments, server, prompts)
    result["same_tokens_in_company"] = list(map(ids, alone)) == list(map(ids, together))
    result["ok"] = all(case["ok"] for case in result["against_cpu"]) and \
        result["same_tokens_in_company"]
    return result


def environment_of(arguments):
    environment = dict(os.environ)
    if arguments.library_path:
        environment["QUIRE_LIBRARY_PATH"] = str(arguments.library_path)
    if arguments.lib:
        folders = [str(arguments.lib), environment.get("LD_LIBRARY_PATH", "")]
        environment["LD_LIBRARY_PATH"] = ":".join(filter(None, folders))
    return environment


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", type=pathlib.Path, required=True, help="folder of the programs")
    parser.add_argument("--lib", type=pathlib.Path, help="folder of their shared libraries")
    parser.add_argument("--library-path", type=pathlib.Path,
                        help="folder of the library with the kernels")
    parser.add_argument("--model", type=pathlib.Path, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--device-flags", default="", help="more flags of serve on the device")
    parser.add_argument("--prompts", type=int, default=len(PROMPTS))
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--bench-prompts", type=int, default=128)
    parser.add_argument("--max-gap", type=float, default=0.2)
    parser.add_argument("--start-seconds", type=float, default=60.0)
    parser.add_argument("--json", type=pathlib.Path, required=True)
    arguments = parser.parse_args()
    arguments.environment = environment_of(arguments)
    try:
        result = run(arguments)
    except (RuntimeError, OSError, ValueError, subprocess.SubprocessError) as error:
        result = {"device": arguments.device, "ok": False, "note": str(error)[-2000:]}
    arguments.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(result, indent=2))
    return 0 if result["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
