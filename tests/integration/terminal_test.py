#!/usr/bin/python3
"""A server serves and ends though nobody reads the terminal that its standard output and error are (Ctrl-S, a
frozen ssh session). QUIRE_NUM_REQUESTS=10000 asks for more. No answer controls the terminal of who asked."""
import concurrent.futures
import contextlib
import os
import pty
import signal
import socket
import subprocess
import tempfile
import time
import unittest

from quire_server import BIN, MODEL, Server, api, failure_of, generate, grpc

# The terminal is full after 75 lines of requests.
NUM_REQUESTS = int(os.environ.get("QUIRE_NUM_REQUESTS", "300"))
NUM_CLIENTS = 8
STOP_SECONDS = 30


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class UnreadTerminalTest(unittest.TestCase):

    def setUp(self):
        self.master, self.terminal = pty.openpty()
        self.addCleanup(os.close, self.master)
        self.addCleanup(os.close, self.terminal)
        self.port = free_port()

    def start(self, program, *flags):
        popen = subprocess.Popen([os.path.join(BIN, program), *flags], stdin=subprocess.DEVNULL,
                                 stdout=self.terminal, stderr=self.terminal)
        self.addCleanup(popen.wait)
        self.addCleanup(popen.kill)
        return popen

    def serve_requests(self):
        """Sends requests. Each gets an answer, and the server logs a line for it."""
        request = api.GenerateRequest(text=b"Once", stopping={"max_tokens": 1})
        with grpc.insecure_channel(f"127.0.0.1:{self.port}") as channel:
            grpc.channel_ready_future(channel).result(timeout=60)
            self.wait_until_ready(channel, request)
            with concurrent.futures.ThreadPoolExecutor(NUM_CLIENTS) as clients:
                for answer in clients.map(lambda _: generate(channel, request, timeout=30), range(NUM_REQUESTS)):
                    self.assertEqual(len(answer.tokens[0]), 1)

    def wait_until_ready(self, channel, request):
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            with failure_of() as failures:
                generate(channel, request, timeout=30)
            if not failures:
                return
            time.sleep(0.05)
        self.fail(str(failures[0]))

    def check_end(self, popen):
        popen.send_signal(signal.SIGTERM)
        self.assertEqual(popen.wait(timeout=STOP_SECONDS), 0)

    def test_quire_serve(self):
        server = self.start("quire", "serve", "--model", MODEL, f"--port={self.port}", "--http-port=0",
                            "--enable-log-requests")
        self.serve_requests()
        self.check_end(server)

    def test_programs_started_by_hand(self):
        with tempfile.TemporaryDirectory(prefix="quire-test-") as folder:
            address = f"unix:{folder}/worker.sock"
            worker = self.start("quire_worker", "--model", MODEL, "--listen", address)
            scheduler = self.start("quire_scheduler", "--model", MODEL, "--workers", address, f"--port={self.port}",
                                   "--http-port=0", "--enable-log-requests")
            self.serve_requests()
            self.check_end(scheduler)
            self.check_end(worker)


class AnswerTest(unittest.TestCase):

    def on_terminal(self, command):
        """Returns the command's output on a terminal."""
        pid, master = pty.fork()
        if pid == 0:
            os.execvp(command[0], command)
        written = b""
        with contextlib.suppress(OSError):  # its end
            while piece := os.read(master, 65536):
                written += piece
        os.close(master)
        self.assertEqual(os.waitpid(pid, 0)[1], 0, written)
        return written.replace(b"\r\n", b"\n")

    def test_control_characters_are_escaped_on_a_terminal_alone(self):
        prompt = "\x1b]0;title\x07 \u009b2J \u00e9\n"
        with Server() as server:
            command = [os.path.join(BIN, "quire"), "generate", "--server", server.address, "--echo", "--prompt", prompt,
                       "--max-tokens=5", "--temperature=0"]
            written = self.on_terminal(command)
            self.assertTrue(written.startswith("\\u001b]0;title\\u0007 \\u009b2J \u00e9\n".encode()), written)
            piped = subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout
            self.assertTrue(piped.startswith(prompt.encode()), piped)


if __name__ == "__main__":
    unittest.main(verbosity=2)
