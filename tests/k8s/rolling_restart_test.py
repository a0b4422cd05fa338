#!/usr/bin/python3
"""Every pod of an overlay is replaced under load, as the manifests say it: the workers, one rank after the
other, then both schedulers at once, of which one drains; or a whole server by a new one. Clients that
resume lose nothing: each answer is the undisturbed one."""
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import time
import unittest
import urllib.request

import own_names

NAMES = own_names.enter()

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/integration"), str(ROOT / "tests/tools"),
                str(ROOT / "tests/k8s/cluster"), str(ROOT / "deploy/clients/python")]

from quire_server import BIN, MODEL, Answer, Failure, api  # noqa: E402
import grpc  # noqa: E402
import load as http_load  # noqa: E402
import pods  # noqa: E402
import quire_client  # noqa: E402

NUM_STREAMS = 6  # of the Python client, at once; and two processes of the C++ client
TEXT = b"Once upon a time, there was a little bear"
SAMPLED = {"temperature": 1.0, "top_p": 0.95, "repetition_penalty": 1.1, "seed": 7}
LONG = {"max_tokens": 400, "ignore_eos": True}
REQUESTS = [
    api.GenerateRequest(text=TEXT, sampling={"temperature": 0}, stopping=LONG),
    api.GenerateRequest(text=TEXT, sampling=SAMPLED, stopping=LONG, response={"logprobs": 2}),
    api.GenerateRequest(text=b"The cat", sampling=SAMPLED, stopping=LONG, n=2),
    api.GenerateRequest(token_ids=api.TokenIds(ids=range(300, 340)), sampling=SAMPLED, stopping=LONG),
]
CLI = ["generate", "--json", "--temperature=1", "--seed=7", "--max-tokens=300", "--ignore-eos",
       "--prompt=The dog"]
# Slow enough that answers are under way all the time, small enough for any machine.
WORKER_FLAGS = ["--cpu-isa=portable", "--threads=1", "--kv-cache-memory-bytes=64MiB",
                "--swap-space=64MiB"]
FLAGS = {"serve": WORKER_FLAGS, "quire_worker": WORKER_FLAGS}


class CountResumed(grpc.UnaryStreamClientInterceptor):
    """Counts the calls that resume a request."""

    def __init__(self):
        self.count = 0

    def intercept_unary_stream(self, continuation, client_call_details, request):
        self.count += request.HasField("resume")
        return continuation(client_call_details, request)


def essence(answer):
    """Returns the parts of an answer that must not change, by sequence."""
    return {index: (answer.tokens[index], answer.text[index], answer.finished[index].reason,
                    [(each.token_id, each.logprob) for position in answer.logprobs[index]
                     for each in position.top])
            for index in answer.finished}


class Load:
    """Clients that ask again and again, until they are told to stop."""

    def __init__(self, target):
        self.answers = []  # number of the request, essence
        self.outputs = []  # of the C++ client
        self.failures = []
        self.resumed = CountResumed()
        self.num_under_way = 0
        self._target = target
        self._is_over = threading.Event()
        self._threads = [threading.Thread(target=self._guarded, args=(self._ask_again, i))
                         for i in range(NUM_STREAMS)]
        self._threads += [threading.Thread(target=self._guarded, args=(self._run_again,))
                          for _ in range(2)]
        for thread in self._threads:
            thread.start()

    def _guarded(self, run, *arguments):
        try:
            run(*arguments)
        except Exception as error:  # noqa: BLE001  (shown by the test)
            self.failures.append(str(Failure(error)) if isinstance(error, grpc.RpcError)
                                 else repr(error))

    def _ask_again(self, number):
        options = [*quire_client.CHANNEL_OPTIONS, ("grpc.use_local_subchannel_pool", 1)]
        with grpc.insecure_channel(self._target, options=options) as plain:
            channel = grpc.intercept_channel(plain, self.resumed)
            while not self._is_over.is_set():
                number = (number + 1) % len(REQUESTS)
                answer = Answer()
                for message in quire_client.generate([channel], REQUESTS[number]):
                    answer.add(message)  # asserts that positions have no gap or repeat
                self.answers.append((number, essence(answer)))

    def _run_again(self):
        while not self._is_over.is_set():
            self.outputs.append(run_cli(self._target))

    def stop(self):
        self._is_over.set()
        for thread in self._threads:
            thread.join()


def kill_program(pod):
    """Kills the program that `quire supervise` runs in a pod."""
    pid = pod.process.pid
    [program] = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="utf-8").split()
    os.kill(int(program), signal.SIGKILL)


def resumed_by(gateway):
    """Returns the number of streams that a gateway's pod has resumed."""
    with urllib.request.urlopen(f"http://{gateway.address}:{gateway.port('http')}/metrics", timeout=20) as response:
        text = response.read().decode()
    return float(re.search(r"(?m)^quire_gateway_resumed_streams_total (\S+)$", text)[1])


def run_cli(target):
    done = subprocess.run([os.path.join(BIN, "quire"), *CLI, "--server", target], text=True,
                          stdin=subprocess.DEVNULL, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


class RollingRestartTest(unittest.TestCase):

    def test_workers_and_schedulers_of_one_rank(self):
        self.roll_all_out(ROOT / "tests/k8s/testdata/one-worker")

    def test_workers_and_schedulers_of_two_ranks(self):
        self.roll_all_out(ROOT / "k8s/overlays/multi-pod")

    def test_clients_that_know_all_schedulers(self):
        self.roll_all_out(ROOT / "tests/k8s/testdata/one-worker", "quire-schedulers")

    def test_a_server_in_one_pod(self):
        self.roll_all_out(ROOT / "k8s/overlays/cpu", "quire-cpu")

    def test_http_streams_through_gateways(self):
        questions = [http_load.make_question(number, 600) for number in range(8)]
        with pods.Cluster(ROOT / "tests/k8s/testdata/gateways", NAMES, MODEL, FLAGS) as cluster:
            gateways = cluster.pods_of("quire-multi-pod-api")
            clients = [http_load.HttpClient(http_load.Server(target="", api=f"{gateways[i % 2].address}:8000"))
                       for i in range(NUM_STREAMS)]
            expected = [http_load.answer_of(clients[0], each) for each in questions]
            load = http_load.Load(clients, questions, expected)
            load.start()
            try:
                load.wait_until_flowing()
                [active] = [each for each in cluster.pods_of("quire-scheduler") if each.is_ready]
                kill_program(active)
                for workload in cluster.workloads():
                    if workload["metadata"]["name"] != "quire-multi-pod-api":  # nothing resumes its streams
                        self.wait_for_tokens(load)
                        cluster.roll_out(workload)
                self.wait_for_tokens(load)
            finally:
                load.stop()
            self.assertEqual(cluster.faults, [])
            num_resumed = sum(resumed_by(each) for each in gateways)
        tally = load.tally(0.0)
        self.assertEqual((tally.lost, tally.num_different), ([], 0))
        self.assertGreaterEqual(tally.num_right, NUM_STREAMS)
        self.assertGreater(num_resumed, 0, "nothing was interrupted")
        print(f"gateways: {tally.num_right} answers as undisturbed, {num_resumed:.0f} streams that went on",
              file=sys.stderr)

    def roll_all_out(self, folder, service="quire-multi-pod"):
        with pods.Cluster(folder, NAMES, MODEL, FLAGS) as cluster:
            target = cluster.target(service)
            expected, output = self.undisturbed(target)
            load = Load(target)
            try:
                for workload in cluster.workloads():
                    self.wait_for_answers(load, 2)  # more of them
                    cluster.roll_out(workload)
                self.wait_for_answers(load, 2)
            finally:
                load.stop()
            self.assertEqual(cluster.faults, [])
        self.assertEqual(load.failures, [])
        self.assertGreater(load.resumed.count, 0, "nothing was interrupted")
        for number, answer in load.answers:
            self.assertEqual(answer, expected[number])
        self.assertGreater(len(load.outputs), 0)
        for each in load.outputs:
            self.assertEqual(each, output)
        print(f"{folder.name} by {service}: {len(load.answers)} answers and {len(load.outputs)} outputs as "
              f"undisturbed, {load.resumed.count} calls that went on", file=sys.stderr)

    def undisturbed(self, target):
        with grpc.insecure_channel(target) as channel:
            answers = []
            for request in REQUESTS:
                answers.append(Answer())
                for message in quire_client.generate([channel], request):
                    answers[-1].add(message)
        return [essence(each) for each in answers], run_cli(target)

    def wait_for_tokens(self, load):
        """Waits until each client has had further tokens."""
        begin = time.monotonic()
        while not load.has_flowed_since(begin):
            self.assertLess(time.monotonic() - begin, 300, "tokens do not come")
            time.sleep(0.05)

    def wait_for_answers(self, load, num_more):
        wanted = len(load.answers) + num_more
        for _ in range(6000):
            if len(load.answers) >= wanted:
                return
            self.assertEqual(load.failures, [])
            threading.Event().wait(0.05)
        self.fail("answers do not come")


if __name__ == "__main__":
    unittest.main(verbosity=2)
