#!/usr/bin/python3
"""`quire serve`: programs that die, hang or cannot start."""
import contextlib
import json
import math
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import threading
import time
import unittest

from quire_server import BIN, MODEL, Process, api, api_grpc, generate, server_info
import grpc

NUM_STREAMS = 4
NUM_TOKENS = 300


def request(seed, num_tokens=NUM_TOKENS):
    return api.GenerateRequest(text=b"Once upon a time", sampling={"temperature": 1, "seed": seed},
                               stopping={"max_tokens": num_tokens, "ignore_eos": True})


def is_alive(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def eventually(claim, seconds=60):
    """Returns the first true value of the claim."""
    deadline = time.monotonic() + seconds
    while not (value := claim()):
        if time.monotonic() > deadline:
            raise AssertionError("did not come true in time")
        time.sleep(0.02)
    return value


def total_memory_bytes():
    with open("/proc/meminfo", encoding="utf-8") as file:
        return int(re.search(r"MemTotal: +(\d+) kB", file.read())[1]) * 1024


def write_sparse_model(folder, num_bytes):
    """Writes a model with so many large layers that they take num_bytes. The file is sparse: the disk holds none of
    their weights."""
    os.mkdir(folder)
    with open(os.path.join(MODEL, "config.json"), encoding="utf-8") as file:
        config = json.load(file)
    hidden, heads, mlp = 8192, 64, 28672
    of_layer = {"input_layernorm": [hidden], "post_attention_layernorm": [hidden],
                **{f"self_attn.{name}_proj": [hidden, hidden] for name in "qkvo"},
                "mlp.gate_proj": [mlp, hidden], "mlp.up_proj": [mlp, hidden],
                "mlp.down_proj": [hidden, mlp]}
    num_layers = num_bytes // (2 * sum(math.prod(shape) for shape in of_layer.values())) + 1
    config.update(hidden_size=hidden, intermediate_size=mlp, num_hidden_layers=num_layers,
                  num_attention_heads=heads, num_key_value_heads=heads, head_dim=hidden // heads)
    tensors = {"model.embed_tokens": [config["vocab_size"], hidden], "model.norm": [hidden]}
    for layer in range(num_layers):
        tensors |= {f"model.layers.{layer}.{name}": shape for name, shape in of_layer.items()}
    header, end = {}, 0
    for name, shape in tensors.items():
        begin, end = end, end + 2 * math.prod(shape)
        header[f"{name}.weight"] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
        json.dump(config, file)
    with open(os.path.join(folder, "model.safetensors"), "wb") as file:
        text = json.dumps(header).encode()
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + end)
    return folder


class Served(Process):
    """`quire serve` on free ports, stopped when the block ends, also by an exception. `under` is a command
    that starts it, for example prlimit."""

    def __init__(self, *flags, model=MODEL, under=()):
        super().__init__([*under, os.path.join(BIN, "quire"), "serve", "--model", model, "--port=0",
                          "--http-port=0", "--admin-address=127.0.0.1:0", *flags])
        try:
            ready = self.wait_for(r"^quire: ready grpc=(\S+) http=(\S+) admin=(\S+)")
            self.address, self.http_address, self.admin_address = ready.groups()
        except BaseException:
            self.kill()
            raise

    def pid_of(self, program):
        """Returns the pid of quire_PROGRAM now; None if there is none."""
        pid = self.popen.pid
        with open(f"/proc/{pid}/task/{pid}/children", encoding="utf-8") as file:
            children = file.read().split()
        for child in children:
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                with open(f"/proc/{child}/comm", encoding="utf-8") as comm:
                    # The kernel keeps 15 letters of a name.
                    if comm.read().strip() == f"quire_{program}"[:15] and is_alive(child):
                        return int(child)
        return None

    def signal(self, program, number):
        """Sends the signal. Returns the pid that got it."""
        pid = eventually(lambda: self.pid_of(program))
        os.kill(pid, number)
        return pid

    def replace(self, program, number):
        """Sends the signal, and waits until another process runs."""
        pid = self.signal(program, number)
        eventually(lambda: self.pid_of(program) not in (None, pid))

    def last_standby(self):
        """Returns the scheduler's last --standby flag, which counts."""
        with open(f"/proc/{self.pid_of('scheduler')}/cmdline", encoding="utf-8") as file:
            return [each for each in file.read().split("\0") if each.startswith("--standby=")][-1]

    def answers(self, seed):
        """Asks over a new connection. Returns the tokens, or None if the server is unavailable."""
        options = [("grpc.use_local_subchannel_pool", 1)]
        with grpc.insecure_channel(self.address, options=options) as channel:
            try:
                return generate(channel, request(seed), timeout=60).tokens[0]
            except grpc.RpcError as error:
                if error.code() == grpc.StatusCode.UNAVAILABLE:
                    return None
                raise

    def stop(self):
        if self.popen.poll() is None:
            self.popen.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.popen.wait(timeout=40)
        self.kill()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()


class Streams:
    """Streams that follow each other until finish(). Keeps each failure."""

    def __init__(self, server, expected):
        self._server = server
        self._expected = expected
        self._messages = threading.Semaphore(0)
        self._stopping = False
        self.failures = []
        self._threads = [threading.Thread(target=self._run, args=(seed,)) for seed in expected]
        for thread in self._threads:
            thread.start()

    def _run(self, seed):
        with grpc.insecure_channel(self._server.address) as channel:
            while not self._stopping:
                try:
                    answer = generate(channel, request(seed), timeout=120,
                                      on_message=self._messages.release)
                    if answer.tokens[0] != self._expected[seed]:
                        raise AssertionError(f"stream {seed} got other tokens")
                except Exception as error:  # pylint: disable=broad-except
                    self.failures.append(error)
                    return

    def go_on(self, num_messages=40):
        """Returns whether num_messages more messages arrive."""
        while self._messages.acquire(blocking=False):
            pass
        return all(self._messages.acquire(timeout=60) for _ in range(num_messages))

    def finish(self):
        self._stopping = True
        for thread in self._threads:
            thread.join()


class WorkerFaultsTest(unittest.TestCase):

    def test_streams_go_on_whatever_happens_to_the_worker(self):
        with Served() as server:
            expected = {seed: server.answers(seed) for seed in range(NUM_STREAMS)}
            streams = Streams(server, expected)
            for _ in range(7):
                time.sleep(1)
                server.replace("worker", signal.SIGKILL)
            self.assertTrue(streams.go_on())
            # The supervisor logged every kill and missed none, and no kill ended the server.
            self.assertEqual(len(re.findall('program="worker 0" .* how="signal 9"',
                                            server.text())), 7, server.text())

            server.replace("worker", signal.SIGSTOP)
            self.assertTrue(streams.go_on())
            streams.finish()
            self.assertEqual(streams.failures, [])

            # A worker is replaced during the drain too.
            with grpc.insecure_channel(server.address) as channel:
                running = api_grpc.GenerationServiceStub(channel).Generate(request(0), timeout=120)
                tokens = list(next(running).chunk.token_ids)
                server.signal("worker", signal.SIGSTOP)
                server.popen.send_signal(signal.SIGTERM)
                server.wait_for("scheduler is draining")
                server.replace("worker", signal.SIGKILL)
                for message in running:
                    tokens += message.chunk.token_ids
                self.assertEqual(tokens, expected[0])
            self.assertEqual(server.popen.wait(timeout=40), 0)


class StandardErrorTest(unittest.TestCase):

    def test_nobody_needs_to_read_it(self):
        with tempfile.TemporaryDirectory() as folder:
            fifo = os.path.join(folder, "stderr")
            os.mkfifo(fifo)
            reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
            writer = os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
            with contextlib.suppress(BlockingIOError):
                while True:
                    os.write(writer, bytes(4096))  # full, and nobody reads
            os.close(writer)
            with Served(under=("/bin/sh", "-c", 'exec "$@" 2>"$0"', fifo)) as server:
                expected = server.answers(0)
                server.replace("worker", signal.SIGKILL)
                self.assertEqual(server.answers(0), expected)
                os.close(reader)
                server.replace("worker", signal.SIGKILL)
                server.replace("scheduler", signal.SIGKILL)
                eventually(lambda: server.answers(0) == expected)


    def test_every_line_of_the_log_is_json_where_that_is_asked_for(self):
        with Served("--log-format=json") as server:
            server.replace("worker", signal.SIGKILL)
            server.answers(0)
        lines = [line for line in server.lines if not line.startswith("quire: ready ")]
        events = [json.loads(line) for line in lines if line]
        self.assertIn("worker 0", [event.get("program") for event in events])


class SchedulerFaultsTest(unittest.TestCase):

    def test_a_scheduler_that_dies_or_hangs_comes_back_at_the_same_address(self):
        with tempfile.TemporaryDirectory(prefix="quire-test-") as folder:
            model = os.path.join(folder, "model")
            os.symlink(MODEL, model)
            with Served("--served-model-name=m", model=model) as server:
                expected = server.answers(0)
                worker = server.pid_of("worker")

                server.replace("scheduler", signal.SIGKILL)
                self.assertEqual(eventually(lambda: server.answers(0)), expected)
                self.assertEqual(server.last_standby(), "--standby=false")
                server.replace("scheduler", signal.SIGSTOP)
                self.assertEqual(eventually(lambda: server.answers(0)), expected)
                self.assertEqual(server.last_standby(), "--standby=true")  # others may hold its worker by now

                self.assertEqual(server.pid_of("worker"), worker)
                self.assertEqual(len(re.findall("(?m)^quire: ready ", server.text())), 1)

                # The model is gone for a moment.
                os.rename(model, model + ".away")
                server.signal("worker", signal.SIGKILL)
                server.wait_for('program="worker 0" .* how="exit code 3"')
                os.rename(model + ".away", model)
                self.assertEqual(eventually(lambda: server.answers(0)), expected)

                # The end: serve ends programs that are stopped, too.
                for program in ("worker", "scheduler"):
                    server.signal(program, signal.SIGSTOP)
                server.popen.send_signal(signal.SIGTERM)
                self.assertEqual(server.popen.wait(timeout=40), 0)

    def test_a_killed_supervisor_leaves_nobody_behind(self):
        with Served() as server:
            pids = [server.pid_of("worker"), server.signal("scheduler", signal.SIGSTOP)]
            server.popen.kill()
            try:
                eventually(lambda: not any(map(is_alive, pids)), seconds=20)
            finally:
                for pid in filter(is_alive, pids):
                    os.kill(pid, signal.SIGKILL)  # it would keep our pipe open


class StartTest(unittest.TestCase):

    def refusal(self, *arguments):
        """Returns the exit code and the line that says why. Lines of our log and of gRPC's begin with a time."""
        done = subprocess.run([os.path.join(BIN, "quire"), "serve", "--http-port=0", *arguments],
                              capture_output=True, text=True, timeout=60, check=False)
        lines = [line for line in done.stderr.splitlines()
                 if not re.match(r"\d{4}-\d\d-\d\dT|E\d{4} ", line)]
        self.assertEqual(len(lines), 1, done.stderr)
        # Two warnings are allowed, which scheduler and worker log of a refusal.
        self.assertNotRegex(done.stderr, r" WARNING (?!worker refused|no scheduler can use this worker)")
        self.assertEqual(done.stdout, "")
        return done.returncode, lines[0]

    def test_a_start_that_cannot_succeed_ends_at_once_with_the_reason(self):
        model = f"--model={MODEL}"
        with socket.socket() as taken, tempfile.TemporaryDirectory() as broken:
            pipe = os.path.join(broken, "pipe")
            os.mkfifo(pipe)
            loop = os.path.join(broken, "loop")
            os.symlink(loop, loop)
            most = total_memory_bytes() * 6 // 10  # of one rank
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            with open(os.path.join(broken, "config.json"), "w", encoding="utf-8") as file:
                file.write("{")
            endless = os.path.join(broken, "endless")
            shutil.copytree(MODEL, endless)
            with open(os.path.join(MODEL, "config.json"), encoding="utf-8") as file:
                config = json.load(file) | {"max_position_embeddings": 1 << 30}
            with open(os.path.join(endless, "config.json"), "w", encoding="utf-8") as file:
                json.dump(config, file)
            for code, named, *arguments in [
                    (2, "--model"),
                    (2, "--workers", model, "--workers=unix:/w"),
                    (2, "no-such-flag", model, "--no-such-flag"),
                    (2, "--block-size: must be a power of two (got 24)", model, "--block-size=24"),
                    (2, "--max-num-seqs: must be in [1, 4096] (got 8192)", model, "--max-num-seqs=8192"),
                    (2, "(got 999999, limit 2048)", model, "--port=0", "--max-model-len=999999"),
                    (2, "--threads: must be in [0, 1024] (got -1)", model, "--port=0", "--threads=-1"),
                    (2, "--threads: must be in [0, 1024] (got 5000)", model, "--port=0", "-tp", "2",
                     "--threads=5000"),
                    (2, "--device: ", model, "--port=0", "--device=cuda"),
                    (2, "--cpu-isa: ", model, "--port=0", "--cpu-isa=x"),
                    (2, "--load-format: ", model, "--port=0", "--load-format=gguf"),
                    (2, "--max-queued-requests: must be in [1, ", model, "--max-queued-requests=0"),
                    (2, "--target-inter-token-ms: must be in [-1, 3600000] (got -2)", model,
                     "--target-inter-token-ms=-2"),
                    (2, "--max-pinned-share: must be in [0, 0.9] (got 0.9000001)", model,
                     "--max-pinned-share=0.9000001"),
                    (2, "--max-queued-tokens: must be in [1, ", model, "--max-queued-tokens=0"),
                    (2, "--pinned-prefixes-file: ", model, "--max-pinned-share=0",
                     f"--pinned-prefixes-file={broken}/pins"),
                    (2, "--pinned-prefixes-file: ", model, "--noenable-prefix-caching",
                     f"--pinned-prefixes-file={broken}/pins"),
                    (2, "--preemption-mode: swap needs ", model, "--preemption-mode=swap",
                     "--swap-space", "0"),
                    (3, "load: ", "--port=0", "--model=/nonexistent"),
                    (3, "load: config.json: ", "--port=0", f"--model={broken}"),
                    (3, "load: config.json: max_position_embeddings: ", "--port=0", f"--model={endless}"),
                    *((3, "load: --generation-config: ", "--port=0", model, f"--generation-config={path}")
                      for path in ("/nonexistent", pipe, os.path.join(broken, "config.json"), loop, "")),
                    (4, "(got 1099511627776 bytes, limit ", model, "--port=0",
                     "--kv-cache-memory-bytes=1TiB"),
                    (4, "--swap-space: exceeds the memory left beside the KV cache", model, "--port=0",
                     "--swap-space=1TiB"),
                    (4, "do not fit in memory (got 16777216, limit ", model, "--port=0",
                     "--num-gpu-blocks-override=16777216"),
                    (4, "--kv-cache-memory-bytes: exceeds the memory of this machine or container, summed over 2 ranks",
                     model, "--port=0", "-tp", "2", f"--kv-cache-memory-bytes={most}", "--swap-space=0"),
                    (4, "--swap-space: exceeds the memory left beside the KV cache, summed over 2 ranks",
                     model, "--port=0", "-tp=2", "--kv-cache-memory-bytes=64MiB", f"--swap-space={most}"),
                    (4, "KV cache: two blocks of one token do not fit (got ", model, "--port=0",
                     "--kv-cache-memory-bytes=1KiB"),
                    *((1, f"--step-log: must be a regular file: {path}", model, "--port=0",
                       f"--step-log={path}") for path in (pipe, broken, "/dev/stdout")),
                    (1, f"cannot listen on 127.0.0.1:{port}", model, f"--port={port}"),
                    (1, f"cannot listen on 127.0.0.1:{port}", model, "--port=0", f"--http-port={port}"),
            ]:
                with self.subTest(arguments):
                    got, line = self.refusal(*arguments)
                    self.assertEqual(got, code, line)
                    self.assertIn(named, line)

    def test_a_program_that_cannot_start_a_thread_is_not_started_again(self):
        # A thread's stack is as large as the limit of the stack, here the whole address space.
        limited = ["prlimit", f"--stack={1 << 47}:"]
        model = f"--model={MODEL}"
        with tempfile.TemporaryDirectory() as folder:
            for program, *flags in [
                    ("quire_scheduler", "--port=0", "--http-port=0"),
                    ("quire_worker", "--device=cpu", f"--listen=unix:{folder}/worker.sock"),
                    ("quire", "serve", "--port=0", "--http-port=0"),
            ]:
                with self.subTest(program):
                    done = subprocess.run([*limited, os.path.join(BIN, program), *flags, model],
                                          capture_output=True, text=True, timeout=60, check=False)
                    self.assertEqual(done.returncode, 2, done.stderr)
                    self.assertIn("cannot start a thread: a limit of processes ", done.stderr)

    def test_memory_is_looked_for_before_weights_are_loaded(self):
        with tempfile.TemporaryDirectory() as folder:
            large = write_sparse_model(os.path.join(folder, "model"), 8 * total_memory_bytes())
            listen = "--listen=unix:" + os.path.join(folder, "worker.sock")
            for model, named, *flags in [
                    (large, "weights, KV cache and swap space: exceed the memory of this worker (got "),
                    (large, "weights, KV cache and swap space: exceed the memory of this worker (got ",
                     "--load-format=dummy"),
                    (MODEL, "KV cache: two blocks of one token do not fit (got ",
                     "--kv-cache-memory-bytes=1KiB"),
                    (MODEL, "--num-gpu-blocks-override: ", "--num-gpu-blocks-override=2147483647"),
            ]:
                with self.subTest(model=model, flags=flags):
                    done = subprocess.run(
                        ["prlimit", "--as=4294967296", os.path.join(BIN, "quire_worker"),
                         "--device=cpu", "--kv-cache-memory-bytes=64MiB", "--swap-space=0", listen,
                         "--model", model, *flags],
                        capture_output=True, text=True, timeout=60, check=False)
                    self.assertEqual(done.returncode, 4, done.stderr)
                    self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
                    self.assertIn(named, done.stderr)
                    self.assertRegex(done.stderr, r"\(got \d+( bytes)?, limit \d+( bytes)?\)")

    def test_flags_of_both_programs_from_a_file_and_the_environment(self):
        with tempfile.TemporaryDirectory(prefix="quire-test-") as folder:
            path = os.path.join(folder, "flags")
            with open(path, "w", encoding="utf-8") as file:
                file.write("# what this machine has\n--block-size=8\n--max-num-seqs 5\n"
                           "--num-gpu-blocks-override=99\n")
            under = ["env", "FLAGS_num_gpu_blocks_override=300"]
            with Served(f"--flagfile={path}", "--fromenv=num-gpu-blocks-override", under=under) as served:
                with grpc.insecure_channel(served.address) as channel:
                    info = server_info(channel)
            self.assertEqual((info.block_size_tokens, info.max_sequences, info.num_blocks), (8, 5, 299))

            with open(path, "a", encoding="utf-8") as file:
                file.write("block-size=16\n")
            self.assertEqual(self.refusal("--model", MODEL, f"--flagfile={path}"),
                             (2, f"quire: serve: --flagfile: {path}:5: not a flag"))

    def test_help_lists_the_flags_of_all_programs(self):
        help_of = {}
        for command in (["quire", "serve"], ["quire_gateway"], ["quire_scheduler"], ["quire_worker"]):
            done = subprocess.run([os.path.join(BIN, command[0]), *command[1:], "--help"],
                                  capture_output=True, text=True, timeout=20, check=True)
            help_of[command[0]] = set(re.findall(r"(?m)^  --(?:\[no-\])?([a-z-]+)", done.stdout))
        self.assertEqual(help_of.pop("quire"), set().union(*help_of.values()))

        # Each flag that only the worker has goes to the worker, except the flags that serve sets.
        of_serve = {"listen", "rank", "ranks-on-host", "tensor-parallel-size"}
        source = os.path.join(os.environ["QUIRE_SOURCE"], "deploy/cli/serve_arguments.cc")
        with open(source, encoding="utf-8") as file:
            names = re.search(r"kWorkerFlags = {(.*?)}", file.read(), re.S)[1]
        for flag in help_of["quire_worker"] - help_of["quire_scheduler"] - of_serve:
            self.assertIn(f'"{flag}"', names)


if __name__ == "__main__":
    unittest.main(verbosity=2)
