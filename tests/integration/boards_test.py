#!/usr/bin/python3
"""A Prometheus scrapes a loaded server, its worker and a gateway: panels and alerts have numbers, none has a NaN,
idle panels neither, and the blocks add up in every scrape.

Skipped where there is no prometheus (deploy/prometheus/README.md says how to get it). QUIRE_BOARDS_SECONDS
is how long the server is loaded.
"""
import collections
import http.client
import json
import math
import os
import pathlib
import random
import re
import shutil
import threading
import time
import unittest

from kv_cache_test import prompt_of
from prometheus_server import Prometheus, free_address
from quire_server import BIN, MODEL, Process, Server, api, api_grpc, generate, metric, server_info
import grpc

LOAD_SECONDS = float(os.environ.get("QUIRE_BOARDS_SECONDS", "60"))
BOARDS = pathlib.Path(os.environ["QUIRE_SOURCE"]) / "deploy/grafana"
NUM_CLIENTS = 24
NUM_HTTP_CLIENTS = 2
CHAT = {"messages": [{"role": "user", "content": "Once upon a time"}], "max_tokens": 30, "stream": True}
EMPTY = {"QuireAbsent"}  # the server is not absent


def ask(channel, info, dice):
    """Makes one request: served, refused, cancelled, wrong, or of several sequences."""
    kind = dice.choice(["plain", "plain", "shared", "group", "cancelled", "wrong"])
    request = api.GenerateRequest(
        token_ids=prompt_of(info, dice.randint(20, 120),
                            first=0 if kind == "shared" else dice.randint(1, 1000)),
        n={"group": 3, "wrong": 99}.get(kind, 1), sampling={"temperature": 1, "seed": dice.randint(1, 99)},
        stopping={"max_tokens": dice.randint(20, 100), "ignore_eos": True})
    if kind != "cancelled":
        generate(channel, request)
        return
    stream = api_grpc.GenerationServiceStub(channel).Generate(request, timeout=60)
    next(stream)
    stream.cancel()


class Gateway:
    """A gateway of its own in front of a server."""

    def __init__(self, server):
        self._process = Process([os.path.join(BIN, "quire_gateway"), f"--model={MODEL}", "--port=0", "--http-port=0",
                                 f"--scheduler={server.address}"])
        found = self._process.wait_for(r"^quire_gateway: listens api=(\S+) http=(\S+)")
        self.address, self.metrics_address = found.groups()

    def chat(self):
        """Returns the status of one chat, whose answer is read to its end."""
        connection = http.client.HTTPConnection(self.address, timeout=60)
        try:
            connection.request("POST", "/v1/chat/completions", json.dumps(CHAT))
            response = connection.getresponse()
            response.read()
            return response.status
        finally:
            connection.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.kill()


class Load:
    """Clients that ask until the block ends."""

    def __init__(self, server, gateway):
        self._server = server
        self._gateway = gateway
        self._end = threading.Event()
        self.errors = []
        self._threads = [threading.Thread(target=self._run, args=(i,)) for i in range(NUM_CLIENTS)]
        self._threads += [threading.Thread(target=self._run_http) for _ in range(NUM_HTTP_CLIENTS)]

    def _run(self, i):
        dice = random.Random(i)
        expected = (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.INVALID_ARGUMENT)
        with self._server.channel() as channel:
            info = server_info(channel)
            while not self._end.is_set():
                try:
                    ask(channel, info, dice)
                except grpc.RpcError as error:
                    if error.code() not in expected:
                        self.errors.append(error)
                    self._end.wait(0.1)

    def _run_http(self):
        while not self._end.is_set():
            status = self._gateway.chat()
            if status not in (200, 429):
                self.errors.append(status)
            self._end.wait(0.1)

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self._end.set()
        for thread in self._threads:
            thread.join()


class Scrapes:
    """Reads the metrics all the time, and keeps the scrapes in which blocks do not add up."""

    def __init__(self, server):
        self._server = server
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.num_scrapes = 0
        self.wrong = []

    def _run(self):
        connection = http.client.HTTPConnection(self._server.http_address, timeout=20)
        while not self._end.is_set():
            connection.request("GET", "/metrics/native")
            text = connection.getresponse().read().decode()
            self.num_scrapes += 1
            for tier in ("device", "host"):
                states = re.findall(rf'(?m)^quire_kv_blocks{{.*tier="{tier}".*}} (\S+)$', text)
                capacity = re.search(rf'(?m)^quire_kv_blocks_capacity{{tier="{tier}"}} (\S+)$', text)
                if sum(map(float, states)) != float(capacity.group(1)):
                    self.wrong.append((tier, states, capacity.group(1)))
        connection.close()

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._end.set()
        self._thread.join()


def panel_expressions():
    for path in sorted(BOARDS.glob("*.json")):
        board = json.loads(path.read_text(encoding="utf-8"))
        for panel in board["panels"]:
            for target in panel.get("targets", []):
                expression = target["expr"].replace("$instance", ".*").replace("$__rate_interval", "20s")
                assert "$" not in expression, expression
                yield f"{board['title']}: {panel['title']}, {target['legendFormat']}", expression


def panel_numbers(prometheus):
    return {title: prometheus.query(expression) for title, expression in panel_expressions()}


def wait_for(prometheus, expression):
    end = time.monotonic() + 30
    while not prometheus.query(expression):
        assert time.monotonic() < end, expression
        time.sleep(0.2)


def alert_expressions(prometheus):
    """Yields each alert's expression, changed so that it has a value whether the alert fires or not. Six hours
    become six seconds."""
    for group in prometheus.get("rules")["groups"]:
        for rule in group["rules"]:
            assert rule["health"] == "ok", rule
            expression = re.sub(r" (==|>) ", r" \1 bool ", rule["query"])
            expression = expression.replace("[30m] offset 6h", "[6s] offset 6s")
            yield rule["name"], expression


@unittest.skipUnless(shutil.which("prometheus"), "prometheus is not installed")
class BoardsTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        """Runs a server without a worker, then without load, then with load and a kill after a third of it.
        Evaluates the panels in each time, and the alerts under load."""
        worker = free_address()  # also of the worker that replaces the killed one
        events = "--kv-events-endpoint=tcp://" + free_address()
        with Server("--block-size=8", "--preemption-mode=swap", "--max-queued-requests=8", events,
                    with_worker=False,
                    worker_flags=["--num-gpu-blocks-override=120", "--kv-backend=vmm",
                                  "--http-port=" + worker.rpartition(":")[2]]) as server, \
                Gateway(server) as gateway, \
                Prometheus(server.http_address, worker, gateway.metrics_address) as prometheus:
            cls.status_while_loading = gateway.chat()
            wait_for(prometheus, "rate(quire_ttft_seconds_count[20s]) == 0")
            cls.loading = panel_numbers(prometheus)
            server.start_worker()
            server.wait_until_ready()
            wait_for(prometheus, "rate(quire_worker_steps_total[20s]) == 0")
            cls.idle = panel_numbers(prometheus)
            with Scrapes(server) as scrapes, Load(server, gateway) as load:
                time.sleep(LOAD_SECONDS / 3)
                server.worker.kill()
                server.start_worker()
                time.sleep(2 * LOAD_SECONDS / 3)
                cls.panels = panel_numbers(prometheus)
                cls.alerts = {name: prometheus.query(expression)
                              for name, expression in alert_expressions(prometheus)}
            cls.scrapes, cls.errors = scrapes, load.errors
            cls.samples = prometheus.query('{__name__=~"quire_kv_blocks|quire_kv_blocks_capacity"}[1h]')
            cls.counts = {line: metric(server, line) for line in (
                'quire_preemptions_total{mode="swap"}', 'quire_requests_total{outcome="abort"}',
                'quire_admission_rejects_total{reason="queue_full"}',
                'quire_admission_rejects_total{reason="invalid"}',
                'quire_prefix_cache_tokens_total{result="hit"}', "quire_worker_group_losses_total")}

    def test_the_load_was_what_it_should_be(self):
        self.assertEqual(self.errors, [])
        self.assertEqual(self.status_while_loading, 503)
        for line, value in self.counts.items():
            self.assertGreater(value, 0, line)

    def check_finite(self, results):
        self.assertGreater(len(results), 20)
        for title, series in results.items():
            with self.subTest(title):
                self.assertEqual([s for s in series if not math.isfinite(float(s["value"][1]))], [])

    def check_there(self, results):
        for title, series in results.items():
            with self.subTest(title):
                self.assertEqual(bool(series), title not in EMPTY)

    def test_every_panel_has_numbers_and_all_are_finite(self):
        self.check_there(self.panels)
        self.check_finite(self.panels)

    def test_no_panel_has_a_nan_while_nobody_comes_or_workers_are_away(self):
        self.check_finite(self.loading)
        self.check_finite(self.idle)

    def test_every_alert_and_recorded_series_has_numbers_and_all_are_finite(self):
        self.check_there(self.alerts)
        self.check_finite(self.alerts)

    def test_states_of_blocks_add_up_in_every_scrape(self):
        totals = collections.Counter()  # by tier and time: states minus capacity
        for series in self.samples:
            sign = -1 if series["metric"]["__name__"].endswith("_capacity") else 1
            for at, value in series["values"]:
                totals[series["metric"]["tier"], at] += sign * float(value)
        self.assertGreater(len(totals), 20)
        self.assertEqual([key for key, total in totals.items() if total != 0], [])
        print(f"{self.scrapes.num_scrapes} scrapes beside Prometheus'")
        self.assertGreater(self.scrapes.num_scrapes, 100)
        self.assertEqual(len(self.scrapes.wrong), 0, self.scrapes.wrong[:3])


if __name__ == "__main__":
    unittest.main(verbosity=2)
