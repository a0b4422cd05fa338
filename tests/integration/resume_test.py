#!/usr/bin/python3
"""Answers outlive the scheduler. It is killed while they stream, started again, and continues behind the
tokens that clients have. Each answer is the undisturbed one: tokens, text, bits of log-probabilities.

QUIRE_NUM_KILLS in the environment is the number of kills, 2 by default."""
import os
import struct
import subprocess
import sys
import threading
import time
import unittest

from quire_server import (BIN, Answer, Failure, Server, api, api_grpc, generate, get_load, server_info,
                          wait_until_idle)
import grpc

sys.path.insert(0, os.path.join(os.environ["QUIRE_SOURCE"], "deploy/clients/python"))
import quire_client  # noqa: E402

NUM_KILLS = int(os.environ.get("QUIRE_NUM_KILLS", "2"))
TOKENS_BEFORE_KILL = min(30, 220 // NUM_KILLS)  # of each stream, each time
TEXT = "Once upon a time, there was a little bear"
SAMPLED = {"temperature": 1.0, "top_p": 0.95, "repetition_penalty": 1.1, "seed": 7}
LONG = {"max_tokens": 250, "ignore_eos": True}
CLI_FLAGS = ["--temperature", "1", "--seed", "7", "--max-tokens", "250", "--ignore-eos"]
CLI = ["quire", "generate", "--server", "ADDRESS", "--json", *CLI_FLAGS]
PROGRAMS = {"cli": [*CLI, "--prompt", TEXT],
            "cli three": [*CLI, "--prompt", TEXT, "--n", "3", "--logprobs", "2"],
            "cli tokens": [*CLI, "--prompt-token-ids", ",".join(map(str, range(300, 340)))],
            "cli three tokens": [*CLI, "--prompt-token-ids", "300,301,302", "--n", "3"],
            "cpp": ["generate_example", "ADDRESS", TEXT, "7"]}


def late_stop_string(text):
    """Returns a stop string that ends this text after about two thirds of it, and not before."""
    for begin in range(len(text) * 2 // 3, len(text) - 8):
        stop = text[begin:begin + 8]
        if text.find(stop) == begin:
            return stop
    raise AssertionError("the text repeats itself")


def requests_for(channel):
    greedy = api.GenerateRequest(text=TEXT.encode(), n=2, sampling={"temperature": 0}, stopping=LONG)
    sampled = api.GenerateRequest(text=TEXT.encode(), sampling=SAMPLED, stopping=LONG)
    unseeded = api.GenerateRequest(text=b"The cat", sampling={"temperature": 0.8}, stopping=LONG)
    stop = api.GenerateRequest()
    stop.CopyFrom(sampled)
    stop.stopping.stop.append(late_stop_string(generate(channel, sampled).text[0].decode()).encode())
    logprobs = api.GenerateRequest(response={"logprobs": 3, "prompt_logprobs": 2})
    logprobs.MergeFrom(sampled)
    three = api.GenerateRequest(n=3)
    three.MergeFrom(sampled)
    three.stopping.ignore_eos = False
    tokens = api.GenerateRequest(token_ids=api.TokenIds(ids=range(300, 340)), n=3, sampling=SAMPLED,
                                 stopping=LONG, response={"logprobs": 0})
    beams = api.GenerateRequest(text=TEXT.encode(), n=2, beam_search={"num_beams": 3},
                                stopping={"max_tokens": 150})
    long_prompt = api.GenerateRequest(text=TEXT.encode() * 20, n=2, sampling=SAMPLED, stopping=LONG,
                                      response={"prompt_logprobs": 20})
    best = api.GenerateRequest(text=TEXT.encode(), n=2, best_of=4, sampling=SAMPLED, stopping=LONG)
    return {"greedy": greedy, "sampled": sampled, "unseeded": unseeded, "stop": stop,
            "logprobs": logprobs, "three": three, "tokens": tokens, "beams": beams, "best": best,
            "long prompt": long_prompt}


def bits(logprobs):
    def of(value):
        return struct.pack("<f", value)
    return [(of(each.logprob), [(top.token_id, of(top.logprob)) for top in each.top])
            for each in logprobs]


def essence(answer):
    """Returns the parts of an answer that must not change: of the prompt, and by sequence."""
    return bits(answer.prompt_logprobs), {
        index: (answer.tokens[index], answer.text[index], bits(answer.logprobs[index]),
                answer.finished[index].reason, answer.finished[index].matched_stop)
        for index in answer.finished}


class Streams:
    """Clients of all kinds, each in a thread."""

    def __init__(self, address, requests, programs):
        self.answers = {name: Answer() for name in requests}
        self.outputs = {name: "" for name in programs}
        self.failures = []
        self._progress = {name: 0 for name in [*requests, *programs]}
        self._threads = [
            threading.Thread(target=self._guarded, args=(self._stream, name, address, request))
            for name, request in requests.items()
        ] + [
            threading.Thread(target=self._guarded, args=(self._run, name, address, command))
            for name, command in programs.items()
        ]
        for thread in self._threads:
            thread.start()

    def _guarded(self, run, name, *arguments):
        try:
            run(name, *arguments)
        except Exception as error:  # noqa: BLE001  (shown by the test)
            what = Failure(error) if isinstance(error, grpc.RpcError) else repr(error)
            self.failures.append(f"{name}: {what}")
        self._progress[name] = None

    def _stream(self, name, address, request):
        with grpc.insecure_channel(address, options=quire_client.CHANNEL_OPTIONS) as channel:
            for message in quire_client.generate([channel], request):
                self.answers[name].add(message)  # asserts that positions have no gap or repeat
                self._progress[name] += len(message.chunk.token_ids)

    def _run(self, name, address, command):
        program, *arguments = [address if word == "ADDRESS" else word for word in command]
        process = subprocess.Popen([os.path.join(BIN, program), *arguments],
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        # A line of JSON has about 100 characters, and a token of text 4.
        characters_a_token = 120 if "--json" in arguments else 5
        while character := process.stdout.read(1):
            self.outputs[name] += character
            self._progress[name] = len(self.outputs[name]) // characters_a_token
        assert process.wait() == 0, process.stderr.read()
        process.stderr.close()
        process.stdout.close()

    def wait_for_tokens(self, num_tokens, held):
        """Waits until each running stream that is not held has num_tokens tokens. Returns the number of these
        streams."""
        deadline = time.monotonic() + 30
        while True:
            waited_for = [n for name, n in self._progress.items()
                          if n is not None and name not in held]
            if all(n >= num_tokens for n in waited_for):
                return len(waited_for)
            if time.monotonic() > deadline or self.failures:
                raise AssertionError(f"streams stand still: {self._progress} {self.failures}")
            time.sleep(0.002)

    def join(self):
        for thread in self._threads:
            thread.join()


class ResumeTest(unittest.TestCase):

    def test_every_answer_outlives_the_scheduler(self):
        # The server is so slow that streams are under way when the scheduler dies.
        with Server(worker_flags=["--cpu-isa=portable", "--threads=1"]) as server:
            with server.channel() as channel:
                requests = requests_for(channel)
                expected = {name: generate(channel, request)
                            for name, request in requests.items()}
            whole = Streams(server.address, {}, PROGRAMS)
            whole.join()
            self.assertEqual(whole.failures, [])

            streams = Streams(server.address, requests, PROGRAMS)
            num_broken = 0
            for kill in range(NUM_KILLS):
                num_broken += streams.wait_for_tokens((kill + 1) * TOKENS_BEFORE_KILL,
                                                      held=("beams", "best"))
                server.kill_scheduler()
            streams.join()
            # On a fast machine most streams may end before the last kill.
            self.assertGreater(num_broken, 4, "too few were under way to prove anything")

            self.assertEqual(streams.failures, [])
            for name in requests:
                if name != "unseeded":
                    self.assertEqual(essence(streams.answers[name]), essence(expected[name]), name)
            for name in PROGRAMS:
                self.assertEqual(sorted(streams.outputs[name].splitlines()),
                                 sorted(whole.outputs[name].splitlines()), name)
            server.wait_until_ready()  # no stream may have been under way at the last kill
            self.check_unseeded(server, requests["unseeded"], streams.answers["unseeded"])

    def check_unseeded(self, server, request, answer):
        """Checks that the answer kept the seed that the first scheduler chose."""
        request.sampling.seed = answer.started.seed
        with server.channel() as channel:
            self.assertEqual(essence(generate(channel, request)), essence(answer))
            wait_until_idle(server)


def behind(request, whole, num_tokens):
    """Returns the request that resumes behind num_tokens tokens of its answer."""
    resumed = api.GenerateRequest()
    resumed.CopyFrom(request)
    started = whole.started
    resumed.request_id = started.request_id
    resumed.resume.seed = started.seed
    resumed.resume.determinism_fingerprint = started.determinism_fingerprint
    resumed.resume.max_tokens = started.max_tokens
    resumed.resume.sequences.add(token_ids=whole.tokens[0][:num_tokens])
    return resumed


class FullQueueTest(unittest.TestCase):
    """Requests that the killed scheduler had accepted wait again, though new requests came first."""

    FLAGS = ["--max-num-seqs=2", "--max-queued-requests=3", "--max-queued-tokens=60"]

    def test_new_requests_take_nobodys_place(self):
        endless = api.GenerateRequest(text=TEXT.encode(), sampling=SAMPLED,
                                      stopping={"ignore_eos": True})
        request = api.GenerateRequest(text=TEXT.encode(), sampling=SAMPLED,
                                      stopping={"max_tokens": 20})
        with Server(*self.FLAGS, worker_flags=["--cpu-isa=portable", "--threads=1"]) as server:
            with server.channel() as channel:
                whole = generate(channel, request)
            server.kill_scheduler()
            server.wait_until_ready()
            with server.channel() as channel:
                stub = api_grpc.GenerationServiceStub(channel)
                new = [stub.Generate(endless) for _ in range(2)]
                self.wait_for(server, num_running_requests=2)
                new += [stub.Generate(endless) for _ in range(3)]
                self.wait_for(server, num_waiting_requests=3)
                with self.assertRaises(grpc.RpcError) as caught:
                    generate(channel, request)
                self.assertEqual(Failure(caught.exception).reason, "QUEUE_FULL")

                # Two requests ran and have tokens; three waited and have none. There are places for two
                # more, so that a tenant's share of the places is enough for all accepted requests.
                resumed = [behind(request, whole, 8), behind(request, whole, 3)]
                resumed[1].request_id = "of-another-client"
                for _ in range(5):
                    resumed.append(api.GenerateRequest())
                    resumed[-1].CopyFrom(request)
                    resumed[-1].resume.SetInParent()
                calls = [stub.Generate(each) for each in resumed]
                self.wait_for(server, num_waiting_requests=10)
                with self.assertRaises(grpc.RpcError) as caught:  # there are no more places
                    generate(channel, resumed[-1])
                self.assertEqual(Failure(caught.exception).reason, "QUEUE_FULL")
                self.assertIsNotNone(Failure(caught.exception).retry_delay)

                for call in new:
                    call.cancel()
                rests = [[token for message in call for token in message.chunk.token_ids]
                         for call in calls]
                wait_until_idle(server)
        self.assertEqual(rests, [whole.tokens[0][8:], whole.tokens[0][3:], *[whole.tokens[0]] * 5])

    def wait_for(self, server, **counts):
        deadline = time.monotonic() + 30
        while any(getattr(load := get_load(server), name) != n for name, n in counts.items()):
            self.assertLess(time.monotonic(), deadline, f"not {counts}:\n{load}")
            time.sleep(0.005)


class AbsentServerTest(unittest.TestCase):

    def test_clients_find_it_when_it_comes(self):
        # gRPC connects in the threads that wait in it, and every 5 s for clients that wait elsewhere. The
        # latter is switched off here, so that clients must connect by their own waits.
        example = os.path.join(os.environ["QUIRE_SOURCE"], "deploy/clients/python/generate_example.py")
        with Server() as server:
            server.scheduler.kill()
            clients = [subprocess.Popen(
                command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                env={**os.environ, "GRPC_CLIENT_CHANNEL_BACKUP_POLL_INTERVAL_MS": "0",
                     "PYTHONPATH": os.environ["QUIRE_PYTHON_STUBS"]})
                for command in (
                    [os.path.join(BIN, "quire"), "generate", "--server", server.address, "--prompt", TEXT],
                    [os.path.join(BIN, "generate_example"), server.address, TEXT],
                    [sys.executable, "-B", example, server.address, TEXT])]
            for client in clients:
                self.addCleanup(client.kill)
            time.sleep(1.5)  # by then each client was refused, or has had no answer
            server.start_scheduler(port=server.address.rpartition(":")[2])
            for client in clients:
                said = client.communicate(timeout=60)[1]
                self.assertEqual(client.returncode, 0, said)


class SmallerWorkerTest(unittest.TestCase):

    def test_a_stream_that_its_next_worker_cannot_finish_ends_with_an_error(self):
        request = api.GenerateRequest(text=TEXT.encode(), sampling=SAMPLED,
                                      stopping={"ignore_eos": True})  # to the end of the context
        with Server(worker_flags=["--cpu-isa=portable", "--threads=1"]) as server:
            restarted = []

            def restart_once():
                if not restarted:
                    restarted.append(True)
                    server.worker.kill()
                    server._worker_flags.append("--num-gpu-blocks-override=20")
                    server.start_worker()

            with server.channel() as channel:
                with self.assertRaises(grpc.RpcError) as caught:
                    generate(channel, request, on_message=restart_once)
                wait_until_idle(server)
        failure = Failure(caught.exception)
        self.assertEqual((failure.code, failure.reason),
                         (grpc.StatusCode.RESOURCE_EXHAUSTED, "EXCEEDS_CAPACITY"), str(failure))
        self.assertEqual(caught.exception.answer.finished, {})


class RefusedResumeTest(unittest.TestCase):

    def test_another_fingerprint_is_refused_and_the_same_one_is_served_anywhere(self):
        request = api.GenerateRequest(text=TEXT.encode(), sampling=SAMPLED,
                                      stopping={"max_tokens": 20, "ignore_eos": True})
        with Server() as first, Server() as replica, Server(
                worker_flags=["--cpu-isa=portable"]) as other:
            with first.channel() as channel:
                whole = generate(channel, request)
            request.resume.seed = whole.started.seed
            request.resume.determinism_fingerprint = whole.started.determinism_fingerprint
            request.resume.sequences.add(token_ids=whole.tokens[0][:8])
            with replica.channel() as channel:
                self.assertEqual(server_info(channel).determinism_fingerprint,
                                 whole.started.determinism_fingerprint)
                rest = self.rest_of(channel, request)
            with other.channel() as channel:
                with self.assertRaises(grpc.RpcError) as caught:
                    self.rest_of(channel, request)

        self.assertEqual(rest, whole.tokens[0][8:])
        failure = Failure(caught.exception)
        self.assertEqual((failure.code, failure.reason),
                         (grpc.StatusCode.FAILED_PRECONDITION, "FINGERPRINT"), str(failure))

    def test_a_server_of_other_defaults_is_another_fingerprint(self):
        request = api.GenerateRequest(text=TEXT.encode(), sampling={"seed": 7},
                                      stopping={"max_tokens": 20})
        with Server() as first, Server("--generation-config=none") as other:
            with first.channel() as channel:
                whole = generate(channel, request)
            with other.channel() as channel:
                failure = self.refusal_of(channel, behind(request, whole, 8))
        self.assertEqual((failure.code, failure.reason),
                         (grpc.StatusCode.FAILED_PRECONDITION, "FINGERPRINT"), str(failure))

    def test_a_server_of_a_smaller_context_refuses_and_a_larger_one_keeps_the_length(self):
        request = api.GenerateRequest(text=TEXT.encode(), sampling=SAMPLED,
                                      stopping={"ignore_eos": True})
        with Server("--max-model-len=100") as first, Server("--max-model-len=99") as small, Server(
                "--max-model-len=200") as large:
            with first.channel() as channel:
                whole = generate(channel, request)
            request = behind(request, whole, 8)
            with small.channel() as channel:
                failure = self.refusal_of(channel, request)
            with large.channel() as channel:
                rest = self.rest_of(channel, request)
        self.assertEqual(whole.started.max_tokens, 100 - whole.started.num_prompt_tokens)
        self.assertEqual(len(whole.tokens[0]), whole.started.max_tokens)
        self.assertEqual(rest, whole.tokens[0][8:])
        self.assertEqual((failure.code, failure.reason),
                         (grpc.StatusCode.FAILED_PRECONDITION, "CONTEXT"), str(failure))
        self.assertIn("(got 100, limit 99)", failure.message)

    def test_one_that_is_refused_takes_nobodys_place(self):
        request = api.GenerateRequest(text=TEXT.encode(), request_id="live", sampling=SAMPLED,
                                      stopping={"max_tokens": 250, "ignore_eos": True})
        with Server() as server, server.channel() as channel, server.channel() as other:
            whole = generate(channel, request)
            resume = api.GenerateRequest()
            resume.CopyFrom(request)
            resume.resume.seed = whole.started.seed
            resume.resume.determinism_fingerprint = whole.started.determinism_fingerprint
            resume.resume.sequences.add(token_ids=whole.tokens[0])  # nothing is left to come
            refusals = []

            def resume_once():
                if not refusals:
                    with self.assertRaises(grpc.RpcError) as caught:
                        self.rest_of(other, resume)
                    refusals.append(Failure(caught.exception).reason)

            self.assertEqual(generate(channel, request, on_message=resume_once).tokens,
                             whole.tokens)
        self.assertEqual(refusals, ["RESUME"])

    def refusal_of(self, channel, request):
        with self.assertRaises(grpc.RpcError) as caught:
            self.rest_of(channel, request)
        return Failure(caught.exception)

    def rest_of(self, channel, request):
        tokens = []
        for message in quire_client.api_grpc.GenerationServiceStub(channel).Generate(request):
            tokens.extend(message.chunk.token_ids)
        return tokens


if __name__ == "__main__":
    unittest.main(verbosity=2)
