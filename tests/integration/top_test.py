#!/usr/bin/python3
"""A look inside a server: AdminService.GetState, /top and /top.json, and `quire top`, under load."""
import base64
import codecs
import fcntl
import hashlib
import http.client
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import threading
import time
import unittest

from google.protobuf import json_format

from quire_server import BIN, Server, admin_api, admin_stub, api, generate, grpc, server_info, wait_until_idle

ESCAPE = "\x1b"
SHOW_CURSOR, HIDE_CURSOR = ESCAPE + "[?25h", ESCAPE + "[?25l"
NORMAL_SCREEN = ESCAPE + "[?1049l"


def get_state(server):
    with grpc.insecure_channel(server.admin_address) as channel:
        return admin_stub(channel).GetState(admin_api.GetStateRequest(), timeout=20)


def http_get(server, path):
    connection = http.client.HTTPConnection(server.http_address, timeout=20)
    connection.request("GET", path)
    response = connection.getresponse()
    body = response.read()
    connection.close()
    return response, body


def get_json(server):
    response, body = http_get(server, "/top.json")
    assert response.status == 200, response.status
    assert len(body) < 64 << 10
    return json_format.Parse(body, admin_api.GetStateResponse())


class Load:
    """Requests of several kinds, one after another on each of some threads, until the end."""

    def __init__(self, server, num_threads=6):
        self._server = server
        self._end = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(i,)) for i in range(num_threads)]

    def _run(self, i):
        with self._server.channel() as channel:
            info = server_info(channel)
            common = [300 + 7 * j % 500 for j in range(3 * info.block_size_tokens)]
            for turn in range(1 << 30):
                if self._end.is_set():
                    return
                kind = {"beam_search": {"num_beams": 3}} if (i + turn) % 5 == 0 else {"n": 1 + turn % 3}
                sampling = {} if "beam_search" in kind else {"temperature": 1, "seed": turn}
                generate(channel, api.GenerateRequest(
                    token_ids={"ids": common + [400 + i, 500 + turn % 100]}, sampling=sampling,
                    request_id=f"request-{i}-{turn}", stopping={"max_tokens": 40 + 10 * i, "ignore_eos": True}, **kind))

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self._end.set()
        for thread in self._threads:
            thread.join()


class StateTest(unittest.TestCase):

    def check(self, state):
        """Checks that the numbers of one state fit together."""
        blocks, cells = state.load.kv_blocks, state.block_map
        self.assertEqual(blocks.num_free + blocks.num_cached + blocks.num_active + blocks.num_leaving
                         + blocks.num_pending, blocks.num_blocks)
        self.assertEqual(sum(cells.num_cached), blocks.num_cached)
        self.assertEqual(sum(cells.num_active), blocks.num_active)
        self.assertEqual(sum(cells.num_leaving), blocks.num_leaving + blocks.num_pending)
        self.assertEqual(sum(cells.num_shared), blocks.num_shared)
        num_cells = len(cells.num_active)
        for column in (cells.num_cached, cells.num_leaving, cells.num_shared, cells.holder):
            self.assertEqual(len(column), num_cells)
        self.assertLessEqual(num_cells, 1024)
        self.assertGreaterEqual(num_cells * cells.blocks_per_cell, blocks.num_blocks)
        self.assertEqual([holder > 0 for holder in cells.holder], [active > 0 for active in cells.num_active])
        if len(cells.holders) < 24:  # all are there
            self.assertEqual(sum(each.num_blocks for each in cells.holders), blocks.num_active)
            self.assertLessEqual(set(cells.holder) - {0}, {each.number for each in cells.holders})
        for each in cells.holders:
            self.assertRegex(each.request_id, r"^request-\d+-\d+$")

    def test_each_moment_of_a_loaded_server_fits_together(self):
        flags = ["--preemption-mode=swap", "--block-size=8"]
        with Server(*flags, worker_flags=["--num-gpu-blocks-override=120", "--swap-space=1"]) as server:
            with Load(server):
                states = []
                deadline = time.monotonic() + 6
                while time.monotonic() < deadline:
                    states += [get_state(server), get_json(server)]
                    time.sleep(0.02)
            wait_until_idle(server)
        whole = [state for state in states if state.HasField("block_map")]
        self.assertGreater(len(whole), len(states) - 3)  # the first JSON has none
        for state in whole:
            self.check(state)
        self.assertTrue(any(state.load.kv_blocks.num_shared for state in whole))
        self.assertTrue(any(len(state.block_map.holders) > 2 for state in whole))
        self.assertGreater(whole[-1].num_generated_tokens, whole[0].num_generated_tokens)
        self.assertGreater(whole[-1].steps.num_steps, whole[0].steps.num_steps)
        self.assertGreater(whole[-1].steps.worker_forward_us, 0)

    def test_the_json_is_the_answer_of_the_call(self):
        with Server() as server, server.channel() as channel:
            generate(channel, api.GenerateRequest(text=b"One day", stopping={"max_tokens": 20, "ignore_eos": True}))
            wait_until_idle(server)
            self.assertFalse(get_json(server).HasField("block_map"))
            time.sleep(0.5)
            by_http, by_call = get_json(server), get_state(server)
            self.assertTrue(by_http.HasField("block_map"))
            self.assertLess(by_http.time_us, by_call.time_us)
            by_http.time_us = by_call.time_us
            self.assertEqual(by_http, by_call)
            self.assertEqual(by_call.load.num_running_requests, 0)
            self.assertGreater(len(by_call.block_map.num_cached), 0)

    def test_it_is_there_without_a_worker_and_while_the_server_drains(self):
        with Server(with_worker=False) as server:
            state = get_state(server)
            self.assertFalse(state.load.ready)
            self.assertTrue(state.HasField("block_map"))
            self.assertEqual(len(state.block_map.num_active), 0)
            self.assertLessEqual({rank.phase for rank in state.load.ranks}, {admin_api.Rank.AWAY})
        with Server("--shutdown-timeout=20") as server, server.channel() as channel:
            stream = threading.Thread(target=generate, args=(channel, api.GenerateRequest(
                text=b"One day", request_id="request-1-1", stopping={"max_tokens": 900, "ignore_eos": True})))
            stream.start()
            while not get_state(server).load.num_running_requests:
                time.sleep(0.01)
            server.terminate()
            while get_state(server).load.ready:
                time.sleep(0.01)
            state = get_state(server)
            if state.load.num_running_requests:
                self.check(state)
            stream.join()


class PageTest(unittest.TestCase):

    def test_the_page_loads_nothing_but_its_own_json(self):
        with Server() as server:
            response, body = http_get(server, "/top")
        self.assertEqual(response.status, 200)
        self.assertEqual(response.headers["Content-Type"], "text/html; charset=utf-8")
        self.assertEqual(response.headers["Cache-Control"], "no-store")
        page = body.decode()
        policy = response.headers["Content-Security-Policy"]
        for tag in ("script", "style"):
            text = re.findall(f"<{tag}>(.*?)</{tag}>", page, re.S)
            self.assertEqual(len(text), 1)
            source = base64.b64encode(hashlib.sha256(text[0].encode()).digest()).decode()
            self.assertIn(f"{tag}-src 'sha256-{source}'", policy)
        self.assertTrue(policy.startswith("default-src 'none'; "))
        self.assertNotIn("unsafe", policy)
        for forbidden in (r"https?://", r"\bsrc=", r"<link", r"@import", r"url\(", r"innerHTML", r" style=", r" on\w+="):
            self.assertIsNone(re.search(forbidden, page), forbidden)


class Screen:
    """`quire top` in a new terminal."""

    def __init__(self, server, lines=30, columns=100, **environment):
        pid, self._fd = pty.fork()
        if pid == 0:
            os.execve(os.path.join(BIN, "quire"), ["quire", "top", "--interval=0.25", "--admin", server.admin_address],
                      {**os.environ, "TERM": "xterm-256color", "LC_ALL": "C.UTF-8", **environment})
        self._pid = pid
        # Ctrl-C makes the terminal drop output that it has not shown yet, even in the middle of a character.
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self.resize(lines, columns)
        self.text = ""

    def resize(self, lines, columns):
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def echoes(self):
        return bool(termios.tcgetattr(self._fd)[3] & termios.ECHO)

    def read_until(self, claim, seconds=60):
        deadline = time.monotonic() + seconds
        while not claim(self.text):
            if time.monotonic() > deadline:
                raise AssertionError(f"not seen in:\n{self.text!r}")
            if select.select([self._fd], [], [], 0.1)[0]:
                try:
                    self.text += self._decoder.decode(os.read(self._fd, 65536))
                except OSError:  # the other end has closed
                    break
        return self.text

    def type(self, keys):
        os.write(self._fd, keys)

    def kill(self, number):
        os.kill(self._pid, number)

    def wait(self):
        """The exit code, when all that was written is read."""
        try:
            self.read_until(lambda text: False, seconds=20)
        except AssertionError:
            pass
        return os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])

    def close(self):
        os.close(self._fd)


class TerminalTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.server = Server()
        cls.load = Load(cls.server, num_threads=2)
        cls.load.__enter__()

    @classmethod
    def tearDownClass(cls):
        cls.load.__exit__()
        cls.server.close()

    def run_piped(self, *arguments):
        return subprocess.run([os.path.join(BIN, "quire"), "top", "--admin", self.server.admin_address, *arguments],
                              capture_output=True, text=True, timeout=60)

    def screen(self, **options):
        screen = Screen(self.server, **options)
        self.addCleanup(screen.close)
        return screen

    def test_once_is_one_plain_frame(self):
        ran = self.run_piped("--once", "--interval=0.5")
        self.assertEqual((ran.returncode, ran.stderr), (0, ""))
        self.assertNotIn(ESCAPE, ran.stdout)
        self.assertTrue(ran.stdout.isascii())
        for pattern in (r"^quire \S+ .* ready ", r"^Requests +running \d", r"^Tokens +generated \d", r"^KV blocks +\d+ of",
                        r"^[.+#sc~]{40}", r"^Held by ", r"^Workers +0 unix:\S+ ready$"):
            self.assertRegex(ran.stdout, re.compile(pattern, re.M))

    def test_into_a_pipe_it_writes_lines(self):
        with subprocess.Popen([os.path.join(BIN, "quire"), "top", "--interval=0.25", "--admin", self.server.admin_address],
                              stdout=subprocess.PIPE, text=True) as top:
            lines = [top.stdout.readline() for _ in range(3)]
            top.stdout.close()  # ends it
            self.assertEqual(top.wait(timeout=20), -signal.SIGPIPE)
        for line in lines:
            pairs = dict(pair.split("=") for pair in line.split())
            states = [int(pairs[name]) for name in ("free", "cached", "active", "leaving", "pending")]
            self.assertEqual(sum(states), get_state(self.server).load.kv_blocks.num_blocks)
        self.assertGreater(float(dict(pair.split("=") for pair in lines[2].split())["generated_tokens_per_s"]), 0)

    def test_frames_follow_and_ctrl_c_gives_the_terminal_back(self):
        screen = self.screen()
        self.assertTrue(screen.echoes())
        screen.read_until(lambda text: len(set(re.findall(r"generated [\d.]+/s", text))) > 2)
        self.assertIn(HIDE_CURSOR, screen.text)
        self.assertIn(ESCAPE + "[38;5;", screen.text)
        self.assertFalse(screen.echoes())
        screen.type(b"\x03")
        self.assertEqual(screen.wait(), 0)
        self.assertTrue(screen.text.endswith(SHOW_CURSOR + NORMAL_SCREEN), repr(screen.text[-50:]))

    def test_q_ends_it_and_echo_is_back(self):
        screen = self.screen()
        screen.read_until(lambda text: "Workers" in text)
        screen.type(b"q")
        self.assertEqual(screen.wait(), 0)
        self.assertIn(SHOW_CURSOR + NORMAL_SCREEN, screen.text)

    def test_it_follows_the_size_and_honours_no_color(self):
        screen = self.screen(lines=30, columns=200, NO_COLOR="1")
        screen.read_until(lambda text: "Workers" in text)
        self.assertNotIn(ESCAPE + "[38;5;", screen.text)
        screen.resize(24, 40)
        screen.text = ""
        screen.read_until(lambda text: text.count(ESCAPE + "[H") > 2)
        frame = screen.text.split(ESCAPE + "[H")[2]
        lines = re.sub(ESCAPE + r"\[[0-9;]*[A-Za-z]", "", frame).replace("\r", "").split("\n")
        self.assertLessEqual(len(lines), 24)
        self.assertLessEqual(max(map(len, lines)), 40)
        screen.kill(signal.SIGTERM)
        self.assertEqual(screen.wait(), 0)
        self.assertTrue(screen.text.endswith(SHOW_CURSOR + NORMAL_SCREEN))

    def test_a_server_that_goes_away_is_told_of_and_found_again(self):
        with Server() as server:
            screen = Screen(server)
            self.addCleanup(screen.close)
            screen.read_until(lambda text: "Workers" in text)
            server.scheduler.kill()
            screen.read_until(lambda text: "UNAVAILABLE" in text or "DEADLINE" in text)
            server.start_scheduler()
            screen.text = ""
            screen.read_until(lambda text: any(
                " ready" in frame and "UNAVAILABLE" not in frame for frame in text.split(ESCAPE + "[H")[1:-1]))
            screen.type(b"\x03")
            self.assertEqual(screen.wait(), 0)


if __name__ == "__main__":
    unittest.main()
