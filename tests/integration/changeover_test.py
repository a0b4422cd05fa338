#!/usr/bin/python3
"""Both resuming clients dial one name of two addresses, like that of a headless Service. The server at one address
is stopped or gone. The other server closes each connection until it takes over. Servers answer from a script.

changeover_test.py server IP PORT (begin|rest): one of these servers. It tells of each call in a line.
"""
import concurrent.futures
import contextlib
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import unittest

from quire_server import BIN, SOURCE, Process, api, api_grpc, grpc

sys.path.insert(0, os.path.join(SOURCE, "deploy/clients/python"))
import quire_client  # noqa: E402

OLD, NEW = "127.0.0.2", "127.0.0.3"
# With gRPC's own settings a client would wait for 27 s at a name whose address changes, and forever at a stopped server.
PATIENCE_S = 20
PYTHON_EXAMPLE = os.path.join(SOURCE, "deploy/clients/python/generate_example.py")


class ScriptedService(api_grpc.GenerationServiceServicer):
    """Begins an answer and then stalls, or gives the rest of an answer that a client resumes."""

    def __init__(self, part):
        self._part = part

    def Generate(self, request, context):
        num_tokens = len(request.resume.sequences[0].token_ids) if request.resume.sequences else 0
        started = {"request_id": "one", "seed": 7, "determinism_fingerprint": "any", "max_tokens": 3}
        if self._part == "begin":
            yield api.GenerateResponse(started=started, chunk={"token_ids": [10, 11], "text": b"be"})
            print(f"begun for {context.peer()}", flush=True)
            threading.Event().wait()
        yield api.GenerateResponse(
            started=started, chunk={"first_position": num_tokens, "token_ids": [12], "text": b"gun"},
            finished={"num_output_tokens": num_tokens + 1, "reason": api.FINISH_REASON_LENGTH})


def serve(ip, port, part):
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(16), options=[("grpc.so_reuseport", 0)])
    api_grpc.add_GenerationServiceServicer_to_server(ScriptedService(part), server)
    assert server.add_insecure_port(f"{ip}:{port}")
    server.start()
    print("listens", flush=True)
    server.wait_for_termination()


class Standby:
    """Closes each connection at once."""

    def __init__(self, ip, port):
        self._listener = socket.create_server((ip, port), backlog=64)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self):
        with contextlib.suppress(OSError):  # stop() ends accept() with one
            while True:
                self._listener.accept()[0].close()

    def stop(self):
        with contextlib.suppress(OSError):  # stopped before
            self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()


class NameServer:
    """Answers each question for an IPv4 address, whatever the name, with `ips`."""

    def __init__(self, ips):
        self.ips = ips
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self):
        while True:
            query, client = self._socket.recvfrom(4096)
            end = query.index(b"\0", 12) + 5
            is_ipv4 = struct.unpack("!H", query[end - 4:end - 2])[0] == 1
            answers = [b"\xc0\x0c" + struct.pack("!HHIH", 1, 1, 5, 4) + socket.inet_aton(ip)
                       for ip in (self.ips if is_ipv4 else [])]
            header = query[:2] + struct.pack("!HHHHH", 0x8400, 1, len(answers), 0, 0)
            self._socket.sendto(header + query[12:end] + b"".join(answers), client)


class ChangeoverTest(unittest.TestCase):

    def setUp(self):
        with socket.create_server((OLD, 0)) as listener:
            self.port = listener.getsockname()[1]

    def start_server(self, ip, part):
        server = Process([sys.executable, "-B", __file__, "server", ip, str(self.port), part])
        self.addCleanup(server.kill)
        server.wait_for("^listens")
        return server

    def start_standby(self):
        standby = Standby(NEW, self.port)
        self.addCleanup(standby.stop)
        return standby

    def start_clients(self, name):
        """Starts a client of each language at one name, and `quire generate`, which takes addresses alone."""
        commands = {
            "python": [sys.executable, "-B", PYTHON_EXAMPLE, name, "any"],
            "c++": [os.path.join(BIN, "generate_example"), name, "any"],
            "quire": [os.path.join(BIN, "quire"), "generate", "--prompt=any",
                      "--server", f"{OLD}:{self.port},{NEW}:{self.port}"]}
        clients = {}
        for language, command in commands.items():
            clients[language] = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                env={**os.environ, "PYTHONPATH": os.environ["QUIRE_PYTHON_STUBS"]})
            self.addCleanup(clients[language].wait)
            self.addCleanup(clients[language].kill)
        return clients

    def wait_until_begun(self, server, num_clients):
        deadline = time.monotonic() + 30
        while len(re.findall("^begun for", server.text(), re.MULTILINE)) < num_clients:
            self.assertLess(time.monotonic(), deadline, server.text())
            time.sleep(0.01)

    def expect_whole_answers(self, clients, since):
        for language, client in clients.items():
            with self.subTest(language):
                left = max(1, since + PATIENCE_S - time.monotonic())
                answer, errors = client.communicate(timeout=left)
                self.assertEqual((answer.strip(), client.returncode), ("begun", 0), errors)
                print(f"{language}: {time.monotonic() - since:.1f} s at most", file=sys.stderr)

    def test_a_stopped_server_is_left_for_the_standby_that_takes_over(self):
        old = self.start_server(OLD, "begin")
        standby = self.start_standby()
        names = NameServer([OLD, NEW])
        clients = self.start_clients(f"dns://127.0.0.1:{names.port}/quire-schedulers.test:{self.port}")
        self.wait_until_begun(old, len(clients))

        old.popen.send_signal(signal.SIGSTOP)
        since = time.monotonic()
        time.sleep(2)  # the time of a takeover
        standby.stop()
        self.start_server(NEW, "rest")

        self.expect_whole_answers(clients, since)

    def test_the_new_address_of_a_name_is_found(self):
        old = self.start_server(OLD, "begin")
        names = NameServer([OLD])
        clients = self.start_clients(f"dns://127.0.0.1:{names.port}/quire-schedulers.test:{self.port}")
        self.wait_until_begun(old, len(clients))

        old.kill()
        since = time.monotonic()
        time.sleep(2)  # clients look the name up in vain meanwhile
        names.ips = [NEW]
        self.start_server(NEW, "rest")

        self.expect_whole_answers(clients, since)

    def test_an_address_that_does_not_answer_is_not_waited_for(self):
        self.start_server(NEW, "rest")
        with socket.create_server((OLD, self.port)) as silent:
            name = f"ipv4:{OLD}:{self.port},{NEW}:{self.port}"
            with grpc.insecure_channel(name, options=quire_client.CHANNEL_OPTIONS) as channel:
                answer = list(quire_client.generate([channel], api.GenerateRequest(text=b"any")))
                with silent.accept()[0] as connection:
                    self.assertTrue(is_open(connection), "the client has waited until it gave up the attempt")
        self.assertEqual([message.chunk.text for message in answer], [b"gun"])


def is_open(connection):
    """Returns whether the peer has not closed the connection. Drops bytes that the peer has sent."""
    connection.setblocking(False)
    try:
        while connection.recv(4096):
            pass
    except BlockingIOError:
        return True
    return False


if __name__ == "__main__":
    if sys.argv[1:2] == ["server"]:
        serve(*sys.argv[2:])
    else:
        unittest.main(verbosity=2)
