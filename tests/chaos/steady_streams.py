#!/usr/bin/python3
"""An ordinary client: some streams at a time, whose tokens are checked and timed.

It asks each of its requests once, says "ready", and then asks them again and again until its standard input
ends. Then it waits for the running requests and writes a line of JSON:

  gaps    [when a message came, seconds since the one before of its stream]
  tokens  how many came
  wrong   in words: errors, and answers that differ from the first answer of their request

Times are the monotonic clock's, which all processes share. The client is a separate process, so that no other
client makes its times longer.
"""
import argparse
import json
import os
import subprocess
import sys
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../integration"))

from long_model import make_request, random_ids  # noqa: E402
from quire_server import Failure, api_grpc, grpc  # noqa: E402

PROMPT_TOKENS = 100
MAX_TOKENS = 100


class SteadyStreams:
    """Runs the client's process. `with SteadyStreams(address, 4) as steady:`"""

    def __init__(self, address, num_streams):
        self._process = subprocess.Popen(
            [sys.executable, "-B", os.path.abspath(__file__), f"--address={address}",
             f"--streams={num_streams}"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def wait_until_ready(self):
        if self._process.stdout.readline() != "ready\n":
            raise AssertionError("the ordinary client got no undisturbed answers")

    def finish(self):
        """Ends the client. Returns its line of JSON."""
        self._process.stdin.close()
        written = json.loads(self._process.stdout.readline())
        self._process.wait()
        return written

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.kill()
        self._process.wait()
        self._process.stdout.close()


class _Stream:

    def __init__(self, address, number):
        self._stub = api_grpc.GenerationServiceStub(grpc.insecure_channel(address))
        self._request = make_request(random_ids(number, PROMPT_TOKENS), MAX_TOKENS,
                                     sampling={"temperature": 1, "seed": number})
        self.gaps, self.num_tokens, self.wrong = [], 0, []
        self._expected = self._ask()

    def _ask(self):
        tokens, last = [], None
        # No deadline, since the scheduler would refuse one: it estimates the wait without the prefix cache.
        for message in self._stub.Generate(self._request):
            now = time.monotonic()
            if last is not None:
                self.gaps.append((round(now, 5), round(now - last, 5)))
            last = now
            tokens.extend(message.chunk.token_ids)
        return tokens

    def run(self, is_over):
        self.gaps = []
        while not is_over.is_set():
            try:
                tokens = self._ask()
            except grpc.RpcError as error:
                self.wrong.append(str(Failure(error)))
                return
            self.num_tokens += len(tokens)
            if tokens != self._expected:
                self.wrong.append(f"{tokens}, not {self._expected}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--address", required=True)
    parser.add_argument("--streams", type=int, required=True)
    args = parser.parse_args()
    streams = [_Stream(args.address, number) for number in range(args.streams)]
    print("ready", flush=True)
    is_over = threading.Event()
    threads = [threading.Thread(target=stream.run, args=(is_over,)) for stream in streams]
    for thread in threads:
        thread.start()
    sys.stdin.read()
    is_over.set()
    for thread in threads:
        thread.join()
    print(json.dumps({"gaps": [gap for stream in streams for gap in stream.gaps],
                      "tokens": sum(stream.num_tokens for stream in streams),
                      "wrong": [wrong for stream in streams for wrong in stream.wrong]}))


if __name__ == "__main__":
    main()
