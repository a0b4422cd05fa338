#!/usr/bin/python3
"""As load.py, through OpenAI's HTTP API. One process and one thread serve all its streams.

Its log has load.py's form, so that checker.py reads it: positions come from the usage of each event,
log-probabilities are [number, those of the likeliest, text of the token, its offset], the end is "OK"
after [DONE] and the last chunk. A request that a full server refuses (429) is sent again, as OpenAI's
own client does. With --retry-broken so is one whose connection broke: each attempt is a call, whose
end is BROKEN.
"""
import argparse
import asyncio
import itertools
import json
import os
import random
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../integration"))

from checker import BROKEN  # noqa: E402
from distinct_requests import HTTP_KINDS, http_body_of, make_request  # noqa: E402
from load import Log  # noqa: E402
from quire_server import api  # noqa: E402
from sse_client import post  # noqa: E402

FULL = 429
FULL_SECONDS = 1.0
BROKEN_SECONDS = 0.05


class Call:
    """Logs the events of one answer."""

    def __init__(self, log, name):
        self._log, self._name = log, name
        self._has_started = False
        self._counts = {}  # tokens by sequence
        self._is_done = False
        self._error = None

    def on_event(self, text):
        if self._is_done:
            self._error = {"message": f"after [DONE]: {text}"}
        elif text == "[DONE]":
            self._is_done = True
        else:
            self._take(text)

    def _take(self, text):
        event = json.loads(text)
        if "error" in event:
            self._error = event["error"]
            return
        parts, usage = {}, event["usage"]
        if not self._has_started:
            self._has_started = True
            parts["started"] = usage["prompt_tokens"]
        for choice in event["choices"]:
            index, tokens = choice["index"], choice["token_ids"]
            num_tokens = usage["completion_tokens"]
            parts["chunk"] = [index, num_tokens - len(tokens), tokens,
                              _scores_of(choice["logprobs"]), choice["text"]]
            self._counts[index] = num_tokens
            if choice["finish_reason"] is not None:
                parts["finished"] = [index, choice["finish_reason"], num_tokens,
                                     choice["stop_reason"], "", None]
        if not event["choices"] and usage["completion_tokens"] != sum(self._counts.values()):
            self._error = {"message": f"usage {usage} after {self._counts}"}
        self._log.write(self._name, **parts)

    def log_end(self, end, may_break):
        if may_break and not end.is_whole and end.fault:
            self._log.write(self._name, end=BROKEN, message=end.fault)
            return
        if end.status == 200 and end.is_whole and self._is_done and self._error is None:
            self._log.write(self._name, end="OK")
            return
        message = self._error or end.fault or end.body.decode(errors="replace")
        self._log.write(self._name, end=f"HTTP {end.status}", message=str(message))


def _scores_of(logprobs):
    if logprobs is None:
        return []
    tops = [sorted(top.items()) for top in logprobs["top_logprobs"]]
    return [list(one) for one in zip(logprobs["token_logprobs"], tops, logprobs["tokens"],
                                     logprobs["text_offset"], strict=True)]


async def run_call(args, log, name, number):
    body = http_body_of(make_request(api, number, args.max_tokens, HTTP_KINDS))
    for attempt in itertools.count():
        attempt_name = f"{name}.{attempt}"
        call = Call(log, attempt_name)
        log.write(attempt_name, request=number)
        end = await post(args.address, "/v1/completions", body, call.on_event)
        if end.status == FULL:
            log.write(attempt_name, end=BROKEN, message="the server is full")
            await asyncio.sleep(FULL_SECONDS)
            continue
        call.log_end(end, args.retry_broken)
        if end.is_whole or not args.retry_broken:
            return
        await asyncio.sleep(BROKEN_SECONDS)


async def run_streams(args, log):
    is_over = asyncio.Event()
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)

    async def stream(k):
        chance = random.Random(f"{args.seed}.{args.process}.{k}")
        count = 0
        while not is_over.is_set():
            await run_call(args, log, f"{args.process}.{k}.{count}",
                           chance.randrange(args.num_requests))
            count += 1

    streams = [asyncio.create_task(stream(k)) for k in range(args.streams)]
    await reader.read()
    is_over.set()
    await asyncio.gather(*streams)


async def run_each_once(args, log):
    places = asyncio.Semaphore(args.streams)

    async def one(number):
        async with places:
            await run_call(args, log, f"oracle.{number}", number)

    await asyncio.gather(*(one(number) for number in range(args.num_requests)))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--address", required=True)
    parser.add_argument("--log", required=True)
    parser.add_argument("--process", type=int, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--num-requests", type=int, required=True)
    parser.add_argument("--max-tokens", type=int, required=True)
    parser.add_argument("--each-once", action="store_true")
    parser.add_argument("--retry-broken", action="store_true")
    args = parser.parse_args()
    asyncio.run((run_each_once if args.each_once else run_streams)(args, Log(args.log)))


if __name__ == "__main__":
    main()
