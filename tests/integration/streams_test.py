#!/usr/bin/python3
"""Many streams at once, and clients that vanish: nothing is lost, reordered or leaked."""
import asyncio
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

# A client of its own process, to be killed: many streams that go on for long.
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
        delays = [chance.uniform(0, 0.15) for _ in range(200)]

        def start_and_cancel(delay):
            call = stub.Generate(api.GenerateRequest(
                text=b"Once upon a time", n=2, sampling={"temperature": 1},
                stopping={"max_tokens": 800, "ignore_eos": True}))
            time.sleep(delay)
            call.cancel()

        for start in range(0, len(delays), 20):
            threads = [threading.Thread(target=start_and_cancel, args=(delay,))
                       for delay in delays[start:start + 20]]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

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
