#!/usr/bin/python3
"""Strangers on the ports: compressed messages, too many connections, too many streams."""
import concurrent.futures
import contextlib
import http.client
import os
import re
import select
import socket
import struct
import subprocess
import threading
import time
import unittest

from quire_server import Process, BIN, MODEL, Server, api, api_grpc, failure_of
import grpc

MIB = 1 << 20
# Bounds a process's growth while it answers one small request.
SMALL = 8 * MIB
REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
LIST_SERVICES = b"\x3a\x01*"
HANDSHAKE = "/quire.v1.WorkerService/Handshake"


def memory_bytes(process, field_name):
    """Returns VmRSS, the process's memory now, or VmHWM, its peak."""
    with open(f"/proc/{process.popen.pid}/status", encoding="ascii") as status:
        for line in status:
            if line.startswith(field_name + ":"):
                return int(line.split()[1]) * 1024
    raise AssertionError("no " + field_name)


def peak_bytes(process):
    return memory_bytes(process, "VmHWM")


def file_limit(process):
    with open(f"/proc/{process.popen.pid}/limits", encoding="ascii") as limits:
        return int(re.search(r"^Max open files +(\d+)", limits.read(), re.M).group(1))


def status_of(web, path):
    """Asks over a connection that stays open. Returns the status."""
    web.request("GET", path)
    response = web.getresponse()
    response.read()
    return response.status


def eventually(claim, seconds=40):
    deadline = time.monotonic() + seconds
    while not claim():
        if time.monotonic() > deadline:
            raise AssertionError("did not come true in time")
        time.sleep(0.2)


def tokenize(server, text=b"once", **options):
    with server.channel() as channel:
        stub = api_grpc.GenerationServiceStub(channel)
        return stub.Tokenize(api.TokenizeRequest(text=text), timeout=60, **options)


def field(name, value):
    """Returns a header in HPACK, without compression."""
    return b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value


def frame(kind, flags, stream, payload):
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, b"")


def call_frames(path, message, *headers):
    """Returns frames of a call on stream 1 that a well-behaved library would not send."""
    fields = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", path),
              (b":authority", b"test"), (b"te", b"trailers"),
              (b"content-type", b"application/grpc"), *headers]
    return (frame(1, 4, 1, b"".join(field(*pair) for pair in fields))
            + frame(0, 1, 1, message))


def dial(address):
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=20)


def read_until_stream_ends(connection):
    """Reads frames until the server ends stream 1."""
    stream = connection.makefile("rb")
    while True:
        header = stream.read(9)
        if len(header) < 9:
            return
        kind, flags, stream_id = struct.unpack(">BBI", header[3:])
        stream.read(int.from_bytes(header[:3], "big"))
        if stream_id == 1 and (kind == 3 or (kind == 1 and flags & 1)):
            return


class CompressionTest(unittest.TestCase):

    def test_the_scheduler_refuses_what_would_inflate(self):
        with Server(with_worker=False) as server:
            tokenize(server)
            before = peak_bytes(server.scheduler)

            for method in (grpc.Compression.Gzip, grpc.Compression.Deflate):
                with failure_of() as failures:
                    tokenize(server, bytes(64 * MIB), compression=method)

                self.assertEqual(failures[0].code, grpc.StatusCode.UNIMPLEMENTED, failures[0])
                self.assertIn("is disabled", failures[0].message)
            grown = peak_bytes(server.scheduler) - before
            self.assertLess(grown, SMALL)
            self.assertTrue(tokenize(server).token_ids)

    def test_the_worker_refuses_what_would_inflate(self):
        with Server() as server, grpc.insecure_channel(server.worker_address) as channel:
            before = peak_bytes(server.worker)

            with failure_of() as failures:
                channel.unary_unary(HANDSHAKE)(bytes(48 * MIB), timeout=60,
                                               compression=grpc.Compression.Gzip)

            self.assertEqual(failures[0].code, grpc.StatusCode.UNIMPLEMENTED, failures[0])
            grown = peak_bytes(server.worker) - before
            self.assertLess(grown, SMALL)

    def test_the_scheduler_inflates_nothing_that_a_worker_sends(self):
        zeros = bytes(48 * MIB)
        handlers = {
            "Handshake": grpc.unary_unary_rpc_method_handler(lambda *_: zeros),
            "Watch": grpc.unary_stream_rpc_method_handler(lambda *_: iter([zeros])),
        }
        with concurrent.futures.ThreadPoolExecutor(2) as threads:
            worker = grpc.server(threads, compression=grpc.Compression.Gzip,
                                 options=[("grpc.max_send_message_length", -1)])
            worker.add_generic_rpc_handlers(
                [grpc.method_handlers_generic_handler("quire.v1.WorkerService", handlers)])
            port = worker.add_insecure_port("127.0.0.1:0")
            with Server(f"--workers=127.0.0.1:{port}", with_worker=False) as server:
                tokenize(server)
                before = peak_bytes(server.scheduler)
                worker.start()
                server.scheduler.wait_for("Compression algorithm 'gzip' is disabled")
                grown = peak_bytes(server.scheduler) - before
            worker.stop(None).wait()
        self.assertLess(grown, SMALL)

    def test_garbage_that_claims_to_be_compressed_is_answered(self):
        garbage = os.urandom(1000)
        with Server(with_worker=False) as server:
            for encoding in (b"gzip", b"deflate", b"identity", b"nonsense"):
                with dial(server.address) as connection:
                    message = b"\1" + struct.pack(">I", len(garbage)) + garbage
                    connection.sendall(PREFACE + call_frames(
                        b"/quire.v1.GenerationService/Tokenize", message,
                        (b"grpc-encoding", encoding)))
                    read_until_stream_ends(connection)
            self.assertTrue(tokenize(server).token_ids)


class FreedMemoryTest(unittest.TestCase):

    def test_what_a_flood_of_large_messages_took_goes_back(self):
        with Server(with_worker=False) as server, server.channel() as channel:
            tokenize(server)
            before = memory_bytes(server.scheduler, "VmRSS")
            stub = api_grpc.GenerationServiceStub(channel)
            for _ in range(2):
                calls = [stub.Tokenize.future(api.TokenizeRequest(text=b"once " * (MIB // 5)), timeout=60)
                         for _ in range(32)]
                for call in calls:
                    call.exception()

            self.assertGreater(peak_bytes(server.scheduler) - before, 4 * SMALL)
            eventually(lambda: memory_bytes(server.scheduler, "VmRSS") - before < SMALL)


class ReflectionTest(unittest.TestCase):

    def test_it_is_off_unless_asked_for(self):
        with Server(with_worker=False) as server, server.channel() as channel:
            with failure_of() as failures:
                next(channel.stream_stream(REFLECTION)(iter([LIST_SERVICES]), timeout=10))
            self.assertEqual(failures[0].code, grpc.StatusCode.UNIMPLEMENTED)

    def test_its_streams_take_a_bounded_number_of_threads(self):
        end = threading.Event()

        def ask():
            yield LIST_SERVICES
            end.wait()

        with Server("--enable-reflection", with_worker=False) as server, contextlib.ExitStack() as stack:
            answers = []
            for _ in range(3):
                channel = stack.enter_context(server.channel())
                answers += [channel.stream_stream(REFLECTION)(ask()) for _ in range(60)]
            stack.callback(end.set)
            for answer in answers:
                with failure_of():  # some are refused
                    next(answer)
            num_threads = len(os.listdir(f"/proc/{server.scheduler.popen.pid}/task"))

            self.assertLess(num_threads, 100)
            self.assertTrue(tokenize(server).token_ids)


class HttpTest(unittest.TestCase):

    def check_probe(self, server):
        web = http.client.HTTPConnection(server.http_address, timeout=5)
        self.assertEqual(status_of(web, "/livez"), 200)
        web.close()

    def test_slow_and_silent_clients_do_not_keep_probes_waiting(self):
        end = threading.Event()

        def send_slowly(connection):
            with contextlib.suppress(OSError):
                connection.sendall(b"POST /livez HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n")
                while not end.wait(0.05):
                    connection.sendall(b"x")

        with Server(with_worker=False) as server, contextlib.ExitStack() as stack:
            self.check_probe(server)
            stack.callback(end.set)
            slow = [stack.enter_context(dial(server.http_address)) for _ in range(8)]
            for connection in slow:
                threading.Thread(target=send_slowly, args=(connection,), daemon=True).start()
            self.check_probe(server)
            for _ in range(100):  # requests that never end
                stack.enter_context(dial(server.http_address)).sendall(b"GET /livez HTTP/1.1\r\n")
            for _ in range(3):
                self.check_probe(server)

    def test_it_does_not_follow_the_address_of_the_clients(self):
        with Server("--host=0.0.0.0", "--allow-insecure-bind", with_worker=False) as server:
            self.assertRegex(server.http_address, "^127.0.0.1:")
            self.check_probe(server)
        ended = subprocess.run([os.path.join(BIN, "quire_scheduler"), "--model", MODEL,
                                "--http-host=0.0.0.0"], capture_output=True, text=True, timeout=20,
                               check=False)
        self.assertEqual(ended.returncode, 2)
        self.assertIn("--http-host: other machines can reach this address", ended.stderr)


class CommandLineTest(unittest.TestCase):

    def test_what_is_refused_is_refused_in_one_line(self):
        for command in (["quire_scheduler", "--port=1\n2"], ["quire_scheduler", "--model=/a\nb"],
                        ["quire_worker", "--model=/a\nb"], ["quire", "serve", "--model=/a\nb"],
                        ["quire", "serve", "--por\nt=1"], ["quire", "generate", "--\n"], ["quire", "replay", "/a\nb"]):
            ended = subprocess.run([os.path.join(BIN, command[0]), *command[1:]], capture_output=True, text=True,
                                   timeout=60, check=False)
            self.assertNotEqual(ended.returncode, 0, command)
            lines = [line for line in ended.stderr.splitlines() if " INFO " not in line]
            self.assertEqual(len(lines), 1, ended.stderr)


class ConnectionsTest(unittest.TestCase):

    def test_a_server_that_ran_out_of_connections_serves_again(self):
        with Server(with_worker=False, prefix=("prlimit", "--nofile=64")) as server:
            self.assertTrue(tokenize(server).token_ids)
            connections = [dial(server.address) for _ in range(90)]
            for connection in connections:
                connection.sendall(PREFACE)
            select.select([connections[-1]], [], [], 5)  # until the server answers or refuses the last one
            for connection in connections:
                connection.close()

            self.assertTrue(tokenize(server, wait_for_ready=True).token_ids)
            web = http.client.HTTPConnection(server.http_address, timeout=10)
            self.assertEqual(status_of(web, "/livez"), 200)
            web.close()

    def test_who_speaks_beside_silent_ones_is_counted_too(self):
        with Server(with_worker=False, prefix=("prlimit", "--nofile=256")) as server:
            folder = f"/proc/{server.scheduler.popen.pid}/fd"
            with contextlib.ExitStack() as stack:
                for i in range(600):
                    connection = stack.enter_context(dial(server.address))
                    if i % 2 == 0:
                        connection.sendall(PREFACE)
                        time.sleep(0.005)  # until then the server counts the connection as silent
                    self.assertLessEqual(len(os.listdir(folder)), 194, i)  # 192, and new connections
            self.assertTrue(tokenize(server, wait_for_ready=True).token_ids)

    def test_livez_notices_that_nobody_can_connect_any_more(self):
        with Server(with_worker=False) as server:
            web = http.client.HTTPConnection(server.http_address, timeout=10)
            self.assertEqual(status_of(web, "/livez"), 200)
            pid = str(server.scheduler.popen.pid)

            subprocess.run(["prlimit", "--pid", pid, "--nofile=5:"], check=True)
            eventually(lambda: status_of(web, "/livez") == 503)
            subprocess.run(["prlimit", "--pid", pid, "--nofile=1000:"], check=True)

            eventually(lambda: status_of(web, "/livez") == 200)
            self.assertTrue(tokenize(server, wait_for_ready=True).token_ids)
            web.close()

    def test_the_programs_may_open_as_many_files_as_the_system_lets_them(self):
        prefix = ("prlimit", "--nofile=200:2000")
        with Server(prefix=prefix) as server:
            for process in (server.scheduler, server.worker):
                self.assertEqual(file_limit(process), 2000)
        serve = Process([*prefix, os.path.join(BIN, "quire"), "serve", "--model", MODEL, "--port=0",
                         "--http-port=0"])
        try:
            serve.wait_for("ready grpc=")
            self.assertEqual(file_limit(serve), 2000)
        finally:
            serve.popen.terminate()
            serve.popen.wait()
            serve.kill()


if __name__ == "__main__":
    unittest.main(verbosity=2)
