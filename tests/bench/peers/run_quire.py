#!/usr/bin/env python3
"""run_quire.py --build DIR --model DIR [POINT...]: Quire, of a build such as build/cpu-release.

engine_bench for prefill and decode, `quire serve` and `quire bench serve` through gRPC for served. One more point,
`product`: tokens a second of a prefill of 512 if it were the matrix products of the layers alone, by kernel_bench.
points.py says the rest.
"""
import json
import pathlib
import random
import re
import subprocess
import tempfile

import points

ISAS = ("amx", "avx512bf16", "avx512", "avx2", "portable")  # the fastest first
PRODUCT_TOKENS = 512
LAYERS = 16
LAYER_SHAPES = {"qkv": (2048, 1024), "attention_out": (1024, 1024), "gate_up": (5632, 1024), "down": (1024, 2816)}


def run(*command):
    return subprocess.run([str(part) for part in command], check=True, stdout=subprocess.PIPE, text=True).stdout


def version(build, program):
    """Returns the program's version, and the commit that its source tree is at now."""
    text = run(program, "version").split("\n")[0].removeprefix("quire ")
    source = re.search(r"^CMAKE_HOME_DIRECTORY:INTERNAL=(.*)$", (build / "CMakeCache.txt").read_text(), re.MULTILINE)
    git = subprocess.run(["git", "-C", source.group(1), "describe", "--always", "--dirty"], stdout=subprocess.PIPE,
                         text=True)
    return f"{text} ({git.stdout.strip() or 'no repository'})"


class Quire:
    def __init__(self, options):
        self._bin, self._bench = options.build / "bin", options.build / "bench"
        self._model, self._threads = options.model, options.threads
        self._isa = options.product_isa or self._fastest_isa()
        self._serve_flags = options.serve_flags.split()
        self.about = {"program": "Quire", "version": version(options.build, self._bin / "quire"),
                      "settings": f"engine_bench's defaults; quire serve {options.serve_flags}".strip()}

    def values(self, point, repeat):
        kind, *number = point.split()
        if kind == "served":
            return [self._served()]
        if kind == "product":
            return [self._product()]
        flags = {"prefill": ["--context", *number], "decode": ["--context", points.CONTEXT_TOKENS, "--batch", *number,
                                                               "--steps", points.DECODE_STEPS]}[kind]
        return [self._engine_bench("--mode", kind, "--repeat", repeat, *flags)]

    def _engine_bench(self, *flags):
        """Returns the median of the repetitions, as engine_bench prints it. A process's first repetition is slow."""
        text = run(self._bench / "engine_bench", "--model", self._model, "--threads", self._threads, *flags)
        return float(re.search(r"([\d.]+) tok/s", text).group(1))

    def _fastest_isa(self):
        """Returns the fastest instruction set of this machine; kernel_bench lists no other."""
        names = run(self._bench / "kernel_bench", "--benchmark_list_tests").split("\n")
        found = {name.split("/")[1] for name in names if name.startswith("Linear/") and "/bfloat16/" in name}
        return next(isa for isa in ISAS if isa in found)

    def _product(self):
        """Returns tokens a second of the layers' products. Each shape counts at the rate that kernel_bench reports."""
        shapes = "|".join(LAYER_SHAPES)
        name = f"^Linear/{self._isa}/bfloat16/({shapes})/tokens:{PRODUCT_TOKENS}/threads:{self._threads}/"
        text = run(self._bench / "kernel_bench", f"--benchmark_filter={name}", "--benchmark_format=json")
        rates = {entry["name"].split("/")[3]: 1e9 * entry["GFLOP/s"] for entry in json.loads(text)["benchmarks"]}
        return 1 / sum(LAYERS * 2 * rows * columns / rates[shape] for shape, (rows, columns) in LAYER_SHAPES.items())

    def _served(self):
        command = [self._bin / "quire", "serve", "--model", self._model, "--threads", str(self._threads),
                   "--port", "0", "--http-port", "0", *self._serve_flags]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            ready = next(filter(None, (re.match(r"quire: ready grpc=(\S+)", line) for line in server.stdout)), None)
            assert ready, "quire serve was never ready"
            self._bench_serve(ready.group(1), 1)  # another prompt: the command's own warm-up sends the first one
            result = self._bench_serve(ready.group(1), points.REQUESTS)
        finally:
            server.terminate()
            server.communicate()
        assert result["total_output_tokens"] == points.REQUESTS * points.OUTPUT_TOKENS, result
        return result["output_throughput"]

    def _bench_serve(self, address, requests):
        with tempfile.NamedTemporaryFile() as file:
            run(self._bin / "quire", "bench", "serve", "--server", address, "--ignore-eos", "--num-warmups", 0,
                "--random-input-len", points.INPUT_TOKENS, "--random-output-len", points.OUTPUT_TOKENS,
                "--num-prompts", requests, "--max-concurrency", points.CLIENTS,
                "--seed", random.randrange(1 << 30), "--save-result", "--result-filename", file.name)
            return json.loads(pathlib.Path(file.name).read_text())


def add_flags(parser):
    parser.add_argument("--build", required=True, type=pathlib.Path)
    parser.add_argument("--product-isa", choices=ISAS, help="of kernel_bench's Linear/ISA/bfloat16; by default the fastest here")
    parser.add_argument("--serve-flags", default="", help="more flags of quire serve")


def make(options):
    quire = Quire(options)
    return quire.about, quire.values


if __name__ == "__main__":
    points.answer_points(__doc__, add_flags, make)
