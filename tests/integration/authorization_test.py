#!/usr/bin/python3
"""API keys: permissions of a key, requests of a tenant, keys added and removed, and that no output has a key."""
import json
import os
import pathlib
import signal
import subprocess
import tempfile
import threading
import time
import unittest
import urllib.request

from certificates import Authority
from quire_server import (BIN, MODEL, Failure, Process, Server, admin_api, admin_stub, api, api_grpc, failure_of, generate,
                          metric)
import grpc

SERVICE = "/quire.v1.GenerationService/"
ADMIN = "/quire.v1.AdminService/"
HEALTH = "/grpc.health.v1.Health/Check"
REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
LIST_SERVICES = b"\x3a\x01*"
METHODS = [SERVICE + name for name in ("Generate", "Abort", "Tokenize", "Detokenize", "GetServerInfo", "NoSuchMethod")]
ADMIN_METHODS = [ADMIN + name for name in ("PinPrefix", "UnpinPrefix", "ListPrefixes", "GetLoad", "GetState")]
NEEDED = "authorization: a valid API key is needed (Bearer KEY)"
REFUSED_KEYS = 'quire_admission_rejects_total{reason="api_key"}'
CLIENTS = pathlib.Path(os.environ["QUIRE_SOURCE"], "deploy/clients")


def run(program, *arguments, env=None, text=""):
    return subprocess.run([os.path.join(BIN, program), *arguments], capture_output=True, text=True, timeout=120,
                          check=False, input=text, env={**os.environ, **(env or {})})


def bearer(key):
    return [("authorization", "Bearer " + key)]


def failure(channel, path, message=b"", metadata=()):
    """Returns the failure of a call with one message to any method; None if it was answered."""
    with failure_of() as failures:
        list(channel.unary_stream(path)(message, metadata=metadata, timeout=60))
    return failures[0] if failures else None


def eventually(claim, seconds=60):
    deadline = time.monotonic() + seconds
    while not claim():
        if time.monotonic() > deadline:
            raise AssertionError("did not come true in time")
        time.sleep(0.1)


def prompt(num_tokens=8, **fields):
    return api.GenerateRequest(text=b"Once upon a time", sampling={"temperature": 1, "seed": 7},
                               stopping={"max_tokens": num_tokens, "ignore_eos": True}, **fields)


class KeyFile:
    """A server's file of keys, made by `quire key`."""

    def __init__(self, path, *tenants):
        self.path = path
        self._lines = {}
        self.keys = {}
        for tenant in tenants:
            self.add(tenant)

    def add(self, tenant):
        made = run("quire", "key", "--tenant", tenant)
        assert made.returncode == 0, made
        self.keys[tenant] = made.stdout.strip()
        self._lines[tenant] = made.stderr
        self._write()

    def remove(self, tenant):
        del self._lines[tenant]
        self._write()

    def _write(self):
        pathlib.Path(self.path + ".new").write_text("# keys\n" + "".join(self._lines.values()), encoding="ascii")
        os.replace(self.path + ".new", self.path)


class KeysTest(unittest.TestCase):

    def setUp(self):
        self.folder = self.enterContext(tempfile.TemporaryDirectory(prefix="quire-keys-"))
        self.clients = KeyFile(os.path.join(self.folder, "keys"), "alice", "bob")
        self.admins = KeyFile(os.path.join(self.folder, "admin-keys"), "olga")
        self.alice, self.bob = self.clients.keys["alice"], self.clients.keys["bob"]
        self.flags = ["--api-keys-file=" + self.clients.path, "--admin-api-keys-file=" + self.admins.path]

    def write(self, name, content):
        path = os.path.join(self.folder, name)
        pathlib.Path(path).write_text(content, encoding="ascii")
        return path

    def assert_refused(self, found, what=None):
        self.assertIsNotNone(found, what)
        self.assertEqual((found.code, found.message), (grpc.StatusCode.UNAUTHENTICATED, NEEDED), what)


class AccessTest(KeysTest):

    def assert_only_keys_open(self, channel, methods, key, others):
        line = pathlib.Path(self.clients.path).read_text(encoding="ascii").split()[2]
        strangers = {"no key": [], "another key": bearer(others), "a hash": bearer(line), "no scheme": [("authorization", key)],
                     "another scheme": [("authorization", "Basic " + key)], "two keys": bearer(key) + bearer(key),
                     "a part of it": bearer(key[:-1]), "another name": [("api-key", key)],
                     "bytes": [("authorization-bin", b"Bearer " + key.encode())], "long": bearer(8000 * "x")}
        for method in methods:
            for what, metadata in strangers.items():
                self.assert_refused(failure(channel, method, metadata=metadata), (method, what))
            answer = failure(channel, method, metadata=bearer(key))
            self.assertTrue(answer is None or answer.code != grpc.StatusCode.UNAUTHENTICATED, (method, str(answer)))
        self.assertIsNone(failure(channel, HEALTH))

    def assert_ports_need_keys(self, client_channel, admin_channel):
        olga = self.admins.keys["olga"]
        self.assert_only_keys_open(client_channel, [*METHODS, REFLECTION], self.alice, olga)
        self.assert_only_keys_open(admin_channel, [*ADMIN_METHODS, REFLECTION], olga, self.alice)
        services = list(client_channel.unary_stream(REFLECTION)(LIST_SERVICES, metadata=bearer(self.bob), timeout=60))
        self.assertIn(b"quire.v1.GenerationService", services[0])

    def test_each_method_of_each_port_needs_a_key_of_that_port(self):
        with Server(*self.flags, "--enable-reflection", with_worker=False) as server:
            with server.channel() as client, grpc.insecure_channel(server.admin_address) as admin:
                self.assert_ports_need_keys(client, admin)
            num_refused = (len(METHODS) + len(ADMIN_METHODS) + 2) * 10
            self.assertEqual(metric(server, REFUSED_KEYS), num_refused)

    def test_over_tls_as_well(self):
        certificate = Authority(self.folder, "ours").issue("server")
        with Server(*self.flags, *certificate.flags()[:2], "--enable-reflection", "--host=0.0.0.0", "--admin-address=0.0.0.0:0",
                    with_worker=False) as server:
            ports = [address.rpartition(":")[2] for address in (server.address, server.admin_address)]
            channels = [certificate.channel("127.0.0.1:" + port, with_certificate=False) for port in ports]
            with channels[0], channels[1]:
                self.assert_ports_need_keys(*channels)

    def test_a_stranger_is_refused_before_its_message_is_read(self):
        end = threading.Event()

        def messages():
            end.wait(60)
            yield b""

        with Server(*self.flags) as server, server.channel() as channel:
            call = channel.stream_unary(SERVICE + "Generate").future(messages(), timeout=30)
            with failure_of() as failures:
                call.result()
            end.set()
            self.assert_refused(failures[0])
            self.assert_refused(failure(channel, SERVICE + "Generate", os.urandom(1 << 20)))
            self.assertEqual(metric(server, 'quire_requests_total{outcome="rejected"}'), 2)

            self.assertEqual(len(generate(channel, prompt(), metadata=bearer(self.alice)).tokens[0]), 8)

    def test_a_thousand_of_a_thousand_bad_keys_are_refused(self):
        with Server(*self.flags, with_worker=False) as server, server.channel() as channel:
            method = channel.unary_unary(SERVICE + "GetServerInfo")
            keys = {self.alice[:-3] + f"{i:03}" for i in range(1000)} - {self.alice} | {self.alice + "0"}
            calls = [method.future(b"", metadata=bearer(key), timeout=60) for key in list(keys)[:1000]]
            codes = {call.exception().code() for call in calls}
            self.assertEqual(codes, {grpc.StatusCode.UNAUTHENTICATED})
            self.assertEqual(metric(server, REFUSED_KEYS), 1000)

    def test_the_log_tells_who_pins(self):
        with Server(*self.flags) as server, grpc.insecure_channel(server.admin_address) as channel:
            pin = admin_api.PinPrefixRequest(text=b"Once upon a time there was a little girl. " * 4)
            pinned = admin_stub(channel).PinPrefix(pin, metadata=bearer(self.admins.keys["olga"]))
            self.assertTrue(pinned.prefix.prefix_id)
            server.scheduler.wait_for("operator asks to pin a prefix.*by=olga")


class TenantTest(KeysTest):

    def test_a_request_is_the_tenants_of_its_key(self):
        with Server(*self.flags) as server, server.channel() as channel:
            for tenant in ("", "alice"):
                self.assertTrue(generate(channel, prompt(tenant=tenant), metadata=bearer(self.alice)).tokens[0])
            with failure_of() as failures:
                generate(channel, prompt(tenant="bob"), metadata=bearer(self.alice))
            self.assertEqual((failures[0].code, failures[0].reason), (grpc.StatusCode.PERMISSION_DENIED, "TENANT_OF_KEY"))
            self.assertEqual(metric(server, 'quire_admission_rejects_total{reason="tenant_of_key"}'), 1)

    def test_an_id_is_not_another_tenants(self):
        with Server(*self.flags) as server, server.channel() as channel:
            stub = api_grpc.GenerationServiceStub(channel)
            request = prompt(900, request_id="mine")
            stream = stub.Generate(request, metadata=bearer(self.alice), timeout=120)
            next(stream)
            self.assertTrue(generate(channel, prompt(request_id="mine"), metadata=bearer(self.bob)).tokens[0])
            os.kill(server.worker.popen.pid, signal.SIGSTOP)  # the stream stays open for as long as this takes
            try:
                abort = api.AbortRequest(request_id="mine")
                with failure_of() as failures:
                    stub.Abort(abort, metadata=bearer(self.bob))
                self.assertEqual((failures[0].code, failures[0].reason), (grpc.StatusCode.NOT_FOUND, "REQUEST_ID"))
                with failure_of() as failures:
                    generate(channel, request, metadata=bearer(self.alice))
                self.assertEqual(failures[0].reason, "REQUEST_ID_IN_USE")

                stub.Abort(abort, metadata=bearer(self.alice))
            finally:
                os.kill(server.worker.popen.pid, signal.SIGCONT)

            with failure_of() as failures:
                list(stream)
            self.assertEqual((failures[0].code, failures[0].reason), (grpc.StatusCode.CANCELLED, "ADMIN"))


class ReloadTest(KeysTest):

    def test_a_key_that_is_taken_away_ends_no_stream_and_opens_nothing_more(self):
        with Server(*self.flags) as server, server.channel() as channel:
            expected = generate(channel, prompt(400), metadata=bearer(self.alice)).tokens[0]
            stream = api_grpc.GenerationServiceStub(channel).Generate(prompt(400), metadata=bearer(self.alice), timeout=300)
            tokens = list(next(stream).chunk.token_ids)
            os.kill(server.worker.popen.pid, signal.SIGSTOP)  # the stream stays open for as long as this takes
            try:
                self.clients.remove("alice")
                eventually(lambda: failure(channel, SERVICE + "GetServerInfo", metadata=bearer(self.alice)))
                self.assert_refused(failure(channel, SERVICE + "GetServerInfo", metadata=bearer(self.alice)))
                self.assertIsNone(failure(channel, SERVICE + "GetServerInfo", metadata=bearer(self.bob)))
            finally:
                os.kill(server.worker.popen.pid, signal.SIGCONT)

            for message in stream:
                tokens += message.chunk.token_ids
            self.assertEqual(tokens, expected)
            with failure_of() as failures:
                generate(channel, prompt(), metadata=bearer(self.alice))
            self.assert_refused(failures[0])

    def test_a_new_key_opens_without_a_restart(self):
        with Server(*self.flags, with_worker=False) as server, server.channel() as channel:
            self.clients.add("carol")
            carol = bearer(self.clients.keys["carol"])
            eventually(lambda: failure(channel, SERVICE + "GetServerInfo", metadata=carol) is None)
            self.assertIsNone(failure(channel, SERVICE + "GetServerInfo", metadata=bearer(self.alice)))

    def test_a_broken_file_leaves_the_old_keys_and_is_told_once(self):
        with Server(*self.flags, with_worker=False) as server, server.channel() as channel:
            self.write("keys", "# keys\ncanary\n")
            told = "new API keys are not used, the old ones stay"

            def is_told():
                self.assertIsNone(failure(channel, SERVICE + "GetServerInfo", metadata=bearer(self.alice)))
                return told in server.scheduler.text()

            eventually(is_told)
            until = time.monotonic() + 2.5
            while time.monotonic() < until:
                is_told()
            self.assertEqual(server.scheduler.text().count(told), 1)
            self.assertIn("line 2: ", server.scheduler.text())
            self.assertNotIn("canary", server.scheduler.text())


class StartTest(KeysTest):

    def test_files_that_cannot_be_used_end_the_start_with_a_line(self):
        line = pathlib.Path(self.clients.path).read_text(encoding="ascii").splitlines()[1]
        cases = ((self.write("empty", ""), "holds no key"), (self.write("comments", "# canary\n"), "holds no key"),
                 (self.write("broken", line + "\n\ncanary\n"), "broken: line 3: must be"),
                 (self.write("twice", line + "\n" + line + "\n"), "twice: line 2: repeats the key of line 1"),
                 (os.path.join(self.folder, "none"), "none: cannot be opened: No such file or directory"),
                 (self.folder, "is not a regular file"))
        for flag in ("--api-keys-file", "--admin-api-keys-file"):
            for path, why in cases:
                with self.subTest(flag=flag, why=why):
                    self.assert_ended([f"{flag}={path}", "--admin-address=unix:" + self.folder + "/admin.sock"], why)

    def test_keys_that_would_cross_a_network_unencrypted_end_the_start(self):
        everywhere = ["--host=0.0.0.0", "--allow-insecure-bind"]
        self.assert_ended([*everywhere, self.flags[0]], "--api-keys-file: keys would cross the network unencrypted")
        self.assert_ended(["--admin-address=0.0.0.0:0", "--allow-insecure-bind", self.flags[1]],
                          "--admin-api-keys-file: keys would cross the network unencrypted")
        self.assert_ended([self.flags[1]], "--admin-api-keys-file: needs --admin-address")

    def assert_ended(self, flags, why):
        ended = run("quire_scheduler", "--model", MODEL, *flags)
        self.assertEqual(ended.returncode, 2, ended)
        self.assertIn(why, ended.stderr)
        self.assertEqual(ended.stderr.count("\n"), 1, ended.stderr)
        self.assertNotIn("canary", ended.stderr)


class CommandTest(KeysTest):

    def test_a_key_is_told_once_and_its_line_is_that_of_its_hash(self):
        made = run("quire", "key", "--tenant=alice")
        self.assertRegex(made.stdout, r"\Aqk-[A-Za-z0-9_-]{43}\n\Z")
        self.assertRegex(made.stderr, r"\A[0-9a-f]{64} alice\n\Z")
        hashed = run("quire", "key", "--hash", "--tenant=alice", text=made.stdout)
        self.assertEqual((hashed.stdout, hashed.stderr, hashed.returncode), (made.stderr, "", 0))
        for arguments, text, code in (([], "", 2), (["--tenant=a b"], "", 2), (["--tenant=alice", "canary"], "", 2),
                                      (["--tenant=alice", "--hash"], "", 1), (["--tenant=alice", "--hash"], "canary canary", 1),
                                      (["--tenant=alice", "--hash"], "c" * 257, 1)):
            ended = run("quire", "key", *arguments, text=text)
            self.assertEqual((ended.returncode, ended.stdout), (code, ""), ended)
            self.assertNotIn("canary canary", ended.stderr)
        self.assertEqual(run("quire", "key", "--help").returncode, 0)

    def test_commands_and_examples_bring_a_key(self):
        key_file = self.write("alice.key", self.alice + "\n")
        admin_file = self.write("olga.key", self.admins.keys["olga"])
        env = {"QUIRE_API_KEY": self.bob,
               "PYTHONPATH": ":".join([os.environ["QUIRE_PYTHON_STUBS"], str(CLIENTS / "python")])}
        with Server(*self.flags) as server:
            target = ["--server", server.address]
            tell = ["generate", *target, "--prompt=Once", "--max-tokens=8"]
            load = ["bench", "serve", *target, "--num-prompts=2", "--random-output-len=2"]
            show = ["prefix", "list", "--admin", server.admin_address]
            python = ["-B", str(CLIENTS / "python/generate_example.py"), server.address, "Once"]
            for ended in (run("quire", *tell, "--api-key-file", key_file), run("quire", *tell, env=env),
                          run("quire", *load, "--api-key-file", key_file), run("quire", *load, env=env),
                          run("quire", *show, "--api-key-file", admin_file, env=env),  # the file wins
                          run("generate_example", server.address, "Once", env=env),
                          run("/usr/bin/python3", *python, env=env)):
                self.assertEqual(ended.returncode, 0, ended)

            env["QUIRE_API_KEY"] = "canary"
            for command, key in ((("quire", *tell), env), (("quire", *load), env), (("quire", *show), env),
                                 (("generate_example", server.address, "Once"), env),
                                 (("/usr/bin/python3", *python), env), (("quire", *tell), None)):
                ended = run(*command, env=key)
                self.assertEqual(ended.returncode, 1, ended)
                self.assertIn("UNAUTHENTICATED" if "quire" in command else "valid API key", ended.stderr)
                self.assertNotIn("canary", ended.stderr)

    def test_commands_send_no_key_that_others_could_read(self):
        for command in (["generate", "--server=192.0.2.1:1", "--prompt=Once"], ["prefix", "list", "--admin=192.0.2.1:1"]):
            ended = run("quire", *command, env={"QUIRE_API_KEY": self.alice})
            self.assertEqual(ended.returncode, 2, ended)
            self.assertIn("may be sent to another machine only over TLS", ended.stderr)
            for content in ("canary canary", ""):
                ended = run("quire", *command[:-1], *(["--server=127.0.0.1:1", "--prompt=x"] if "generate" in command else
                                                      ["--admin=127.0.0.1:1"]),
                            "--api-key-file", self.write("bad.key", content))
                self.assertEqual(ended.returncode, 2, ended)
                self.assertIn("bad.key: an API key has", ended.stderr)
                self.assertNotIn("canary", ended.stderr)

    def test_serve_hands_the_files_on(self):
        serve = Process([os.path.join(BIN, "quire"), "serve", "--model", MODEL, "--port=0", "--http-port=0",
                         f"--admin-address=unix:{self.folder}/admin.sock", *self.flags])
        self.addCleanup(serve.kill)
        address = serve.wait_for(r"^quire: ready grpc=(\S+)").group(1)
        with grpc.insecure_channel(address) as channel:
            self.assert_refused(failure(channel, SERVICE + "GetServerInfo"))
            self.assertTrue(generate(channel, prompt(), metadata=bearer(self.alice)).tokens[0])
        with grpc.insecure_channel(f"unix:{self.folder}/admin.sock") as channel:
            self.assert_refused(failure(channel, ADMIN + "GetLoad", metadata=bearer(self.alice)))
            self.assertIsNone(failure(channel, ADMIN + "GetLoad", metadata=bearer(self.admins.keys["olga"])))
        self.assertNotIn("does not answer on its own address", serve.text())


class SecretsTest(KeysTest):
    """Gives unique strings to a server in each way there is, and searches its output for them."""

    PROMPT = b"canary-prompt"
    ID = "canary-request-id"
    WRONG_KEY = "canary-wrong-key"

    def requests(self, max_model_len):
        """Returns fields of requests, by the reason of their failure. Has each outcome that a client can cause."""
        long = {"text": self.PROMPT * 1000}
        return {
            "": {}, "TENANT_OF_KEY": {"tenant": "bob"}, "TENANT": {"tenant": "no tenant"}, "MODEL": {"model": "canary-model"},
            "PROMPT_TOO_LONG": long, "INVALID_UTF8": {"text": self.PROMPT + b"\xff"},
            "MAX_TOKENS_RANGE": {"stopping": {"max_tokens": -1}}, "CONTEXT_EXCEEDED": {"stopping": {"max_tokens": max_model_len}},
            "TEMPERATURE_RANGE": {"sampling": {"temperature": -1}}, "N_RANGE": {"n": 99}, "BEST_OF_RANGE": {"best_of": 99},
            "STOP_LIMIT": {"stopping": {"stop": [self.PROMPT] * 99}}, "PRIORITY": {"priority": 5},
            "TIMEOUT": {"timeout_ms": -5}, "EXPIRED_RUNNING": {"timeout_ms": 60, "stopping": {"ignore_eos": True}},
            "CACHE_SALT": {"cache_salt": b""}, "CONFLICTING_FIELDS": {"token_ids": {"ids": [1]}},
        }

    def tell(self, server, channel):
        """Returns everything that comes back to a client, as one text."""
        told = []
        info = api_grpc.GenerationServiceStub(channel).GetServerInfo(api.GetServerInfoRequest(), metadata=bearer(self.alice))
        for reason, fields in self.requests(info.max_model_len_tokens).items():
            request = api.GenerateRequest(**{"text": self.PROMPT, "request_id": self.ID, "cache_salt": b"canary-salt",
                                             "stopping": {"max_tokens": 4, "stop": [b"canary-stop"]}, **fields})
            with failure_of() as failures:
                generate(channel, request, metadata=bearer(self.alice))
            if reason != "EXPIRED_RUNNING":  # that request may also end before its timeout
                self.assertEqual([each.reason for each in failures], [reason] if reason else [])
            for each in failures:
                self.assertEqual(each.request_id, self.ID)  # the one place where a client gets its id back
                told += [str(each), json.dumps(each.metadata), *each.violations]
        for metadata in ([], bearer(self.WRONG_KEY), bearer(self.WRONG_KEY) * 2, bearer(self.WRONG_KEY * 100),
                         [("authorization", self.WRONG_KEY)]):
            request = api.GenerateRequest(text=self.PROMPT, request_id=self.ID)
            with failure_of() as failures:
                generate(channel, request, metadata=metadata)
            self.assert_refused(failures[0])
            told.append(str(failures[0]))
        for message in (self.PROMPT, b"\xff" + self.ID.encode(), self.PROMPT * (5 << 16)):
            told.append(str(failure(channel, SERVICE + "Generate", message, bearer(self.alice))))
        told.append(str(failure(channel, SERVICE + "Abort", api.AbortRequest(request_id=self.ID).SerializeToString(),
                                bearer(self.alice))))
        return "\n".join(told)

    def test_no_key_prompt_or_id_is_told(self):
        step_log = os.path.join(self.folder, "steps.log")
        with Server(*self.flags, f"--step-log={step_log}", "--require-cache-salt") as server, server.channel() as channel:
            told = self.tell(server, channel)
            with failure_of() as failures:
                admin = grpc.insecure_channel(server.admin_address)
                admin_stub(admin).GetLoad(admin_api.GetLoadRequest(), metadata=bearer(self.WRONG_KEY))
            told += str(failures[0])
            self.write("keys", self.WRONG_KEY + "\n")
            eventually(lambda: failure(channel, SERVICE + "GetServerInfo", metadata=bearer(self.alice)) is None
                       and "new API keys are not used" in server.scheduler.text())
            stream = api_grpc.GenerationServiceStub(channel).Generate(
                api.GenerateRequest(text=self.PROMPT, request_id=self.ID, cache_salt=b"canary-salt", stopping={
                    "ignore_eos": True, "max_tokens": 900}), metadata=bearer(self.alice), timeout=120)
            next(stream)
            first_worker = server.worker
            first_worker.kill()  # the group is lost with a request in it
            server.start_worker()
            for url in ("metrics", "metrics/native"):
                told += urllib.request.urlopen(f"http://{server.http_address}/{url}", timeout=10).read().decode()
            server.terminate()
            with failure_of():
                list(stream)
            server.scheduler.popen.wait(timeout=120)
            server.scheduler.kill()
            admin.close()
            told += server.scheduler.text() + first_worker.text() + server.worker.text()
        self.assertIn("quire_admission_rejects_total", told)
        for secret in (self.alice, self.alice[3:], "canary"):
            self.assertNotIn(secret, told)
        steps = pathlib.Path(step_log).read_bytes()
        for secret in (self.alice, self.bob, "canary-wrong-key", "canary-request-id", "canary-prompt"):
            self.assertNotIn(secret.encode(), steps)


if __name__ == "__main__":
    unittest.main(verbosity=2)
