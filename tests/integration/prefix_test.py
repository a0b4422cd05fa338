#!/usr/bin/python3
"""Pinned prefixes, from outside: pinned, found by requests, kept through the loss of a worker, let go."""
import contextlib
import os
import subprocess
import sys
import tempfile
import time
import unittest

import grpc

from kv_cache_test import metric, prompt_of
from quire_server import (BIN, Failure, Server, admin_api, admin_stub, api, failure_of, generate, server_info,
                          wait_until_idle)

MAGIC_TOKEN = 4000
FLAGS = ["--block-size=16", "--num-gpu-blocks-override=129", "--max-pinned-share=0.5"]


class PrefixTest(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.admin = "unix:" + os.path.join(folder.name, "admin.sock")

    def start(self, *flags):
        server = Server(*FLAGS, f"--admin-address={self.admin}", *flags)
        self.addCleanup(server.close)
        channel = server.channel()
        self.addCleanup(channel.close)
        admin_channel = grpc.insecure_channel(self.admin)
        self.addCleanup(admin_channel.close)
        return server, channel, admin_stub(admin_channel)

    def answer(self, channel, prompt):
        return generate(channel, api.GenerateRequest(token_ids=prompt, sampling={"temperature": 0},
                                                     stopping={"max_tokens": 8, "ignore_eos": True}))

    def test_requests_begin_with_what_is_pinned(self):
        server, channel, admin = self.start()
        info = server_info(channel)
        prompt = prompt_of(info, 330)
        undisturbed = self.answer(channel, prompt_of(info, 350))

        prefix = admin.PinPrefix(admin_api.PinPrefixRequest(token_ids=prompt)).prefix
        self.assertEqual((prefix.num_tokens, prefix.num_blocks), (330, 21))
        self.assertEqual(prefix.state, admin_api.PREFIX_STATE_PINNED)
        self.assertEqual(metric(server, "quire_pinned_kv_blocks"), 21)
        self.assertEqual(metric(server, "quire_pinned_prefixes"), 1)
        for first in range(1, 12):  # more than the pool keeps
            self.answer(channel, prompt_of(info, 300, first=first))
        hits = metric(server, 'quire_prefix_cache_tokens_total{result="hit"}')
        again = self.answer(channel, prompt_of(info, 350))
        self.assertEqual(again.tokens, undisturbed.tokens)
        self.assertEqual(metric(server, 'quire_prefix_cache_tokens_total{result="hit"}') - hits, 330)  # ten of them in a block that is copied

        twice = admin.PinPrefix(admin_api.PinPrefixRequest(token_ids=prompt)).prefix
        self.assertEqual(twice.prefix_id, prefix.prefix_id)
        self.assertEqual([p.prefix_id for p in admin.ListPrefixes(admin_api.ListPrefixesRequest()).prefixes],
                         [prefix.prefix_id])
        admin.UnpinPrefix(admin_api.UnpinPrefixRequest(prefix_id=prefix.prefix_id))
        self.assertEqual(len(admin.ListPrefixes(admin_api.ListPrefixesRequest()).prefixes), 0)
        wait_until_idle(server)

    def test_a_prefix_outlives_its_worker(self):
        server, channel, admin = self.start()
        info = server_info(channel)
        prefix = admin.PinPrefix(admin_api.PinPrefixRequest(token_ids=prompt_of(info, 64))).prefix
        server.worker.kill()
        server.start_worker()
        self.answer(channel, prompt_of(info, 80))
        kept = admin.ListPrefixes(admin_api.ListPrefixesRequest()).prefixes
        self.assertEqual([(p.prefix_id, p.state) for p in kept],
                         [(prefix.prefix_id, admin_api.PREFIX_STATE_PINNED)])

    def test_a_prefix_outlives_its_scheduler(self):
        file = self.admin.removeprefix("unix:") + ".pins"
        server, channel, admin = self.start(f"--pinned-prefixes-file={file}")
        info = server_info(channel)
        undisturbed = self.answer(channel, prompt_of(info, 120))
        pins = [(prompt_of(info, 100), b""), (prompt_of(info, 64, first=9), b"salt"),
                (prompt_of(info, 64, first=8), b"")]
        ids = [admin.PinPrefix(admin_api.PinPrefixRequest(token_ids=tokens, cache_salt=salt)).prefix.prefix_id
               for tokens, salt in pins]
        admin.UnpinPrefix(admin_api.UnpinPrefixRequest(prefix_id=ids[2]))
        self.assertEqual(os.stat(file).st_mode & 0o777, 0o600)

        server.kill_scheduler()
        server.wait_until_ready()
        with server.channel() as channel:
            # The first answer comes behind them: they were there first.
            self.assertEqual(self.answer(channel, prompt_of(info, 120)).tokens, undisturbed.tokens)
            self.assertEqual(metric(server, 'quire_prefix_cache_tokens_total{result="hit"}'), 100)
            kept = self.prefixes(admin)
            self.assertEqual([(p.num_tokens, p.state) for p in kept],
                             [(100, admin_api.PREFIX_STATE_PINNED), (64, admin_api.PREFIX_STATE_PINNED)])
            again = admin.PinPrefix(admin_api.PinPrefixRequest(token_ids=pins[1][0], cache_salt=b"salt"))
            self.assertEqual(again.prefix.prefix_id, kept[1].prefix_id)
            admin.UnpinPrefix(admin_api.UnpinPrefixRequest(prefix_id=kept[0].prefix_id))

        server.kill_scheduler()
        server.wait_until_ready()
        with server.channel() as channel:
            self.answer(channel, prompt_of(info, 80))
            self.assertEqual([p.num_tokens for p in self.prefixes(admin)], [64])

    def test_a_prefix_that_crashes_its_workers_is_kept_no_longer(self):
        file = self.admin.removeprefix("unix:") + ".pins"
        server, channel, admin = self.start(f"--pinned-prefixes-file={file}")
        info = server_info(channel)
        poison = prompt_of(info, 64, first=9)
        poison["ids"][40] = MAGIC_TOKEN
        for tokens in (poison, prompt_of(info, 64)):
            admin.PinPrefix(admin_api.PinPrefixRequest(token_ids=tokens))

        server.worker.kill()
        server._worker_flags = [f"--fail-points=crash-on-token={MAGIC_TOKEN}"]
        server.kill_scheduler()
        deadline = time.monotonic() + 60
        while "is no longer pinned" not in server.scheduler.text() and time.monotonic() < deadline:
            if server.worker.popen.poll() is not None:
                with contextlib.suppress(AssertionError):  # it may crash before it says that it is ready
                    server.start_worker()
            time.sleep(0.05)

        server.scheduler.wait_for("a pinned prefix crashed its workers and is no longer pinned", seconds=1)
        while self.prefixes(admin)[-1].state != admin_api.PREFIX_STATE_PINNED and time.monotonic() < deadline:
            time.sleep(0.05)
        self.assertEqual(len(self.prefixes(admin)), 1)
        while (lines := self.lines_of(file)) != 2 and time.monotonic() < deadline:
            time.sleep(0.05)  # it is saved beside, after the log says it
        self.assertEqual(lines, 2)  # the title and the good line

    @staticmethod
    def lines_of(file):
        with open(file) as saved:
            return len(saved.readlines())

    def prefixes(self, admin):
        deadline = time.monotonic() + 20
        while True:
            try:
                return admin.ListPrefixes(admin_api.ListPrefixesRequest(), wait_for_ready=True, timeout=20).prefixes
            except grpc.RpcError as error:
                # A call may be the first to notice that the scheduler of its connection was killed.
                is_torn = error.code() == grpc.StatusCode.UNAVAILABLE and not Failure(error).reason
                if not is_torn or time.monotonic() > deadline:
                    raise

    def test_a_damaged_file_is_set_aside(self):
        file = self.admin.removeprefix("unix:") + ".pins"
        with open(file, "w") as out:
            out.write("quire pinned prefixes 1 0\n- 1 2 3\n")
        server, channel, admin = self.start(f"--pinned-prefixes-file={file}")
        self.assertEqual(len(self.prefixes(admin)), 0)
        server.scheduler.wait_for("is damaged, so it is renamed")
        self.assertTrue(os.path.exists(file + ".damaged"))
        self.answer(channel, prompt_of(server_info(channel), 40))

    def test_a_file_that_cannot_be_used_stops_no_server(self):
        server, channel, admin = self.start("--pinned-prefixes-file=/proc/no/such/file")
        info = server_info(channel)
        with failure_of() as failures:
            admin.PinPrefix(admin_api.PinPrefixRequest(token_ids=prompt_of(info, 64)))
        self.assertEqual((failures[0].code, failures[0].reason),
                         (grpc.StatusCode.FAILED_PRECONDITION, "PREFIX_FILE"))
        server.scheduler.wait_for("cannot be saved, so a restart loses them")
        self.answer(channel, prompt_of(info, 80))

    def test_every_wrong_call_has_its_code(self):
        _, channel, admin = self.start()
        info = server_info(channel)

        def pin(**fields):
            return lambda: admin.PinPrefix(admin_api.PinPrefixRequest(**fields))

        code = grpc.StatusCode
        for call, expected in [
                (pin(), (code.INVALID_ARGUMENT, "MISSING_FIELD")),
                (pin(text=b"a", token_ids={"ids": [1]}), (code.INVALID_ARGUMENT, "CONFLICTING_FIELDS")),
                (pin(token_ids={}), (code.INVALID_ARGUMENT, "EMPTY_PROMPT")),
                (pin(token_ids={"ids": [5] * 15}), (code.INVALID_ARGUMENT, "PREFIX_TOO_SHORT")),
                (pin(token_ids={"ids": [info.vocab_size] * 20}), (code.INVALID_ARGUMENT, "TOKEN_ID_RANGE")),
                (pin(token_ids={"ids": [5] * info.max_model_len_tokens}), (code.INVALID_ARGUMENT, "PROMPT_TOO_LONG")),
                (pin(token_ids=prompt_of(info, 64 * 16 + 16)), (code.RESOURCE_EXHAUSTED, "PINNED_SHARE")),
                (pin(token_ids=prompt_of(info, 32), cache_salt=b"x" * 129), (code.INVALID_ARGUMENT, "CACHE_SALT")),
                (pin(text=b"\xff\xfe"), (code.INVALID_ARGUMENT, "INVALID_UTF8")),
                (lambda: admin.UnpinPrefix(admin_api.UnpinPrefixRequest(prefix_id=99)), (code.NOT_FOUND, "PREFIX")),
        ]:
            with failure_of() as failures:
                call()
            self.assertEqual((failures[0].code, failures[0].reason), expected)
        self.answer(channel, prompt_of(info, 40))

    def test_the_command_line_pins_lists_and_unpins(self):
        self.start()

        def run(*args):
            return subprocess.run([os.path.join(BIN, "quire"), "prefix", *args, "--admin", self.admin],
                                  capture_output=True, text=True, timeout=60)

        pinned = run("pin", "--prompt", "Once upon a time there was a small house. " * 8)
        self.assertEqual(pinned.returncode, 0, pinned.stderr)
        self.assertRegex(pinned.stdout, r"^id=\d+ state=pinned tokens=\d+ blocks=\d+\n$")
        self.assertEqual(run("list").stdout, pinned.stdout)
        prefix_id = pinned.stdout.split()[0].removeprefix("id=")
        self.assertEqual(run("unpin", "--id", prefix_id).returncode, 0)
        self.assertEqual(run("list").stdout, "")
        refused = run("unpin", "--id", prefix_id)
        self.assertEqual(refused.returncode, 1)
        self.assertIn("NOT_FOUND PREFIX", refused.stderr)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v", *sys.argv[1:]])
