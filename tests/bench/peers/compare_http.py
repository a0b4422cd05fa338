#!/usr/bin/env python3
"""Measures Quire, vLLM and llama-server behind their HTTP API, with one load generator, in turns. Needs a quiet machine.

    tests/bench/peers/compare_http.py --dir DIR [--model deploy/model] [--servers quire vllm llama]

DIR is that of setup.sh, with the parts vllm, llama_cpp and llama_server. Every server gets the same random prompts
from `quire bench serve --backend openai`. Prints a table: medians over the rounds, and Quire's ratio to the better peer.
"""
import argparse
import contextlib
import json
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
INPUT_TOKENS, OUTPUT_TOKENS, MAX_TOKENS = 32, 128, 512
STREAMS = (1, 32, 256)
REQUESTS_AT_ONE = 8
START_SECONDS = 600
FIGURES = {"first token, ms": ("median_ttft_ms", min), "per token, ms": ("median_tpot_ms", min),
           "tokens/s": ("output_throughput", max), "failed requests": ("failed", min)}


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def quire(options, port):
    return [options.build / "bin/quire", "serve", "--model", options.model, "--threads", options.threads, "--port", "0",
            "--http-port", port, "--max-num-seqs", max(STREAMS), "--enable-prefix-caching=false"], {}


def vllm(options, port):
    cores = ",".join(map(str, sorted(os.sched_getaffinity(0))[:options.threads]))
    environment = {"VLLM_CPU_OMP_THREADS_BIND": cores, "VLLM_CPU_KVCACHE_SPACE": "4", "HF_HUB_OFFLINE": "1",
                   "VLLM_NO_USAGE_STATS": "1"}
    return [options.dir / "vllm/bin/python-preloaded", "-m", "vllm.entrypoints.openai.api_server", "--model",
            options.model, "--port", port, "--dtype", "bfloat16", "--max-model-len", MAX_TOKENS, "--max-num-seqs",
            max(STREAMS), "--no-enable-prefix-caching", "--disable-uvicorn-access-log"], environment


def llama(options, port):
    return [options.dir / "llama_server/bin/llama-server", "--model", options.gguf, "--port", port, "--threads",
            options.threads, "--threads-batch", options.threads, "--parallel", max(STREAMS), "--ctx-size",
            (INPUT_TOKENS + OUTPUT_TOKENS + 8) * max(STREAMS), "--flash-attn", "on", "--no-webui",
            "--cache-ram", "0"], {}


SERVERS = {"quire": quire, "vllm": vllm, "llama": llama}


def wait_until_ready(url, process):
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end and process.poll() is None:
        with contextlib.suppress(OSError):
            with urllib.request.urlopen(f"{url}/v1/models", timeout=5):
                with urllib.request.urlopen(f"{url}/health", timeout=5):
                    return
        time.sleep(0.2)
    raise RuntimeError(f"{process.args[0]} was never ready")


@contextlib.contextmanager
def served(name, options):
    port = free_port()
    command, environment = SERVERS[name](options, str(port))
    log = options.dir / "logs" / f"http-{name}.log"
    log.parent.mkdir(exist_ok=True)
    with open(log, "wb") as file:
        process = subprocess.Popen([str(word) for word in command], stdout=file, stderr=file,
                                   env={**os.environ, **environment})
    try:
        url = f"http://127.0.0.1:{port}"
        wait_until_ready(url, process)
        yield url
    finally:
        process.terminate()
        process.wait()


def bench(url, options, num_streams, seed):
    num_requests = REQUESTS_AT_ONE if num_streams == 1 else 2 * num_streams
    with tempfile.NamedTemporaryFile() as file:
        subprocess.run(
            [options.build / "bin/quire", "bench", "serve", "--backend=openai", f"--base-url={url}",
             f"--random-input-len={INPUT_TOKENS}", f"--random-output-len={OUTPUT_TOKENS}",
             f"--num-prompts={num_requests}", f"--max-concurrency={num_streams}", "--ignore-eos", f"--seed={seed}",
             "--save-result", f"--result-filename={file.name}"], check=True, stdout=subprocess.DEVNULL)
        result = json.load(file)
    assert result["total_output_tokens"] == result["completed"] * OUTPUT_TOKENS, result
    return {figure: result[key] for figure, (key, _) in FIGURES.items()}


def measure(options):
    values = {}  # by server, streams and figure: a value for each round
    for number in range(options.rounds):
        names = options.servers[number % len(options.servers):] + options.servers[:number % len(options.servers)]
        for name in names:
            with served(name, options) as url:
                bench(url, options, 4, seed=1000 + number)  # warm: compiled code, allocated memory
                for num_streams in STREAMS:
                    for figure, value in bench(url, options, num_streams, seed=number).items():
                        values.setdefault((name, num_streams, figure), []).append(value)
            print(f"round {number + 1}: {name}", file=sys.stderr, flush=True)
    return values


def ratio(values, names, num_streams, figure):
    """Returns the median over the rounds of Quire's value by the better peer's in that round."""
    better = FIGURES[figure][1]
    peers = [values[name, num_streams, figure] for name in names if name != "quire"]
    if "quire" not in names or not peers or figure == "failed requests":
        return ""
    ours = values["quire", num_streams, figure]
    return f"{statistics.median(own / better(others) for own, *others in zip(ours, *peers)):.2f}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dir", required=True, type=pathlib.Path)
    parser.add_argument("--build", default=HERE.parents[2] / "build/cpu-release", type=pathlib.Path, help="of Quire")
    parser.add_argument("--model", type=pathlib.Path, help="default: DIR/small")
    parser.add_argument("--servers", nargs="*", default=list(SERVERS), choices=list(SERVERS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    options.model = options.model or options.dir / "small"
    options.gguf = options.dir / f"{options.model.name}.gguf"
    if "llama" in options.servers and not options.gguf.exists():
        subprocess.run([options.dir / "llama_cpp/bin/python", HERE / "make_gguf.py", "--model", options.model, "--out",
                        options.gguf], check=True)
    values = measure(options)
    print("| Streams | Figure | " + " | ".join(options.servers) + " | Quire to the better peer |")
    print("|---" * (len(options.servers) + 3) + "|")
    for num_streams in STREAMS:
        for figure in FIGURES:
            shown = [f"{statistics.median(values[name, num_streams, figure]):,.2f}" for name in options.servers]
            print(f"| {num_streams} | {figure} | " + " | ".join(shown) +
                  f" | {ratio(values, options.servers, num_streams, figure)} |")


if __name__ == "__main__":
    main()
