#!/usr/bin/python3
"""One process of clients: some streams at a time, each logged message by message.

Starts requests until its standard input ends, waits for the running ones, and exits. With
--each-once it goes through the distinct requests once and exits. With --resume the Python client of
deploy/clients resumes requests when the scheduler dies. Without --resume an error ends its call.

One line of JSON a message, with `t`, the time of the monotonic clock, which all processes share:
  {"t", "call", "request"}                   a call begins
  {"t", "call", "started": num_prompt_tokens}
  {"t", "call", "chunk": [index, first_position, token ids, logprobs, text]}
  {"t", "call", "finished": [index, reason, num_output_tokens, matched stop, text, score]}
  {"t", "call", "end", "reason", "message"}  the call is over: the gRPC code's name
One message may carry several of the three parts. Floats are hexadecimal, so that bits compare; text
is Latin-1, so that bytes do.
"""
import argparse
import concurrent.futures
import json
import os
import random
import sys
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, folder)
                for folder in ("../integration", "../../deploy/clients/python")]

from distinct_requests import HTTP_KINDS, KINDS, make_request  # noqa: E402
from quire_server import Failure, api, api_grpc, grpc  # noqa: E402

CALL_SECONDS = 600


class Log:
    """The log file of all streams of this process."""

    def __init__(self, path):
        self._file = open(path, "w", encoding="ascii")
        self._lock = threading.Lock()

    def write(self, call, **fields):
        line = json.dumps({"t": round(time.monotonic(), 4), "call": call, **fields},
                          separators=(",", ":"))
        with self._lock:
            self._file.write(line + "\n")
            self._file.flush()


def parts_of(message):
    """Returns the parts of a message, as they are logged."""
    parts = {}
    if message.HasField("started"):
        parts["started"] = message.started.num_prompt_tokens
    if message.HasField("chunk"):
        chunk = message.chunk
        logprobs = [[one.logprob.hex(), *((top.token_id, top.logprob.hex()) for top in one.top)]
                    for one in chunk.logprobs]
        parts["chunk"] = [chunk.index, chunk.first_position, list(chunk.token_ids), logprobs,
                          chunk.text.decode("latin-1")]
    if message.HasField("finished"):
        end = message.finished
        parts["finished"] = [end.index, end.reason, end.num_output_tokens,
                             end.matched_stop.decode("latin-1"), end.text.decode("latin-1"),
                             end.score.hex()]
    return parts


def run_call(args, generate, log, call, number):
    request = make_request(api, number, args.max_tokens, HTTP_KINDS if args.http_kinds else KINDS)
    log.write(call, request=number)
    end = {"end": "OK"}
    try:
        for message in generate(request):
            log.write(call, **parts_of(message))
    except grpc.RpcError as error:
        failure = Failure(error)
        end = {"end": failure.code.name, "reason": failure.reason, "message": failure.message}
    except Exception as error:  # raised by the resuming client
        end = {"end": type(error).__name__, "message": str(error)}
    log.write(call, **end)


def plain_generate(address):
    """Returns a function that begins a call. Its stream breaks when the scheduler dies."""
    channel = grpc.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)])
    stub = api_grpc.GenerationServiceStub(channel)
    return lambda request: stub.Generate(request, timeout=CALL_SECONDS)


def resuming_generate(address):
    """Returns a function that begins a call. The Python client resumes it when the scheduler dies."""
    import quire_client
    channel = grpc.insecure_channel(address, options=quire_client.CHANNEL_OPTIONS)
    # On a busy machine the next kill may come before a prompt is computed again.
    return lambda request: quire_client.generate([channel], request, max_unanswered_s=CALL_SECONDS)


def run_streams(args, generate, log):
    over = threading.Event()

    def stream(k):
        chance = random.Random(f"{args.seed}.{args.process}.{k}")
        count = 0
        while not over.is_set():
            run_call(args, generate, log, f"{args.process}.{k}.{count}",
                     chance.randrange(args.num_requests))
            count += 1

    threads = [threading.Thread(target=stream, args=(k,)) for k in range(args.streams)]
    for thread in threads:
        thread.start()
    sys.stdin.read()
    over.set()
    for thread in threads:
        thread.join()


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
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--http-kinds", action="store_true")
    args = parser.parse_args()
    generate = (resuming_generate if args.resume else plain_generate)(args.address)
    log = Log(args.log)
    if args.each_once:
        with concurrent.futures.ThreadPoolExecutor(args.streams) as pool:
            list(pool.map(lambda number: run_call(args, generate, log, f"oracle.{number}", number),
                          range(args.num_requests)))
    else:
        run_streams(args, generate, log)


if __name__ == "__main__":
    main()
