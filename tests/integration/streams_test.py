#!/usr/bin/python3
"""Many streams at once, and clients that vanish: nothing is lost, reordered or leaked."""
import asyncio
import collections
import concurrent.futures
import os
import random
import subprocess
import sys
import threading
import time
import unittest

from quire_server import (Answer, Server, api, api_grpc, generate, get_load, wait_until_idle)
import grpc

NUM_STREAMS = 256
NUM_DIFFERENT = 32
NUM_CANCELS = int(os.environ.get("QUIRE_NUM_CANCELS", "400"))
NUM_CANCELLERS = 24 if NUM_CANCELS < 10_000 else 128  # at once

# Requests that are cancelled before they have ended, most of them: a queue, a prefill, groups that share
# blocks, a search that forks, a text that the tokenizer's threads have.
DOOMED_REQUESTS = [api.GenerateRequest(stopping={"max_tokens": 800, "ignore_eos": True}, **fields) for fields in (
    {"text": b"Once upon a time", "n": 2, "sampling": {"temperature": 1}},
    {"text": b"Once upon a time", "n": 2, "best_of": 5, "sampling": {"temperature": 1}},
    {"text": b"Once upon a time", "n": 2, "beam_search": {"num_beams": 4}},
    {"text": b"There was a small dog. " * 100},
    {"token_ids": {"ids": list(range(10, 310))}, "bypass_prefix_cache": True},
    {"text": b"One day", "response": {"logprobs": 5}},
)]

# A client process with many long streams. The test kills it.
DOOMED_CLIENT = """
import sys
import threading
from quire_server import api, api_grpc, grpc
channel = grpc.insecure_channel(sys.argv[1])
stub = api_grpc.GenerationServiceStub(channel)
def run(seed):
    request = api.GenerateRequest(text=b"Once upon a time", n=1 + seed % 3,
                                  sampling={"temperature": 1, "seed": seed},
                                  stopping={"max_tokens": 1000, "ignore_eos": True})
    for _ in stub.Generate(request):
        print("x", flush=True)
for seed in range(8):
    threading.Thread(target=run, args=(seed,)).start()
"""


def mixed_request(i):
    """One of NUM_DIFFERENT requests: prompts, lengths and ways of sampling differ."""
    i %= NUM_DIFFERENT
    words = ["Once", " upon", " a", " time", " there", " was", " a", " small", " dog"]
    text = "".join(words[:1 + i % len(words)])
    sampling = [{"temperature": 0}, {"temperature": 1, "seed": i},
                {"temperature": 0.7, "top_p": 0.9, "seed": i},
                {"temperature": 1.2, "top_k": 20, "repetition_penalty": 1.1, "seed": i}][i % 4]
    return api.GenerateRequest(text=text.encode(), sampling=sampling,
                               stopping={"max_tokens": 10 + i, "ignore_eos": i % 2 == 0})


def read_until_end(call, tokens):
    try:
        for _ in call:
            tokens.set()
    except grpc.RpcError:
        pass  # cancelled


class StreamsTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.server = Server()
        cls.addClassCleanup(cls.server.close)
        cls.channel = cls.server.channel()
        cls.addClassCleanup(cls.channel.close)

    def test_256_streams_at_once_get_what_each_gets_alone(self):
        alone = [generate(self.channel, mixed_request(i)) for i in range(NUM_DIFFERENT)]

        together = asyncio.run(self.stream_all())

        for i, answer in enumerate(together):
            expected = alone[i % NUM_DIFFERENT]
            self.assertEqual(answer.tokens, expected.tokens, f"stream {i}")
            self.assertEqual(answer.text, expected.text, f"stream {i}")
            self.assertEqual(set(answer.finished), {0})
        wait_until_idle(self.server)

    async def stream_all(self):
        async def stream(channel, i):
            answer = Answer()
            stub = api_grpc.GenerationServiceStub(channel)
            async for message in stub.Generate(mixed_request(i), timeout=120):
                answer.add(message)
            return answer

        # Four connections: a server takes 128 streams on one.
        options = [("grpc.use_local_subchannel_pool", 1)]
        channels = [grpc.aio.insecure_channel(self.server.address, options=options)
                    for _ in range(4)]
        try:
            return await asyncio.gather(*(stream(channels[i % 4], i) for i in range(NUM_STREAMS)))
        finally:
            for channel in channels:
                await channel.close()

    def test_calls_cancelled_at_random_leave_nothing_behind(self):
        seed = int.from_bytes(os.urandom(4), "big")
        print(f"seed {seed}", file=sys.stderr)
        chance = random.Random(seed)
        stub = api_grpc.GenerationServiceStub(self.channel)
        phases = collections.Counter()

        def start_and_cancel(kind, delay, has_tokens):
            call = stub.Generate(DOOMED_REQUESTS[kind])
            tokens = threading.Event()
            reader = threading.Thread(target=read_until_end, args=(call, tokens))
            reader.start()
            if has_tokens:
                tokens.wait(5)
            time.sleep(delay)
            phase = "ended" if call.done() else "with tokens" if tokens.is_set() else "before a token"
            call.cancel()
            reader.join()
            phases[phase] += 1

        with concurrent.futures.ThreadPoolExecutor(NUM_CANCELLERS) as pool:
            # Cancels come at random times, from before the request has left to long after its first tokens.
            draws = [(chance.randrange(len(DOOMED_REQUESTS)), 0.0001 * 1000 ** chance.random(),
                      chance.random() < 0.5) for _ in range(NUM_CANCELS)]
            for done in pool.map(start_and_cancel, *zip(*draws)):
                self.assertIsNone(done)

        print(dict(phases), file=sys.stderr)
        self.assertGreater(phases["before a token"], 0)
        self.assertGreater(phases["with tokens"], 0)
        wait_until_idle(self.server)
        self.assertEqual(len(generate(self.channel, mixed_request(0)).tokens[0]), 10)

    def test_clients_killed_at_random_leave_nothing_behind(self):
        seed = int.from_bytes(os.urandom(4), "big")
        print(f"seed {seed}", file=sys.stderr)
        chance = random.Random(seed)
        folder = os.path.dirname(os.path.abspath(__file__))
        was_busy = False
        for _ in range(4):
            clients = [subprocess.Popen([sys.executable, "-B", "-c", DOOMED_CLIENT,
                                         self.server.address], cwd=folder, stdout=subprocess.PIPE)
                       for _ in range(2)]
            for client in clients:
                client.stdout.read(1)  # its streams have begun
            was_busy = was_busy or get_load(self.server).kv_blocks.num_active > 0
            time.sleep(chance.uniform(0, 0.3))
            for client in clients:
                client.kill()
                client.wait()
                client.stdout.close()

        wait_until_idle(self.server)
        self.assertTrue(was_busy)
        self.assertEqual(len(generate(self.channel, mixed_request(0)).tokens[0]), 10)


if __name__ == "__main__":
    unittest.main(verbosity=2)
