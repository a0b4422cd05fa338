#!/usr/bin/python3
"""TLS on the gRPC ports and between ranks: clients that are let in, files that change, probes and clients with TLS."""
import contextlib
import http.client
import os
import pathlib
import re
import signal
import socket
import ssl
import subprocess
import tempfile
import time
import unittest

from certificates import Authority
from quire_server import BIN, MODEL, Process, Server, api, api_grpc, generate
from proto.grpc.health.v1 import health_pb2
import grpc

HEALTH = "/grpc.health.v1.Health/Check"
# The first bytes of a TLS client's hello.
HALF_HELLO = bytes.fromhex("16030100c8010000c40303")
CLIENTS = pathlib.Path(os.environ["QUIRE_SOURCE"], "deploy/clients")


def eventually(claim, seconds=90):
    """Returns the first true value of the claim."""
    deadline = time.monotonic() + seconds
    while not (value := claim()):
        if time.monotonic() > deadline:
            raise AssertionError("did not come true in time")
        time.sleep(0.1)
    return value


def code_of_check(channel):
    """Returns the code of a failed health check over this channel; None if the check was answered."""
    with channel:
        try:
            channel.unary_unary(HEALTH, response_deserializer=health_pb2.HealthCheckResponse.FromString)(b"", timeout=60)
            return None
        except grpc.RpcError as error:
            return error.code()


def plain_channel(address):
    return grpc.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)])


def request(num_tokens=64):
    return api.GenerateRequest(text=b"Once upon a time", sampling={"temperature": 1, "seed": 7},
                               stopping={"max_tokens": num_tokens, "ignore_eos": True})


def run(program, *arguments, env=None):
    return subprocess.run([os.path.join(BIN, program), *arguments], capture_output=True, text=True, timeout=120,
                          check=False, stdin=subprocess.DEVNULL, env={**os.environ, **(env or {})})


class TlsTest(unittest.TestCase):

    def setUp(self):
        self.folder = self.enterContext(tempfile.TemporaryDirectory(prefix="quire-tls-"))
        self.authority = Authority(self.folder, "ours")
        self.server = self.authority.issue("server")
        self.client = self.authority.issue("client")

    def others(self):
        """Returns certificates that no client of ours has: of another authority, and expired. They trust the server."""
        theirs = Authority(self.folder, "theirs")
        return {"another authority": theirs.issue("stranger", believes=self.authority),
                "expired": self.authority.issue("expired", days=-1)}

    def assert_closed_to_strangers(self, address):
        for what, certificate in self.others().items():
            self.assertEqual(code_of_check(certificate.channel(address)), grpc.StatusCode.UNAVAILABLE, what)
        self.assertEqual(code_of_check(self.client.channel(address, with_certificate=False)),
                         grpc.StatusCode.UNAVAILABLE, "no certificate")
        self.assertEqual(code_of_check(plain_channel(address)), grpc.StatusCode.UNAVAILABLE, "plain text")
        self.assertIsNone(code_of_check(self.client.channel(address)), "the right one")


class PortsTest(TlsTest):

    def test_each_port_of_a_scheduler_is_for_those_with_a_certificate(self):
        with Server(*self.server.flags(), with_worker=False) as server:
            self.assert_closed_to_strangers(server.address)
            self.assert_closed_to_strangers(server.admin_address)

    def test_a_worker_is_for_those_with_a_certificate(self):
        flags = self.server.flags()
        with Server(*self.client.flags("worker-ssl"), worker_flags=flags) as server:
            self.assert_closed_to_strangers(server.worker_address)

            with server.channel() as channel:
                self.assertEqual(len(generate(channel, request()).tokens[0]), 64)

    def test_a_ticket_does_not_outlive_its_certificate_for_long(self):
        with Server(*self.server.flags(), with_worker=False) as server:
            session = os.path.join(self.folder, "session")
            own = ["-cert", self.client.certfile, "-key", self.client.keyfile]

            def handshake(*flags):
                with subprocess.Popen(
                        ["openssl", "s_client", "-connect", server.address, "-alpn", "h2", "-CAfile", self.authority.path, *flags],
                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as client:
                    time.sleep(1)  # the ticket comes behind the handshake
                    return client.communicate(timeout=60)[0]

            self.assertIn(b"\nNew, ", handshake(*own, "-sess_out", session))
            self.assertIn(b"\nReused, ", handshake("-sess_in", session))  # a session lives for some seconds
            time.sleep(11)
            self.assertIsNone(code_of_check(self.client.channel(server.address)))
            self.assertIn(b"\nNew, ", handshake("-sess_in", session))  # a new session needs a certificate
            # The scheduler dials itself all the while.
            self.assertNotIn("wrong version", server.scheduler.text())

    def test_without_authorities_clients_need_no_certificate_and_plain_text_is_refused(self):
        with Server(*self.server.flags()[:2], with_worker=False) as server:
            self.assertIsNone(code_of_check(self.client.channel(server.address, with_certificate=False)))
            self.assertEqual(code_of_check(plain_channel(server.address)), grpc.StatusCode.UNAVAILABLE)

    def test_a_client_notices_a_server_of_another_authority(self):
        impostor = Authority(self.folder, "theirs").issue("impostor", believes=self.authority)
        with Server(*impostor.flags(), with_worker=False) as server:
            self.assertEqual(code_of_check(self.client.channel(server.address)), grpc.StatusCode.UNAVAILABLE)

    def test_a_scheduler_takes_no_worker_of_another_authority(self):
        impostor = Authority(self.folder, "theirs").issue("impostor", believes=self.authority)
        with Server(*self.client.flags("worker-ssl"), with_worker=False) as server:
            server._worker_flags = impostor.flags()
            server.start_worker()

            server.scheduler.wait_for("worker not ready.*(?i:certificate)")

            server.worker.kill()
            server._worker_flags = self.server.flags()
            server.start_worker()
            server.wait_until_ready()

    def test_a_worker_at_an_address_dies_and_another_one_takes_its_place(self):
        def worker(port):
            process = Process([os.path.join(BIN, "quire_worker"), "--model", MODEL, f"--listen=127.0.0.1:{port}",
                               *self.server.flags()])
            self.addCleanup(process.kill)
            return process, process.wait_for(r"^quire_worker: ready listen=(\S+)").group(1)

        first, address = worker(0)
        with (Server(f"--workers={address}", *self.client.flags("worker-ssl"), with_worker=False) as server,
              server.channel() as channel):
            server.wait_until_ready()
            expected = generate(channel, request(400)).tokens[0]
            stream = api_grpc.GenerationServiceStub(channel).Generate(request(400), timeout=300)
            tokens = list(next(stream).chunk.token_ids)

            first.kill()
            worker(address.rpartition(":")[2])

            for message in stream:
                tokens += message.chunk.token_ids
            self.assertEqual(tokens, expected)


class ReloadTest(TlsTest):

    def test_the_authority_changes_under_a_stream_that_goes_on(self):
        authority = Authority(self.folder, "new")
        new_client = authority.issue("new-client")
        with (Server(*self.server.flags()) as server, self.client.channel(server.address) as channel):
            expected = generate(channel, request(400)).tokens[0]
            stream = api_grpc.GenerationServiceStub(channel).Generate(request(400), timeout=300)
            tokens = list(next(stream).chunk.token_ids)
            os.kill(server.worker.popen.pid, signal.SIGSTOP)  # the stream stays open for as long as this takes
            try:
                self.server.replace_by(authority.issue("new-server"))
                eventually(lambda: code_of_check(new_client.channel(server.address)) is None)
                # This client trusts the new server, and has a certificate that the old files would let in.
                self.client.authorities = authority.path
                self.assertEqual(code_of_check(self.client.channel(server.address)), grpc.StatusCode.UNAVAILABLE)
            finally:
                os.kill(server.worker.popen.pid, signal.SIGCONT)

            for message in stream:
                tokens += message.chunk.token_ids
            self.assertEqual(tokens, expected)

    def test_both_ends_of_the_link_to_a_worker_change(self):
        authority = Authority(self.folder, "new")
        with (Server(*self.client.flags("worker-ssl"), worker_flags=self.server.flags()) as server,
              server.channel() as channel):
            self.client.replace_by(authority.issue("new-client"))
            self.server.replace_by(authority.issue("new-server"))
            server.worker.kill()
            server.start_worker()

            answer = generate(channel, request(), timeout=300)

            self.assertEqual(len(answer.tokens[0]), 64)

    def test_half_of_a_new_pair_is_not_used_and_told_once(self):
        with Server(*self.server.flags(), with_worker=False) as server:
            key = pathlib.Path(self.server.keyfile)
            whole = key.read_bytes()
            for half in (whole[:len(whole) // 2], pathlib.Path(self.client.keyfile).read_bytes()):
                key.write_bytes(half)
                num_lines = len(server.scheduler.lines)
                for _ in range(2):
                    read_at = time.monotonic()
                    while time.monotonic() - read_at < 1.1:  # the files are read once a second
                        self.assertIsNone(code_of_check(self.client.channel(server.address)))
                server.scheduler.wait_for("new TLS files are not used", after=num_lines)
                told = [line for line in server.scheduler.lines[num_lines:] if "are not used" in line]
                self.assertEqual(len(told), 1, told)
            self.server.replace_by(self.authority.issue("too-old", days=-1))

            def is_told():
                self.assertIsNone(code_of_check(self.client.channel(server.address)))
                return any("the certificate has expired" in line for line in server.scheduler.lines)

            eventually(is_told)
            self.server.replace_by(self.authority.issue("renewed"))
            eventually(lambda: code_of_check(self.client.channel(server.address)) or any(
                "new TLS files are in use" in line for line in server.scheduler.lines))


class StartTest(TlsTest):

    def assert_refused(self, program, flags, why):
        ended = run(program, "--model", MODEL, *flags)
        self.assertEqual(ended.returncode, 2, ended)
        self.assertRegex(ended.stderr, "^" + program + ": .*" + why)
        self.assertEqual(ended.stderr.count("\n"), 1, ended.stderr)

    def test_files_that_cannot_be_used_end_the_start_with_a_line(self):
        other_key = self.client.flags()[1]
        garbage = os.path.join(self.folder, "garbage.pem")
        pathlib.Path(garbage).write_bytes(os.urandom(1000))
        certificate, key, authorities = self.server.flags()
        for flags, why in (((certificate,), "must be given together"),
                           ((certificate, key.replace("server", "nobody"), authorities), "nobody-key.pem: cannot be"),
                           ((certificate, other_key, authorities), "client-key.pem: is not the key"),
                           ((f"--ssl-certfile={garbage}", key, authorities), "garbage.pem: "),
                           ((certificate, key, f"--ssl-ca-certs={garbage}"), "garbage.pem: "),
                           ((certificate, key, f"--ssl-ca-certs={self.folder}"), "is not a regular file"),
                           ((authorities,), "ssl-")):
            for program in ("quire_scheduler", "quire_worker"):
                with self.subTest(program=program, flags=flags):
                    self.assert_refused(program, flags, why)

    def test_an_address_that_others_reach_needs_tls(self):
        certificate, key, authorities = self.server.flags()
        for program, flags, why in (
                ("quire_scheduler", ["--host=0.0.0.0"], "--host: other machines can reach this address"),
                ("quire_scheduler", ["--http-host=0.0.0.0", certificate, key, authorities], "--http-host: other machines"),
                ("quire_scheduler", ["--admin-address=0.0.0.0:0", certificate, key], "--admin-address: other machines"),
                ("quire_scheduler", ["--worker-ssl-certfile=x"], "--worker-ssl-certfile: must be given together"),
                ("quire_worker", ["--listen=0.0.0.0:0"], "--listen: other machines reach"),
                ("quire_worker", ["--listen=0.0.0.0:0", certificate, key], "--ssl-certfile: must be given together"),
                ("quire_worker", ["--listen=0.0.0.0:0", "--tensor-parallel-size=2"], "--listen: other machines reach"),
                ("quire_worker", ["--listen=0.0.0.0:0", *self.server.flags(), "--tensor-parallel-size=2", "--device=emu"],
                 "--listen: other machines reach this address, and NCCL")):
            with self.subTest(program=program, flags=flags):
                self.assert_refused(program, flags, why)
        with Server("--host=0.0.0.0", *self.server.flags(), "--admin-address=0.0.0.0:0", with_worker=False) as server:
            address = "127.0.0.1:" + server.address.rpartition(":")[2]
            self.assertIsNone(code_of_check(self.client.channel(address)))
        for ranks in ("1", "2"):
            worker = Process([os.path.join(BIN, "quire_worker"), "--model", MODEL, "--listen=0.0.0.0:0",
                              "--tensor-parallel-size", ranks, *self.server.flags()])
            self.addCleanup(worker.kill)
            worker.wait_for("^quire_worker: ready")


def listening_ports(pid):
    """Returns the TCP ports on which the process listens."""
    inodes = set()
    for name in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):
            inodes.update(re.findall(r"^socket:\[(\d+)\]$", os.readlink(f"/proc/{pid}/fd/{name}")))
    with open(f"/proc/{pid}/net/tcp", encoding="utf-8") as file:
        rows = [line.split() for line in file]
    return {int(row[1].rpartition(":")[2], 16) for row in rows if row[3] == "0A" and row[9] in inodes}


class RanksTest(TlsTest):
    """Ranks at addresses, as on several hosts. Their links are TCP, and need no further flag."""

    FLAGS = ["--threads=1", "--kv-cache-memory-bytes=64MiB", "--swap-space=0"]

    def expected(self, num_tokens):
        with Server(worker_flags=self.FLAGS) as server, server.channel() as channel:
            return generate(channel, request(num_tokens)).tokens[0]

    def start_rank(self, rank, port=0):
        worker = Process([os.path.join(BIN, "quire_worker"), "--model", MODEL, f"--listen=127.0.0.1:{port}",
                          "--tensor-parallel-size=2", f"--rank={rank}", "--ranks-on-host=2", *self.FLAGS,
                          *self.server.flags()])
        self.addCleanup(worker.kill)
        return worker, worker.wait_for(r"^quire_worker: ready listen=(\S+)").group(1)

    def test_they_write_what_one_worker_writes(self):
        expected = self.expected(64)
        workers = ",".join(self.start_rank(rank)[1] for rank in range(2))
        with (Server(f"--workers={workers}", *self.client.flags("worker-ssl"), with_worker=False) as server,
              server.channel() as channel):
            server.wait_until_ready()
            self.assertEqual(generate(channel, request(64)).tokens[0], expected)

    def test_one_dies_among_strangers_and_the_stream_goes_on(self):
        expected = self.expected(400)
        (lower, first), (higher, second) = [self.start_rank(rank) for rank in range(2)]
        with (contextlib.ExitStack() as stack,
              Server(f"--workers={first},{second}", *self.client.flags("worker-ssl"), with_worker=False) as server,
              server.channel() as channel):
            server.wait_until_ready()
            stream = api_grpc.GenerationServiceStub(channel).Generate(request(400), timeout=300)
            tokens = list(next(stream).chunk.token_ids)
            own = int(second.rpartition(":")[2])
            port, = listening_ports(higher.popen.pid) - {own}
            strangers = [stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=120))
                         for _ in range(60)]  # the kernel queues 64
            for i, stranger in enumerate(strangers):
                stranger.sendall((b"", b"hello" * 100, HALF_HELLO)[i % 3])

            lower.kill()
            self.start_rank(0, first.rpartition(":")[2])

            for message in stream:
                tokens += message.chunk.token_ids
            self.assertEqual(tokens, expected)
            for stranger in strangers:
                heard = b""
                with contextlib.suppress(ConnectionResetError):
                    while more := stranger.recv(4096):
                        heard += more
                # The stranger gets nothing, or one alert.
                self.assertIn(heard[:1], (b"", b"\x15"))
                self.assertLessEqual(len(heard), 7)


class ServeTest(TlsTest):

    def test_handshakes_that_never_end_do_no_harm_and_are_ended(self):
        serve = Process([os.path.join(BIN, "quire"), "serve", "--model", MODEL, "--port=0", "--http-port=0",
                         *self.server.flags()])
        self.addCleanup(serve.kill)
        address, web = serve.wait_for(r"^quire: ready grpc=(\S+) http=(\S+)").groups()
        host, _, port = address.rpartition(":")
        with contextlib.ExitStack() as stack:
            strangers = [stack.enter_context(socket.create_connection((host, int(port)), timeout=120))
                         for _ in range(300)]
            for stranger in strangers[::2]:
                stranger.sendall(HALF_HELLO)

            with self.client.channel(address) as channel:
                self.assertEqual(len(generate(channel, request()).tokens[0]), 64)
            for stranger in strangers:
                with contextlib.suppress(ConnectionResetError):
                    while stranger.recv(4096):  # until the server closes it
                        pass
        # By now the supervisor and the scheduler itself have checked several times that the scheduler lives.
        connection = http.client.HTTPSConnection(web, timeout=60, context=self.client.context())
        connection.request("POST", "/v1/completions", '{"prompt": "a", "max_tokens": 1}')
        self.assertEqual(connection.getresponse().status, 200)
        connection.close()
        stranger = ssl.create_default_context(cafile=self.client.authorities)
        with self.assertRaises((ssl.SSLError, ConnectionError)):  # it shows no certificate
            connection = http.client.HTTPSConnection(web, timeout=60, context=stranger)
            connection.request("GET", "/livez")
            connection.getresponse()
        self.assertIsNone(code_of_check(self.client.channel(address)))
        for trouble in ("does not answer on its own address", "is killed", "ended"):
            self.assertNotIn(trouble, serve.text())
        serve.popen.terminate()
        self.assertEqual(serve.popen.wait(timeout=120), 0)

    def test_the_flags_of_links_are_not_those_of_serve(self):
        ended = run("quire", "serve", "--model", MODEL, *self.client.flags("worker-ssl"))
        self.assertEqual(ended.returncode, 2)
        self.assertIn("must not be given, because serve starts the programs itself", ended.stderr)


class ClientsTest(TlsTest):

    def test_commands_and_examples_bring_a_certificate(self):
        flags = self.client.flags()
        env = {"QUIRE_SSL_CA_CERTS": self.client.authorities, "QUIRE_SSL_CERTFILE": self.client.certfile,
               "QUIRE_SSL_KEYFILE": self.client.keyfile,
               "PYTHONPATH": ":".join([os.environ["QUIRE_PYTHON_STUBS"], str(CLIENTS / "python")])}
        with Server(*self.server.flags()) as server:
            target = ["--server", server.address]
            for ended in (run("quire", "generate", *target, "--prompt=Once", "--max-tokens=8", *flags),
                          run("quire", "bench", "serve", *target, "--num-prompts=2", "--random-output-len=2", *flags),
                          run("quire", "prefix", "list", "--admin", server.admin_address, *flags),
                          run("generate_example", server.address, "Once", env=env),
                          run("/usr/bin/python3", "-B", str(CLIENTS / "python/generate_example.py"), server.address, "Once",
                              env=env)):
                self.assertEqual(ended.returncode, 0, ended)

            ended = run("quire", "prefix", "list", "--admin", server.admin_address)
            self.assertEqual(ended.returncode, 1, ended)

    def test_commands_say_which_file_they_cannot_use(self):
        for command in (["generate", "--prompt=Once"], ["prefix", "list", "--admin=127.0.0.1:1"]):
            ended = run("quire", *command, "--ssl-ca-certs", os.path.join(self.folder, "none.pem"))
            self.assertEqual(ended.returncode, 2, ended)
            self.assertIn("none.pem: cannot be opened", ended.stderr)
            ended = run("quire", *command, *self.client.flags()[:2])
            self.assertEqual(ended.returncode, 2, ended)
            self.assertIn("need --ssl-ca-certs", ended.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
