"""Drives the programs of a build through their command lines: serve, generate, bench serve.

Needs nothing but Python. Everything is stopped when the caller's time is over.
"""
import json
import os
import pathlib
import re
import signal
import subprocess
import tempfile
import threading
import time
import urllib.request


def add_arguments(parser):
    parser.add_argument("--bin", type=pathlib.Path, required=True, help="folder of the programs")
    parser.add_argument("--lib", help="folders of their shared libraries, with ':' between them")
    parser.add_argument("--library-path", type=pathlib.Path,
                        help="folder of the library with the kernels")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--device-flags", default="", help="more flags of serve on the device")
    parser.add_argument("--limit-seconds", type=float, default=600.0, help="of everything")
    parser.add_argument("--json", type=pathlib.Path, required=True, help="for the results")


class Programs:
    """The programs of --bin, and the time they may take."""

    def __init__(self, arguments):
        self.bin = arguments.bin
        self._deadline = time.monotonic() + arguments.limit_seconds
        self.device_flags = ["--device", arguments.device, *arguments.device_flags.split()]
        self.environment = dict(os.environ)
        if arguments.library_path:
            self.environment["QUIRE_LIBRARY_PATH"] = str(arguments.library_path.absolute())
        if arguments.lib:
            folders = [arguments.lib, self.environment.get("LD_LIBRARY_PATH", "")]
            self.environment["LD_LIBRARY_PATH"] = ":".join(filter(None, folders))

    def seconds_left(self):
        return max(0.1, self._deadline - time.monotonic())

    def serve(self, model, *flags):
        return Server(self, model, *flags)

    def serve_on_device(self, model, *flags):
        return Server(self, model, *self.device_flags, *flags)

    def start_generate(self, server, prompt, num_tokens):
        """Starts a greedy request with log-probabilities. Returns the process, for read_tokens."""
        return subprocess.Popen(
            [self.bin / "quire", "generate", "--server", server.address, "--prompt", prompt,
             "--max-tokens", str(num_tokens), "--temperature", "0", "--ignore-eos",
             "--logprobs", "5", "--json"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=self.environment)

    def read_tokens(self, process):
        try:
            out, errors = process.communicate(timeout=self.seconds_left())
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        if process.returncode != 0:
            raise RuntimeError(f"generate failed: {errors.strip()}")
        lines = [json.loads(line) for line in out.splitlines()]
        return [line for line in lines if line["token_id"] is not None]

    def start_bench(self, server, path, *flags):
        """Greedy, all output tokens; the figures go to path."""
        return subprocess.Popen(
            [self.bin / "quire", "bench", "serve", "--server", server.address, "--ignore-eos",
             "--save-result", "--result-filename", path, *map(str, flags)],
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=self.environment)

    def read_bench(self, process, path):
        try:
            _, errors = process.communicate(timeout=self.seconds_left())
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        if process.returncode != 0:
            raise RuntimeError(f"bench serve failed: {errors.strip()}")
        result = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
        if result["failed"] > 0:
            raise RuntimeError(f"{result['failed']} requests failed: {errors.strip()}")
        return result

    def bench(self, server, *flags):
        with tempfile.TemporaryDirectory(prefix="quire-gpu-") as folder:
            path = os.path.join(folder, "bench.json")
            return self.read_bench(self.start_bench(server, path, *flags), path)

    def bench_prompts(self, server, prompts, *flags):
        """Runs a benchmark of these prompts: pairs of token ids and number of output tokens. The result has the tokens
        of each request."""
        with tempfile.TemporaryDirectory(prefix="quire-gpu-") as folder:
            path = pathlib.Path(folder) / "prompts.jsonl"
            with path.open("w", encoding="utf-8") as out:
                for token_ids, num_tokens in prompts:
                    out.write(json.dumps({"prompt_token_ids": token_ids,
                                          "output_tokens": num_tokens}) + "\n")
            return self.bench(server, "--dataset-name", "custom", "--dataset-path", path,
                              "--num-prompts", len(prompts), "--save-detailed", *flags)


class Server:
    """`quire serve` on free ports. Stopped when the block ends, whatever happens."""

    def __init__(self, programs, model, *flags):
        self._lines = []
        self._ready = threading.Event()
        self.address = None
        self.http_address = None
        start = time.monotonic()
        self._process = subprocess.Popen(
            [programs.bin / "quire", "serve", "--model", model, "--port", "0", "--http-port", "0",
             "--shutdown-timeout", "1", *map(str, flags)],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
            env=programs.environment)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        while not self._ready.wait(0.1):
            if programs.seconds_left() < 1 or self._process.poll() is not None:
                self.stop()
                raise RuntimeError("the server did not start:\n" + self.text())
        self.seconds_to_ready = time.monotonic() - start

    def _read(self):
        for line in self._process.stdout:
            self._lines.append(line.rstrip())
            if match := re.search(r"quire: ready grpc=(\S+) http=(\S+)", line):
                self.address, self.http_address = match.groups()
                self._ready.set()

    def text(self):
        return "\n".join(self._lines[-40:])

    def metrics(self):
        """Value of each series, by name with labels."""
        url = f"http://{self.http_address}/metrics"
        with urllib.request.urlopen(url, timeout=5) as response:
            lines = response.read().decode().splitlines()
        series = (line.rpartition(" ") for line in lines if line and not line.startswith("#"))
        return {name: float(value) for name, _, value in series}

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


def write_result(arguments, run):
    """run(arguments) gives the result, with a key ok; a failure on the way is one as well."""
    try:
        result = run(arguments)
    except (RuntimeError, OSError, ValueError, KeyError, subprocess.SubprocessError) as error:
        result = {"device": arguments.device, "ok": False,
                  "note": f"{type(error).__name__}: {error}"[-2000:]}
    arguments.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(result, indent=2))
    return 0 if result["ok"] else 1
