"""The points that every program is asked, and the protocol of its answers.

A point is `prefill N`, `decode BATCH` or `served`. A runner takes points from its command line, or else from standard
input, one a line, and answers each with a JSON object of one line: `tokens_per_s` is the median of `values`. Its first
line, before any point, says what it is: `program`, `version` and `settings`. Libraries write to standard error.

Prompts are new random token ids each time, so no prefix cache helps. Greedy, and an end-of-sequence token ends nothing.
A sequence that ends too early is an error, and so is a prompt token that came from a cache.
"""
import argparse
import json
import os
import random
import statistics
import sys
import time

CONTEXT_TOKENS = 128   # in the cache before decoding begins
DECODE_STEPS = 32      # timed
CLIENTS = 32           # served: requests at once
REQUESTS = 128         # served: in all
INPUT_TOKENS = 128     # served: of a request
OUTPUT_TOKENS = 64
FIRST_ORDINARY_TOKEN = 3
MAX_SEQUENCE_TOKENS = 2304  # the longest prompt and some room


class Peer:
    """The interface of a runner to its library. A step may give a sequence several tokens, or none."""

    vocab_size = 0

    def prepare(self, kind):
        """Called untimed before a point of that kind. A runner overrides it if its best settings differ by kind."""

    def add(self, prompt, max_tokens):
        """Returns the key of a new sequence."""
        raise NotImplementedError

    def step(self):
        """Returns the number of new tokens by key. A sequence that has max_tokens is forgotten."""
        raise NotImplementedError

    def abort(self, key):
        raise NotImplementedError


def prompt(peer, length):
    return [random.randrange(FIRST_ORDINARY_TOKEN, peer.vocab_size) for _ in range(length)]


def prefill(peer, length):
    """Tokens a second from the arrival of one prompt to its first token."""
    ids = prompt(peer, length)
    start = time.perf_counter()
    key = peer.add(ids, 1)
    while not peer.step().get(key):
        pass
    return length / (time.perf_counter() - start)


def decode(peer, batch):
    """Tokens a second over all sequences, once each has its first token."""
    keys = [peer.add(prompt(peer, CONTEXT_TOKENS), MAX_SEQUENCE_TOKENS - CONTEXT_TOKENS) for _ in range(batch)]
    waiting = set(keys)
    while waiting:
        waiting -= {key for key, count in peer.step().items() if count}
    tokens = dict.fromkeys(keys, 0)
    start = time.perf_counter()
    while sum(tokens.values()) < batch * DECODE_STEPS:
        for key, count in peer.step().items():
            tokens[key] += count
    seconds = time.perf_counter() - start
    assert min(tokens.values()) >= DECODE_STEPS - 1, f"sequences did not go on together: {tokens}"
    for key in keys:
        peer.abort(key)
    return sum(tokens.values()) / seconds


def served(peer):
    """Output tokens a second of a closed loop, from the first arrival to the last token."""
    sent, tokens, total = 0, {}, 0
    start = time.perf_counter()
    while tokens or sent < REQUESTS:
        while sent < REQUESTS and len(tokens) < CLIENTS:
            tokens[peer.add(prompt(peer, INPUT_TOKENS), OUTPUT_TOKENS)] = 0
            sent += 1
        for key, count in peer.step().items():
            tokens[key] += count
            total += count
            if tokens[key] == OUTPUT_TOKENS:
                del tokens[key]
    seconds = time.perf_counter() - start
    assert total == REQUESTS * OUTPUT_TOKENS, total
    return total / seconds


def measure(peer, point, repeat):
    """Returns the values of a point, one for each repetition."""
    kind, *number = point.split()
    peer.prepare(kind)
    if kind == "served":
        return [served(peer)]
    function = {"prefill": prefill, "decode": decode}[kind]
    return [function(peer, int(number[0])) for _ in range(repeat)]


def answer_points(description, add_flags, make):
    """Runs the main program of a runner. make(options) returns the first line's fields and a function.

    The function takes a point and the number of repetitions, and returns the values.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="what the program reads")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=3, help="of a point, but served, which is long")
    parser.add_argument("points", nargs="*", help="such as 'prefill 512' 'decode 8' served; none: standard input")
    add_flags(parser)
    options = parser.parse_args()
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # libraries' output must not mix with answers
    about, values_of = make(options)
    print(json.dumps(about), file=answers)
    for point in options.points or map(str.strip, sys.stdin):
        values = values_of(point, options.repeat)
        print(json.dumps({"point": point, "tokens_per_s": statistics.median(values), "values": values}), file=answers)


def run_peer(description, peer_type, add_flags=lambda parser: None):
    def make(options):
        peer = peer_type(options)
        prefill(peer, CONTEXT_TOKENS)  # the first step of a process is slow
        return peer.about, lambda point, repeat: measure(peer, point, repeat)

    answer_points(description, add_flags, make)
