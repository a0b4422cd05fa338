#!/usr/bin/python3
"""A worker's own HTTP port: health while it loads, serves and hangs, and metrics that agree with the scheduler's."""
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import unittest
import urllib.error
import urllib.request

from kv_cache_test import prompt_of
from quire_server import BIN, MODEL, Process, Server, api, api_grpc, grpc, metric, server_info
from serve_test import Served, eventually

# Metrics of a worker, each with the scheduler's metric that has the same value for each of its workers.
AS_THE_SCHEDULER = {
    "quire_worker_steps_total": "quire_steps_total",
    'quire_worker_tokens_total{kind="sampled"}': 'quire_tokens_total{kind="generated"}',
    'quire_worker_swap_bytes_total{direction="out"}': 'quire_kv_swap_bytes_total{direction="out"}',
    'quire_worker_swap_bytes_total{direction="in"}': 'quire_kv_swap_bytes_total{direction="in"}',
    "quire_worker_swap_in_failures_total": "quire_kv_swap_in_failures_total",
    'quire_worker_kv_blocks_capacity{tier="device"}': 'quire_kv_blocks_capacity{tier="device"}',
    'quire_worker_kv_blocks_capacity{tier="host"}': 'quire_kv_blocks_capacity{tier="host"}'}
LISTENS = r"^quire_worker: listens listen=(\S+) http=(\S+)$"


def get(address, path):
    """Returns status and text."""
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def samples(address):
    """Returns all lines of /metrics: values by name and labels, as they are spelled there."""
    status, text = get(address, "/metrics")
    assert status == 200, status
    return {name: float(value) for name, value in re.findall(r"(?m)^([^#\s]\S*) (\S+)$", text)}


def health(address):
    return [get(address, path)[0] for path in ("/livez", "/readyz", "/healthz")]


def request(seed, num_tokens):
    return api.GenerateRequest(text=b"Once upon a time", sampling={"temperature": 1, "seed": seed},
                               stopping={"max_tokens": num_tokens, "ignore_eos": True})


def listening_sockets(pid):
    """Returns the numbers of the process's TCP sockets that take connections."""
    listening = set()
    for table in ("tcp", "tcp6"):
        with open(f"/proc/{pid}/net/{table}", encoding="utf-8") as file:
            rows = [line.split() for line in file.readlines()[1:]]
        listening |= {row[9] for row in rows if row[3] == "0A"}
    files = [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]
    return listening & {file[len("socket:["):-1] for file in files if file.startswith("socket:[")}


class Workers:
    """Starts the workers of one group and their scheduler. `with Workers(...)` stops all of them."""

    def __init__(self, *flags_by_rank, scheduler_flags=()):
        self._folder = tempfile.TemporaryDirectory(prefix="quire-test-")
        size, addresses = len(flags_by_rank), []
        self.processes, self.http = [], []
        try:
            for rank, flags in enumerate(flags_by_rank):
                addresses.append(f"unix:{self._folder.name}/w{rank}.sock")
                self.processes.append(Process([
                    os.path.join(BIN, "quire_worker"), "--model", MODEL, "--listen", addresses[-1],
                    f"--rank={rank}", f"--tensor-parallel-size={size}", f"--ranks-on-host={size}",
                    "--http-port=0", "--threads=1", *flags]))
                self.http.append(self.processes[-1].wait_for(LISTENS).group(2))
            self.scheduler = Process([
                os.path.join(BIN, "quire_scheduler"), "--model", MODEL, "--port=0", "--http-port=0",
                "--workers", ",".join(addresses), *scheduler_flags])
            self.processes.append(self.scheduler)
            ready = self.scheduler.wait_for(r"^quire_scheduler: ready grpc=(\S+) http=(\S+)")
            self.address, self.http_address = ready.groups()
        except BaseException:
            self.__exit__()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes:
            process.kill()
        self._folder.cleanup()


class HealthTest(unittest.TestCase):

    def test_a_worker_that_loads_is_live_and_not_ready(self):
        with tempfile.TemporaryDirectory() as folder:
            worker = Process([os.path.join(BIN, "quire_worker"), "--model", MODEL, "--http-port=0",
                              f"--listen=unix:{folder}/w.sock", "--fail-points=stick-in-load"])
            try:
                listen, http = worker.wait_for(LISTENS).groups()
                self.assertEqual(listen, f"unix:{folder}/w.sock")
                self.assertEqual(health(http), [200, 503, 503])
                self.assertEqual(get(http, "/readyz")[1], "loading\n")
                now = samples(http)
                self.assertEqual(now["quire_worker_ready"], 0)
                self.assertEqual(now["quire_worker_live"], 1)
                self.assertEqual(now['quire_worker_phase{phase="loading"}'], 1)
                self.assertLess(now["quire_worker_load_ratio"], 1)
                self.assertEqual(now['quire_worker_memory_bytes{kind="weights"}'], 0)
                self.assertEqual(get(http, "/metrics/native")[0], 404)
            finally:
                worker.kill()

    def test_sigterm_ends_a_worker_with_connections_of_scrapers(self):
        with tempfile.TemporaryDirectory() as folder:
            worker = Process([os.path.join(BIN, "quire_worker"), "--model", MODEL, "--http-port=0",
                              f"--listen=unix:{folder}/w.sock"])
            try:
                http = worker.wait_for(LISTENS).group(2)
                worker.wait_for("^quire_worker: ready ")
                self.assertEqual(health(http), [200, 200, 200])
                host, _, port = http.rpartition(":")
                with socket.create_connection((host, int(port)), timeout=60) as idle:
                    idle.sendall(b"GET /metrics HTTP/1.1\r\n")
                    worker.popen.send_signal(signal.SIGTERM)
                    self.assertEqual(worker.popen.wait(timeout=60), 0)
                self.assertEqual(os.listdir(folder), [])
            finally:
                worker.kill()

    def test_who_stands_still_is_not_live_and_who_waits_for_it_is(self):
        # With this step timeout no thread waits for the stuck executor, so the process does not end itself.
        with Workers((), ("--fail-points=stick-at-step=3",),
                     scheduler_flags=["--step-timeout=600"]) as group, \
                grpc.insecure_channel(group.address) as channel:
            waits, stuck = group.http
            self.assertEqual(health(waits) + health(stuck), 6 * [200])
            stream = api_grpc.GenerationServiceStub(channel).Generate(request(0, 100), timeout=600)
            next(stream)

            eventually(lambda: health(stuck) == [503, 503, 503], seconds=120)
            self.assertEqual(get(stuck, "/readyz")[1], "stuck\n")
            self.assertEqual(samples(stuck)["quire_worker_live"], 0)
            self.assertEqual(samples(stuck)["quire_worker_ready"], 0)
            self.assertEqual(health(waits), [200, 200, 200])
            self.assertEqual(samples(waits)["quire_worker_waits_for_rank"], 1)
            self.assertEqual(samples(waits)['quire_worker_phase{phase="executing"}'], 1)
            stream.cancel()


class StartTest(unittest.TestCase):

    def test_a_taken_port_is_one_line_and_leaves_nothing_behind(self):
        with socket.socket() as taken, tempfile.TemporaryDirectory() as folder:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            done = subprocess.run(
                [os.path.join(BIN, "quire_worker"), "--model", MODEL, f"--http-port={port}",
                 f"--listen=unix:{folder}/w.sock", "--rank=1", "--tensor-parallel-size=2",
                 "--device=cpu"], capture_output=True, text=True, timeout=120, check=False)
            self.assertEqual((done.returncode, done.stdout), (1, ""))
            self.assertRegex(done.stderr, r"\Aquire_worker: http: cannot listen on "
                             rf"127\.0\.0\.1:{port} \(.*\)\n\Z")
            self.assertEqual(os.listdir(folder), [])

    def test_a_taken_address_leaves_no_file_either(self):
        with socket.socket() as taken, tempfile.TemporaryDirectory() as folder:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            blocked = os.path.join(folder, "w.sock")
            os.mkdir(blocked)
            done = subprocess.run(
                [os.path.join(BIN, "quire_worker"), "--model", MODEL, f"--listen=unix:{blocked}",
                 "--rank=1", "--tensor-parallel-size=2", "--device=cpu"],
                capture_output=True, text=True, timeout=120, check=False)
            self.assertEqual((done.returncode, done.stderr.count("\n")), (1, 1), done.stderr)
            self.assertEqual(os.listdir(folder), ["w.sock"])

    def test_without_the_flag_nothing_is_said_and_nothing_listens(self):
        with Server() as server:
            self.assertNotIn("listens", server.worker.text())
            self.assertEqual(listening_sockets(server.worker.popen.pid), set())
            self.assertEqual(len(listening_sockets(server.scheduler.popen.pid)), 2)  # gRPC, HTTP


class MetricsTest(unittest.TestCase):

    def test_workers_count_what_the_scheduler_ordered(self):
        flags = ["--num-gpu-blocks-override=40"]
        with Workers(flags, flags, scheduler_flags=["--block-size=8", "--preemption-mode=swap",
                                                    "--noenable-prefix-caching"]) as group, \
                grpc.insecure_channel(group.address) as channel:
            info = server_info(channel)

            def ask(num_prompt, max_tokens, first):
                return api_grpc.GenerationServiceStub(channel).Generate(api.GenerateRequest(
                    token_ids=prompt_of(info, num_prompt, first=first), sampling={"temperature": 0},
                    stopping={"max_tokens": max_tokens, "ignore_eos": True}), timeout=300)

            for stream in [ask(40, 100, 100 * i) for i in range(4)]:
                self.assertGreater(len(list(stream)), 0)
            # The next step releases the sequences that ended.
            self.assertGreater(len(list(ask(3, 1, 0))), 0)

            def of_scheduler():
                return {ours: metric(group, theirs) for ours, theirs in AS_THE_SCHEDULER.items()}

            for rank, http in enumerate(group.http):
                with self.subTest(rank=rank):
                    # Worker and scheduler each count a moment after the answer was sent.
                    eventually(lambda h=http: {name: samples(h)[name] for name in AS_THE_SCHEDULER}
                               == of_scheduler())
                    now = samples(http)
                    self.assertGreater(now['quire_worker_swap_bytes_total{direction="out"}'], 0)
                    self.assertGreater(now['quire_worker_kv_blocks{tier="host"}'], 0)
                    self.assertEqual(now["quire_worker_sequences"], 1)
                    self.assertEqual(now['quire_worker_kv_blocks{tier="device"}'], 1)
                    for part in ("build", "swap", "forward", "compute", "sample", "collective", "step"):
                        name = f'quire_worker_step_duration_seconds_count{{part="{part}"}}'
                        self.assertEqual(now[name], now["quire_worker_steps_total"])
                        self.assertGreater(now[name.replace("_count", "_sum")], 0)
                    block = metric(group, "quire_kv_block_bytes")
                    self.assertEqual(now['quire_worker_memory_bytes{kind="kv"}'], 40 * block)
                    self.assertGreater(now['quire_worker_memory_bytes{kind="weights"}'], 1e6)
                    self.assertEqual(now["quire_worker_epochs_total"], 1)
                    self.assertEqual(now['quire_grpc_requests_total{code="OK",method="BeginEpoch"}'], 1)
                    self.assertEqual(now['quire_grpc_open_calls{method="Steps"}'], 1)
                    eventually(lambda h=http: samples(h)["quire_worker_scrub_passes_total"] >= 1)
                    self.assertGreater(now["process_resident_memory_bytes"], 1e6)
                    line = re.search(r"(?m)^quire_worker_info{.*$", get(http, "/metrics")[1])[0]
                    self.assertIn(f'rank="{rank}",tensor_parallel_size="2"', line)
            # The epoch's label, by which a group is told from others.
            epochs = [{name for name in samples(http) if name.startswith("quire_worker_group_epoch{")}
                      for http in group.http]
            self.assertEqual(epochs[0], epochs[1])
            self.assertEqual(len(epochs[0]), 1)

    @unittest.skipUnless(shutil.which("promtool"), "promtool is not installed")
    def test_promtool_has_no_complaint_about_our_names(self):
        with Workers(()) as group:
            text = get(group.http[0], "/metrics")[1]
        check = subprocess.run(["promtool", "check", "metrics"], input=text, text=True,
                               capture_output=True, check=False)
        self.assertEqual((check.returncode, check.stdout + check.stderr), (0, ""))


class ServeTest(unittest.TestCase):

    def test_serve_gives_each_rank_a_port_that_outlives_its_process(self):
        with Served("-tp", "2", "--worker-http-port=0") as server:
            http = [server.wait_for(rf"^quire: worker {rank} http=(\S+)$").group(1) for rank in (0, 1)]
            self.assertEqual(len(set(http)), 2)
            before = server.text().index("quire: ready ")
            for rank in (0, 1):
                self.assertLess(server.text().index(f"quire: worker {rank} http="), before)
                self.assertEqual(samples(http[rank])["quire_worker_ready"], 1)
            expected = server.answers(0)
            server.replace("worker", signal.SIGKILL)
            self.assertEqual(eventually(lambda: server.answers(0)), expected)
            for address in http:
                eventually(lambda a=address: samples(a)["quire_worker_steps_total"] > 0)

    def test_a_rank_whose_port_is_taken_ends_the_start(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            done = subprocess.run(
                [os.path.join(BIN, "quire"), "serve", "--model", MODEL, "--port=0", "--http-port=0",
                 f"--worker-http-port={port}"], capture_output=True, text=True, timeout=120, check=False)
            self.assertEqual((done.returncode, done.stdout), (1, ""), done.stderr)
            self.assertIn(f"quire_worker: http: cannot listen on 127.0.0.1:{port} ", done.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
