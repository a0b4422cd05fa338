#!/usr/bin/python3
"""A server records what it schedules; `quire replay` makes the same plans again."""
import os
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import unittest

import grpc

from quire_server import BIN, MODEL, Process, Server, api, generate, server_info, wait_until_idle

NUM_REQUESTS = 16


def replay(path):
    return subprocess.run([os.path.join(BIN, "quire"), "replay", path], capture_output=True,
                          text=True, timeout=120)


def request(i, info, **more):
    prompt = {"ids": [(11 * i + 7 * k) % (info.vocab_size - 300) + 280 for k in range(20 + 3 * i)]}
    return api.GenerateRequest(token_ids=prompt, sampling={"temperature": i % 2, "seed": i},
                               n=1 + (i % 4 == 1),
                               stopping={"max_tokens": 40 + i, "ignore_eos": i % 3 > 0}, **more)


class StepLogTest(unittest.TestCase):

    def setUp(self):
        self._folder = tempfile.TemporaryDirectory(prefix="quire-test-")
        self.addCleanup(self._folder.cleanup)
        self.path = os.path.join(self._folder.name, "steps.log")

    def number(self, ran, name):
        lines = [line.split() for line in ran.stdout.splitlines()]
        return next(int(line[1]) for line in lines if len(line) == 2 and line[0] == name)

    def load(self, server, channel):
        """Streams that finish, are cancelled, expire; a worker dies under them."""
        info = server_info(channel)
        streams = threading.Event()

        def ask(i):
            try:
                generate(channel, request(i, info), timeout=0.3 if i == 3 else 60,
                         on_message=(lambda: 1 / 0) if i == 5 else streams.set)
            except (grpc.RpcError, ZeroDivisionError):
                pass  # expired, or left

        threads = [threading.Thread(target=ask, args=(i,)) for i in range(NUM_REQUESTS)]
        for thread in threads:
            thread.start()
        self.assertTrue(streams.wait(30))
        server.worker.kill()
        server.start_worker()
        for thread in threads:
            thread.join()
        wait_until_idle(server)

    def test_a_loaded_server_replays_to_identical_plans(self):
        with Server(f"--step-log={self.path}", "--preemption-mode=swap", "--block-size=8",
                    worker_flags=["--num-gpu-blocks-override=90"]) as server:
            with server.channel() as channel:
                self.load(server, channel)
                alive = replay(self.path)  # whatever has been written so far
            server.terminate()
            self.assertEqual(server.scheduler.popen.wait(30), 0, server.scheduler.text())

        ran = replay(self.path)
        print(ran.stdout, file=sys.stderr)
        self.assertEqual(ran.returncode, 0, ran.stdout + ran.stderr)
        self.assertIn("identical: every plan and all output", ran.stdout)
        self.assertNotIn("cut short", ran.stdout)
        self.assertEqual(self.number(ran, "epochs"), 2)
        self.assertEqual(self.number(ran, "requests"), NUM_REQUESTS)
        self.assertGreater(self.number(ran, "steps"), 50)
        self.assertEqual(alive.returncode, 0, alive.stdout + alive.stderr)
        self.assertEqual(stat.S_IMODE(os.stat(self.path).st_mode), 0o600)

    def test_a_server_that_was_killed_leaves_a_log_that_replays(self):
        with Server(f"--step-log={self.path}") as server, server.channel() as channel:
            info = server_info(channel)
            generate(channel, request(0, info))
            server.scheduler.popen.send_signal(signal.SIGKILL)
            server.scheduler.popen.wait()
        ran = replay(self.path)
        self.assertEqual(ran.returncode, 0, ran.stdout + ran.stderr)
        with open(self.path, "rb") as file:
            whole = file.read()
        with open(self.path, "wb") as file:
            file.write(whole[:-3])
        ran = replay(self.path)
        self.assertEqual(ran.returncode, 0, ran.stdout + ran.stderr)
        self.assertIn("cut short", ran.stdout)
        with open(self.path, "wb") as file:
            file.write(whole[:len(whole) // 2] + b"?" + whole[len(whole) // 2 + 1:])
        ran = replay(self.path)
        self.assertEqual(ran.returncode, 1)
        self.assertIn("DATA_LOSS STEP_LOG: step log: record", ran.stderr)

    def test_a_full_disk_ends_the_log_and_not_the_service(self):
        with (Server(f"--step-log={self.path}", prefix=("prlimit", "--fsize=1000")) as server,
              server.channel() as channel):
            info = server_info(channel)
            self.assertTrue(generate(channel, request(0, info)).tokens[0])
            server.scheduler.wait_for("step log ended early; later records are missing .*File too large")
            self.assertTrue(generate(channel, request(2, info)).tokens[0])

    def test_a_file_that_cannot_be_made_is_an_error_at_the_start(self):
        process = Process([os.path.join(BIN, "quire_scheduler"), "--model", MODEL, "--port=0",
                           "--http-port=0", "--step-log=/nowhere/steps.log"])
        try:
            process.wait_for("--step-log: cannot create /nowhere/steps.log: No such file")
            self.assertNotEqual(process.popen.wait(10), 0)
        finally:
            process.kill()


if __name__ == "__main__":
    unittest.main()
