"""Attacks of strangers on a server's memory or its time. Each function returns when its attack is over, with
a text that says what was sent."""
import collections
import concurrent.futures
import contextlib
import gzip
import os
import random
import socket
import struct
import subprocess
import threading
import time
import zlib

from floods import (ACK, END_STREAM, HEADER_BLOCK, HEADERS, PING, SETTINGS, Connection, call_frames, field,
                    frame)
from quire_server import BIN, api, api_grpc, grpc, server_info
from slow_reader_test import ClosedWindow

MIB = 1 << 20
WINDOW_UPDATE = 8
MAX_WINDOW = (1 << 31) - 1
INITIAL_WINDOW = 65535  # of HTTP/2, of a connection and of a stream
ANSWER_SECONDS = 120
REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"

Target = collections.namedtuple("Target", ["address", "http_address"])


def dial(address):
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=10)


def open_channel(target):
    return grpc.insecure_channel(target.address, options=[
        ("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1),
        ("grpc.max_metadata_size", 1 << 20)])


def bomb(target, seconds=10, num_connections=64):
    """Sends messages of 8 KiB that would inflate to 8 MiB. Every half second each connection sends as many as its
    window lets through."""
    zeros = bytes(8 * MIB)
    bombs = ((b"gzip", gzip.compress(zeros)), (b"deflate", zlib.compress(zeros)))
    connections = [Connection(target.address) for _ in range(num_connections)]
    num_sent, first = 0, 1
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for i, connection in enumerate(connections):
            encoding, packed = bombs[i % len(bombs)]
            streams = range(first, first + 2 * (INITIAL_WINDOW // (len(packed) + 5)), 2)
            connection.socket.sendall(b"".join(call_frames(
                stream, packed, True, HEADER_BLOCK + field(b"grpc-encoding", encoding)) for stream in streams))
            num_sent += len(streams)
        first += 100  # past the stream ids of this round
        time.sleep(0.5)  # the server reads the messages
    for connection in connections:
        connection.close()
    return f"{num_sent:,} messages of 8 MiB, packed to 8 KiB"


def deaf_listeners(target, num_clients=64, seconds=60):
    """Keeps clients with a closed HTTP/2 window until the server has cut each one or filled its outbox."""
    clients = [ClosedWindow(target.address, api.GenerateRequest(
        text=b"Once", n=16, sampling={"temperature": 1, "seed": i}, response={"logprobs": 20},
        stopping={"max_tokens": 800, "ignore_eos": True}, tenant="deaf")) for i in range(num_clients)]
    end = time.monotonic() + seconds
    with open_channel(target) as channel:
        is_busy = True
        while is_busy and time.monotonic() < end:
            time.sleep(1)
            info = server_info(channel)
            is_busy = info.num_running_requests + info.num_waiting_requests > 1  # one may be the honest client's
    for client in clients:
        client.close()
    return f"{num_clients} requests, n = 16, 800 tokens, 20 log-probabilities"


def slow_http(target, seconds=15):
    """Keeps connections that send a byte a second, and silent ones."""
    request = b"GET /livez HTTP/1.1\r\nHost: stranger\r\n" + b"x-slow: " + b"x" * 1000
    silent = [dial(target.http_address) for _ in range(8)]
    slow = [dial(target.http_address) for _ in range(8)]
    for sent in range(seconds):
        for i, connection in enumerate(slow):
            try:
                connection.sendall(request[sent:sent + 1])
            except OSError:  # cut: dial again
                connection.close()
                slow[i] = dial(target.http_address)
        time.sleep(1)
    for connection in silent + slow:
        connection.close()
    return "8 clients with a byte a second, 8 silent ones"


def hasty_http(target, num_connections=300, num_requests=50, seconds=15):
    """Asks for all of the metrics, num_requests times before it reads. Dials again when it is cut."""
    requests = num_requests * b"GET /metrics HTTP/1.1\r\nHost: stranger\r\n\r\n"
    over = threading.Event()
    num_sent = collections.Counter()

    def ask():
        while not over.is_set():
            try:
                with contextlib.closing(dial(target.http_address)) as connection:
                    while not over.is_set():
                        connection.sendall(requests)
                        num_sent["requests"] += num_requests
                        if not connection.recv(1 << 20):
                            break
            except OSError:  # cut: dial again
                num_sent["cut"] += 1

    threads = [threading.Thread(target=ask) for _ in range(num_connections)]
    for thread in threads:
        thread.start()
    time.sleep(seconds)
    over.set()
    for thread in threads:
        thread.join()
    return f"{num_connections} clients, {num_sent['requests']:,} requests for metrics, {num_requests} at a time"


def reflection_streams(target, num_streams=180, seconds=10):
    """Opens streams that ask for descriptors, and neither read them nor end."""
    names = ["quire.v1.GenerationService", "grpc.health.v1.Health",
             "grpc.reflection.v1alpha.ServerReflection"]
    over = threading.Event()

    def ask():
        for i in range(200):
            name = names[i % len(names)].encode()
            yield b"\x22" + bytes([len(name)]) + name  # file_containing_symbol
        over.wait()

    channels = [open_channel(target) for _ in range(3)]
    streams = [channels[i % 3].stream_stream(REFLECTION)(ask()) for i in range(num_streams)]
    time.sleep(seconds)
    over.set()
    for stream in streams:
        stream.cancel()
    for channel in channels:
        channel.close()
    return f"{num_streams} streams, 200 descriptors each"


class ManyCalls:
    """A connection with num_streams calls at once, each with a message that `messages` yields."""

    def __init__(self, address, messages, num_streams=100):
        self._socket = dial(address)
        self._socket.settimeout(ANSWER_SECONDS)
        self._messages = messages
        self._num_streams = num_streams
        self._stream = 1

    def run(self):
        self._socket.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS, 0, 0)
                             + frame(SETTINGS, ACK, 0)
                             + frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", MAX_WINDOW - INITIAL_WINDOW)))
        num_open, data = self._send(self._num_streams), b""
        while num_open > 0:
            more = self._socket.recv(1 << 16)
            if not more:
                raise ConnectionError("closed by the server")
            num_ended, data = self._read_frames(data + more)
            num_open += self._send(num_ended) - num_ended
        self._socket.close()

    def _send(self, count):
        """Sends up to `count` calls. Returns how many messages there were."""
        calls = []
        for message, _ in zip(self._messages, range(count)):
            calls.append(call_frames(self._stream, message))
            self._stream += 2
        self._socket.sendall(b"".join(calls))
        return len(calls)

    def _read_frames(self, data):
        """Returns how many calls the whole frames in data end, and the rest of data. Answers pings."""
        num_ended = begin = 0
        while len(data) >= begin + 9:
            length = int.from_bytes(data[begin:begin + 3], "big")
            if len(data) < begin + 9 + length:
                break
            kind, flags = data[begin + 3], data[begin + 4]
            num_ended += kind == HEADERS and flags & END_STREAM != 0
            if kind == PING and flags & ACK == 0:
                self._socket.sendall(frame(PING, ACK, 0, data[begin + 9:begin + 9 + length]))
            begin += 9 + length
        return num_ended, data[begin:]


def many_tenants(target, num_tenants=100_000, num_connections=4):
    """Sends requests that each have a new tenant, salt and prompt. A block of each stays in the cache."""

    def messages(part):
        for i in range(part, num_tenants, num_connections):
            yield api.GenerateRequest(
                token_ids={"ids": [2 + i % 4000, 2 + i // 4000, *range(2, 20)]}, tenant=f"tenant-{i}",
                cache_salt=f"salt-{i}".encode(), stopping={"max_tokens": 1}).SerializeToString()

    with concurrent.futures.ThreadPoolExecutor(num_connections) as threads:
        list(threads.map(lambda part: ManyCalls(target.address, messages(part)).run(),
                         range(num_connections)))
    return f"{num_tenants:,} requests, each of another tenant and salt"


def wait_for_ends(calls):
    for call in calls:
        try:
            call.exception(timeout=ANSWER_SECONDS)
        except (grpc.FutureCancelledError, grpc.FutureTimeoutError):
            pass


def hurl_texts(target, texts, num_at_once=64):
    """Sends texts to Tokenize and Generate in turn. Cancels every second pair of calls after a random time."""
    rng = random.Random(1)
    with open_channel(target) as channel:
        tokenize = channel.unary_unary("/quire.v1.GenerationService/Tokenize")
        generate = channel.unary_stream("/quire.v1.GenerationService/Generate")
        for text in texts:
            messages = (api.TokenizeRequest(text=text).SerializeToString(),
                        api.GenerateRequest(text=text, tenant="texts").SerializeToString())
            calls, cancelled = [], []
            for i in range(num_at_once):
                call = (tokenize.future, generate)[i % 2](messages[i % 2], timeout=ANSWER_SECONDS)
                (cancelled if i % 4 < 2 else calls).append(call)
            for call in cancelled:
                time.sleep(rng.uniform(0, 0.02))
                call.cancel()
            wait_for_ends(calls)
    return f"{len(texts) * num_at_once} texts of up to 1 MiB, {num_at_once} at once, half of them cancelled"


def filled(piece, num_bytes=MIB):
    piece = piece.encode()
    return piece * (num_bytes // len(piece))


def hostile_texts(target):
    """Sends texts that repeat one piece: a letter, combining marks in the wrong order, characters that are no
    tokens and become bytes, scripts in turn, spaces, apostrophes, line ends."""
    return hurl_texts(target, [filled(piece) for piece in (
        "a", "\u0315\u0300\u05ae\u0301", "\U0001f9ff\U000e0001", "aд中ب9", " ", "'", "\n \n")])


def slow_patterns(target):
    """Sends texts to a tokenizer whose pattern scans the whole rest of a text from each letter."""
    return hurl_texts(target, [filled("a", num_bytes) for num_bytes in (1 << 12, 1 << 15, MIB)] * 2)


def largest_messages(target, num_rounds=4, num_at_once=64):
    """Sends messages of 4 MiB: ids, a text that is too long, ids to be turned into text, a sequence to resume."""
    ids = [5] * (4 * MIB - 64)
    large = [("Generate", api.GenerateRequest(token_ids={"ids": ids})),
             ("Generate", api.GenerateRequest(text=bytes(len(ids)))),
             ("Generate", api.GenerateRequest(text=b"a", resume={
                 "seed": 1, "determinism_fingerprint": "x", "sequences": [{"token_ids": ids}]})),
             ("Detokenize", api.DetokenizeRequest(token_ids=ids))]
    large = [(method, message.SerializeToString()) for method, message in large]
    with open_channel(target) as channel:
        for _ in range(num_rounds):
            calls = []
            for i in range(num_at_once):
                method, message = large[i % len(large)]
                path = f"/quire.v1.GenerationService/{method}"
                calls.append(channel.unary_stream(path)(message, timeout=ANSWER_SECONDS))
            wait_for_ends(calls)
    return f"{num_rounds * num_at_once} messages of 4 MiB, {num_at_once} at once"


def unread_answers(target, num_channels=14, num_calls=128, seconds=10):
    """Makes as many calls at once as connections may have. Their answers of almost 1 MiB stay unread."""
    with open_channel(target) as channel:
        words = b"Once upon a time, there was a little bear. "
        ids = api_grpc.GenerationServiceStub(channel).Tokenize(api.TokenizeRequest(
            text=words * (MIB // len(words) // 8))).token_ids
    message = api.DetokenizeRequest(token_ids=list(ids) * 7).SerializeToString()
    channels = [open_channel(target) for _ in range(num_channels)]
    calls = [channels[i % num_channels].unary_stream("/quire.v1.GenerationService/Detokenize")(message)
             for i in range(num_channels * num_calls)]
    time.sleep(seconds)
    for call in calls:
        call.cancel()
    for channel in channels:
        channel.close()
    return f"{len(calls):,} calls at once, an answer of almost 1 MiB each"


def full_queue(target, num_requests=2400, num_channels=20, seconds=5):
    """Fills the queue with new and resumed requests, whose ids, salts and metadata are as large as allowed. Then
    cancels all of them."""
    channels = [open_channel(target) for _ in range(num_channels)]
    metadata = [(f"x-{i}", "x" * 1000) for i in range(12)]
    calls = []
    for i in range(num_requests):
        request = api.GenerateRequest(
            request_id=f"{i:0128}", tenant=f"{i % 16:0128}", cache_salt=f"{i:0128}".encode(),
            token_ids={"ids": [2 + (i + j) % 4000 for j in range(1800)]}, stopping={"max_tokens": 200})
        if i % 2 == 0:
            request.resume.SetInParent()
        call = channels[i % num_channels].unary_stream("/quire.v1.GenerationService/Generate")
        calls.append(call(request.SerializeToString(), metadata=metadata))
    time.sleep(seconds)
    for call in calls:
        call.cancel()
    for channel in channels:
        channel.close()
    return f"{num_requests:,} requests of 1,800 tokens with 12 KiB of metadata, all cancelled"


def ten_times_the_load(target, seconds=15, requests_a_second=400):
    """Sends more requests than the server can answer in time."""
    subprocess.run([os.path.join(BIN, "quire"), "bench", "serve", "--server", target.address,
                    "--request-rate", str(requests_a_second), "--timeout-ms", "4000", "--ignore-eos",
                    "--random-output-len", "64", "--num-prompts", str(seconds * requests_a_second)],
                   capture_output=True, check=True)
    return f"{requests_a_second} requests a second of 128 and 64 tokens, 4 s each"


Attack = collections.namedtuple("Attack", ["run", "bound"])

# Attacks by name. The bound is the limit of the memory that the server takes meanwhile.
ATTACKS = {
    "bomb": Attack(bomb, "nothing is inflated"),
    "deaf-listeners": Attack(deaf_listeners, "1 MiB of output a running request"),
    "slow-http": Attack(slow_http, "32 connections"),
    "hasty-http": Attack(hasty_http, "32 connections, one text for all"),
    "reflection-streams": Attack(reflection_streams, "32 threads"),
    "hostile-texts": Attack(hostile_texts, "64 MiB of texts that wait, 1 GiB of messages"),
    "largest-messages": Attack(largest_messages, "1 GiB of messages"),
    "unread-answers": Attack(unread_answers, "64 MiB of answers, 1 GiB of messages"),
    "full-queue": Attack(full_queue, "1,024 requests and as many resumed ones"),
    "ten-times-the-load": Attack(ten_times_the_load, "1,024 requests"),
    "many-tenants": Attack(many_tenants, "1,280 tenants, the blocks there are"),
    "slow-patterns": Attack(slow_patterns, "64 MiB of texts that wait, 1 GiB of messages"),
}
