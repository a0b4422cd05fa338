#!/usr/bin/python3
"""`quire chat` and `quire bench serve --backend openai` beside a server of Python's http.server: through pipes, and
on a terminal with its keys."""
import contextlib
import http.server
import json
import os
import pty
import select
import signal
import subprocess
import tempfile
import termios
import threading
import time
import unittest

QUIRE = os.path.join(os.environ["QUIRE_BIN"], "quire")
SECONDS = 60


class Handler(http.server.BaseHTTPRequestHandler):
    """What the last message asks for: slow, wait, cut, refuse, once, control; else two pieces."""
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def send_json(self, status, body):
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        self.send_json(200, {"object": "list", "data": [{"id": "the-model"}]})

    def chunk(self, data):
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

    def event(self, body):
        self.chunk(b"data: " + json.dumps(body).encode() + b"\n\n")

    def text(self, text, finish_reason=None):
        part = {"delta": {"content": text}} if self.is_chat else {"text": text}
        self.event({"choices": [{"index": 0, **part, "finish_reason": finish_reason}], "usage": None})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append((self.path, dict(self.headers), body))
        self.is_chat = self.path == "/v1/chat/completions"
        asked = body["messages"][-1]["content"] if self.is_chat else ""
        if asked == "refuse" or (asked == "once" and len(self.server.requests) in (2, 3)):
            self.send_json(429, {"error": {"message": "the queue \x1b is full", "code": "QUEUE_FULL"}})
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        if self.is_chat:
            self.text("")
        if asked == "cut":
            self.text("part")
            self.close_connection = True
            return
        if asked == "slow":
            self.text("first ")
            self.connection.recv(1)  # until the client is gone
            self.server.is_gone.set()
            return
        if asked == "wait":
            self.text("first ")
            self.server.go_on.wait(SECONDS)
        self.text("\x1b]0;t\x07" if asked == "control" else "Hel")
        self.text(f"lo {len(self.server.requests)}", "stop")
        self.event({"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 2}})
        self.chunk(b"data: [DONE]\n\n")
        self.chunk(b"")


class Terminal:
    """A process on a terminal of its own."""

    def __init__(self, *args):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.execve(QUIRE, ["quire", *args], {**os.environ, "TERM": "xterm"})
        self.seen = ""

    def read_until(self, text):
        """Returns what comes up to the text."""
        while text not in self.seen:
            ready, _, _ = select.select([self.fd], [], [], SECONDS)
            assert ready, f"no {text!r} in {self.seen!r}"
            self.seen += os.read(self.fd, 4096).decode(errors="replace")
        end = self.seen.index(text) + len(text)
        came, self.seen = self.seen[:end], self.seen[end:]
        return came

    def type(self, text):
        os.write(self.fd, text.encode())

    def type_long(self, text):
        """Types and reads by turns, as a terminal, which would else wait for the program, and the program for it."""
        keys = text.encode()
        os.set_blocking(self.fd, False)
        while keys:
            readable, writable, _ = select.select([self.fd], [self.fd], [], SECONDS)
            assert readable or writable, self.seen[-200:]
            if readable:
                self.seen += os.read(self.fd, 65536).decode()
            if writable:
                with contextlib.suppress(BlockingIOError):
                    keys = keys[os.write(self.fd, keys[:4096]):]
        os.set_blocking(self.fd, True)

    def local_modes(self):
        return termios.tcgetattr(self.fd)[3]

    def modes_at_end(self):
        """Returns the local modes that the program leaves behind."""
        deadline = time.monotonic() + SECONDS
        while not self.local_modes() & termios.ICANON and time.monotonic() < deadline:
            time.sleep(0.01)
        return self.local_modes()

    def exit_code(self):
        _, status = os.waitpid(self.pid, 0)
        os.close(self.fd)
        return os.waitstatus_to_exitcode(status)


class ChatTest(unittest.TestCase):

    def setUp(self):
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.server.requests = []
        self.server.is_gone = threading.Event()
        self.server.go_on = threading.Event()
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.addCleanup(self.server.server_close)
        self.addCleanup(self.server.shutdown)
        self.url = f"--base-url=http://127.0.0.1:{self.server.server_port}"

    def run_chat(self, text, *flags, env=None):
        return subprocess.run([QUIRE, "chat", self.url, *flags], input=text, capture_output=True, timeout=SECONDS,
                              text=True, env={**os.environ, **(env or {})})

    def messages(self, index):
        return [(m["role"], m["content"]) for m in self.server.requests[index][2]["messages"]]

    def test_each_line_of_a_pipe_is_a_message(self):
        ran = self.run_chat("one\n\n/system be short\ntwo", "--temperature=0.5", "--max-tokens=9", "--seed=7",
                            env={"OPENAI_API_KEY": "sk-1"})
        self.assertEqual((ran.returncode, ran.stdout, ran.stderr), (0, "Hello 1\nHello 2\n", ""))
        _, headers, body = self.server.requests[0]
        self.assertEqual(headers["Authorization"], "Bearer sk-1")
        self.assertEqual(body, {"model": "the-model", "temperature": 0.5, "max_tokens": 9, "seed": 7, "stream": True,
                                "stream_options": {"include_usage": True},
                                "messages": [{"role": "user", "content": "one"}]})
        self.assertEqual(self.messages(1), [("system", "be short"), ("user", "one"), ("assistant", "Hello 1"),
                                            ("user", "two")])

    def test_all_of_a_pipe_is_one_message(self):
        ran = self.run_chat("one\n/quit\n", "--system=s", "-")
        self.assertEqual((ran.returncode, ran.stdout), (0, "Hello 1\n"))
        self.assertEqual(self.messages(0), [("system", "s"), ("user", "one\n/quit\n")])

    def test_a_pipe_ends_at_a_failure(self):
        for message, error in (("refuse", "RESOURCE_EXHAUSTED QUEUE_FULL: the queue ? is full"),
                               ("cut", "UNAVAILABLE HTTP_CUT: "), ("/no", "no command /no")):
            ran = self.run_chat(f"{message}\nnext\n")
            self.assertEqual(ran.returncode, 1)
            self.assertIn(error, ran.stderr)
            self.assertNotIn("next", str(self.server.requests[-1:]))

    def test_bad_flags_and_no_server(self):
        for flags, code, error in (
                (["--base-url=ftp://x"], 2, "--base-url"),
                (["--base-url=http://127.0.0.1:1"], 1, "UNAVAILABLE HTTP_CONNECT"),
                (["--base-url=http://example.com", "--ssl-ca-certs=x"], 2, "https"),
                (["--nonsense"], 2, "--nonsense"),
                (["--model=\udcff"], 2, "--model needs text in UTF-8"),
                (["--system=\udcff"], 2, "--system needs text in UTF-8"),
                (["--temperature=nan"], 2, "--temperature needs a finite number")):
            ran = self.run_chat("", *flags)
            self.assertEqual(ran.returncode, code, ran.stderr)
            self.assertIn(error, ran.stderr)
        ran = self.run_chat("", "--base-url=http://example.com", env={"OPENAI_API_KEY": "sk-1"})
        self.assertEqual(ran.returncode, 2)
        self.assertIn("only over TLS", ran.stderr)

    def test_a_terminal_has_prompts_and_figures_and_no_control_bytes(self):
        terminal = Terminal("chat", self.url)
        terminal.read_until(">>> ")
        terminal.type("control\n")
        came = terminal.read_until(">>> ")
        self.assertIn("\\u001b]0;t\\u0007lo 1", came)
        self.assertIn("\x1b[2m2 tokens", came)
        self.assertNotIn("\x1b]", came)
        terminal.type("\x04")
        self.assertEqual(terminal.exit_code(), 0)

    def test_ctrl_c_stops_the_answer_and_then_the_program(self):
        with tempfile.TemporaryDirectory() as folder:
            terminal = Terminal("chat", self.url)
            terminal.read_until(">>> ")
            terminal.type("slow\n")
            terminal.read_until("first ")
            terminal.type("\x03")
            self.assertIn("stopped", terminal.read_until(">>> "))
            self.assertTrue(self.server.is_gone.wait(SECONDS))
            terminal.type("more\n")
            terminal.read_until(">>> ")
            self.assertEqual(self.messages(1)[:2], [("user", "slow"), ("assistant", "first ")])
            terminal.type(f"/save {folder}/chat.json\n")
            terminal.read_until(">>> ")
            with open(f"{folder}/chat.json", encoding="utf-8") as file:
                saved = json.load(file)
            self.assertEqual([m["content"] for m in saved], ["slow", "first ", "more", "Hello 2"])
            terminal.type("unsent\x03")
            self.assertEqual(terminal.exit_code(), 0)
            self.assertEqual(len(self.server.requests), 2)

    def test_keys_of_a_terminal_edit_the_line_and_a_paste_is_one_message(self):
        terminal = Terminal("chat", self.url)
        self.assertIn("\x1b[?2004h", terminal.read_until(">>> "))
        for keys in ("ab\x7fc w\u00f6rd\u65e5\x7f\n", "one two\x17three\x1b[A\n", "no\x15yes\n",
                     "\x1b[200~a\n\tb\n\x1b[201~\n"):
            terminal.type(keys)
            terminal.read_until("tokens")
            terminal.read_until(">>> ")
        asked = [self.messages(i)[-1][1] for i in range(4)]
        self.assertEqual(asked, ["ac w\u00f6rd", "one three", "yes", "a\n\tb\n"])
        terminal.type("\x04")
        self.assertEqual(terminal.exit_code(), 0)

    def test_ctrl_c_behind_a_long_paste_stops_the_answer_and_drops_the_paste(self):
        terminal = Terminal("chat", self.url)
        terminal.read_until(">>> ")
        terminal.type("slow\r")
        terminal.read_until("first ")
        terminal.type_long("\x1b[200~" + "unsent\r\n" * 10000 + "\x1b[201~\x03")
        self.assertIn("stopped", terminal.read_until(">>> "))
        terminal.type("more\r")
        terminal.read_until("tokens")
        terminal.read_until(">>> ")
        self.assertEqual(self.messages(1)[-1], ("user", "more"))
        terminal.type("\x04")
        self.assertEqual(terminal.exit_code(), 0)

    def test_keys_typed_during_an_answer_are_the_next_line(self):
        terminal = Terminal("chat", self.url)
        terminal.read_until(">>> ")
        pasted = "typed ahead\n" * 1000
        terminal.type("wait\r")
        terminal.read_until("first ")
        terminal.type_long("\x1b[200~" + pasted + "\x1b[201~\r")
        self.server.go_on.set()
        terminal.read_until("Hello 2")
        self.assertEqual(self.messages(1)[-1], ("user", pasted))
        terminal.read_until(">>> ")
        terminal.type("\x04")
        self.assertEqual(terminal.exit_code(), 0)

    def test_a_paste_of_several_lines_may_begin_as_a_command_and_crlf_is_one_line_end(self):
        terminal = Terminal("chat", self.url)
        terminal.read_until(">>> ")
        for text in ("/* license\r\n */\r\n", "// code\rx = 1;"):
            terminal.type(f"\x1b[200~{text}\x1b[201~\r")
            terminal.read_until("tokens")
            terminal.read_until(">>> ")
        self.assertEqual([self.messages(i)[-1][1] for i in range(2)], ["/* license\n */\n", "// code\nx = 1;"])
        terminal.type("\x1b[200~/no\r\n\x1b[201~\r")
        self.assertIn("no command /no", terminal.read_until(">>> "))
        terminal.type("\x1b[200~/system a\r\nb\r\n\x1b[201~\r")
        terminal.read_until(">>> ")
        terminal.type("one\r")
        terminal.read_until("tokens")
        terminal.read_until(">>> ")
        self.assertEqual(self.messages(2)[0], ("system", "a\nb"))
        terminal.type("\x1b[200~/quit\r\n\x1b[201~\r")
        self.assertEqual(terminal.exit_code(), 0)

    def test_a_long_line_of_a_terminal_arrives_whole_and_a_longer_one_is_refused(self):
        terminal = Terminal("chat", self.url)
        terminal.read_until(">>> ")
        whole = "x" + " hello" * 50000 + " END"
        terminal.type_long(whole + "\n")
        terminal.read_until("tokens")
        terminal.read_until(">>> ")
        self.assertEqual(self.messages(0), [("user", whole)])
        terminal.type_long("y" * (2**20 + 1) + "\n")
        self.assertIn("too long (limit 1048576 bytes)", terminal.read_until(">>> "))
        terminal.type("more\n")
        terminal.read_until("tokens")
        self.assertEqual(self.messages(1)[-1], ("user", "more"))
        terminal.type("/quit\n")
        self.assertEqual(terminal.exit_code(), 0)

    def test_the_terminal_is_restored_at_every_end(self):
        def end(terminal):
            terminal.type("\x04")

        def terminate(terminal):
            os.kill(terminal.pid, signal.SIGTERM)

        def interrupt(terminal):
            terminal.type("unsent\x03")

        for act, code in ((end, 0), (interrupt, 0), (terminate, -signal.SIGTERM)):
            terminal = Terminal("chat", self.url)
            terminal.read_until(">>> ")
            self.assertEqual(terminal.local_modes() & (termios.ICANON | termios.ECHO), 0)
            act(terminal)
            terminal.read_until("\x1b[?2004l")
            modes = terminal.modes_at_end()
            self.assertEqual(terminal.exit_code(), code)
            self.assertEqual(modes & (termios.ICANON | termios.ECHO), termios.ICANON | termios.ECHO)

    def test_lines_may_end_as_those_of_windows(self):
        ran = self.run_chat("one\r\n\r\n/quit\r\nnever\r\n")
        self.assertEqual((ran.returncode, ran.stdout, ran.stderr), (0, "Hello 1\n", ""))
        self.assertEqual(self.messages(0), [("user", "one")])

    def test_failures_leave_the_conversation_and_can_be_asked_again(self):
        terminal = Terminal("chat", self.url)
        terminal.read_until(">>> ")
        for text, note in (("/regenerate", "no answer yet"), ("refuse", "QUEUE_FULL"), ("/regenerate", "QUEUE_FULL"),
                           ("cut", "is kept; /regenerate"), ("/regenerate", "is kept; /regenerate"), ("one", "tokens"),
                           ("/regenerate", "tokens"), ("/clear", ""), ("two", "tokens"), ("/help", "/save FILE")):
            terminal.type(text + "\n")
            self.assertIn(note, terminal.read_until(">>> "))
        cut = [("user", "cut"), ("assistant", "part")]
        self.assertEqual([self.messages(i) for i in range(len(self.server.requests))],
                         [[("user", "refuse")], [("user", "refuse")], cut[:1], cut[:1], cut + [("user", "one")],
                          cut + [("user", "one")], [("user", "two")]])
        terminal.type("/quit\n")
        self.assertEqual(terminal.exit_code(), 0)

    def test_a_regeneration_that_fails_keeps_the_answer_and_can_be_repeated(self):
        terminal = Terminal("chat", self.url)
        terminal.read_until(">>> ")
        for text, note in (("once", "tokens"), ("/regenerate", "QUEUE_FULL"), ("/regenerate", "QUEUE_FULL"),
                           ("/regenerate", "tokens"), ("two", "tokens")):
            terminal.type(text + "\n")
            self.assertIn(note, terminal.read_until(">>> "))
        self.assertEqual([self.messages(i) for i in range(4)], [[("user", "once")]] * 4)
        self.assertEqual([role for role, _ in self.messages(4)], ["user", "assistant", "user"])
        terminal.type("/quit\n")
        self.assertEqual(terminal.exit_code(), 0)

    def bench(self, backend, *flags):
        with tempfile.TemporaryDirectory() as folder:
            result = f"{folder}/result.json"
            ran = subprocess.run([QUIRE, "bench", "serve", f"--backend={backend}", self.url, "--random-input-len=4",
                                  "--random-output-len=3", "--num-warmups=0", "--save-result",
                                  f"--result-filename={result}", *flags], capture_output=True, timeout=SECONDS,
                                 text=True)
            self.assertEqual(ran.returncode, 0, ran.stderr)
            with open(result, encoding="utf-8") as file:
                return json.load(file)

    def test_bench_counts_what_the_server_reports(self):
        result = self.bench("openai", "--num-prompts=40", "--ignore-eos")
        self.assertEqual((result["completed"], result["failed"]), (40, 0))
        self.assertEqual((result["total_input_tokens"], result["total_output_tokens"]), (200, 80))
        self.assertEqual(result["max_concurrent_requests"], 40)
        self.assertGreater(result["mean_ttft_ms"], 0)
        path, _, body = self.server.requests[0]
        self.assertEqual(path, "/v1/completions")
        prompt = body.pop("prompt")
        self.assertEqual(len(prompt), 4)
        self.assertTrue(all(isinstance(token, int) and 0 <= token < 256 for token in prompt))
        self.assertEqual(body, {"model": "the-model", "temperature": 0, "max_tokens": 3, "ignore_eos": True,
                                "stream": True, "stream_options": {"include_usage": True}})

    def test_bench_of_chats_sends_words(self):
        result = self.bench("openai-chat", "--num-prompts=3", "--max-concurrency=1", "--model=m")
        self.assertEqual((result["completed"], result["total_output_tokens"]), (3, 6))
        self.assertEqual(result["max_concurrent_requests"], 1)
        path, _, body = self.server.requests[0]
        self.assertEqual((path, body["model"]), ("/v1/chat/completions", "m"))
        self.assertEqual(len(self.messages(0)[0][1].split()), 4)


if __name__ == "__main__":
    unittest.main()
