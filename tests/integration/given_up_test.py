#!/usr/bin/python3
"""Two servers behind one address that leads each new connection to a ready server, as a Service of Kubernetes does.
One server gives its worker up: its clients go on at the other one.
"""
import contextlib
import os
import socket
import sys
import threading
import unittest
import urllib.error
import urllib.request

from quire_server import SOURCE, Server, api, api_grpc, generate, grpc

sys.path.insert(0, os.path.join(SOURCE, "deploy/clients/python"))
import quire_client  # noqa: E402

NUM_TOKENS = 400
TIMEOUT_S = 2  # --worker-timeout of the server that loses its worker


def request():
    return api.GenerateRequest(token_ids={"ids": [5, 6, 7]}, sampling={"temperature": 0.8, "seed": 11},
                               stopping={"max_tokens": NUM_TOKENS, "ignore_eos": True})


def is_ready(server):
    try:
        with urllib.request.urlopen(f"http://{server.http_address}/readyz", timeout=10):
            return True
    except urllib.error.HTTPError:
        return False


class ServiceAddress:
    """Passes each new connection to the first server that is ready. A connection stays where it is."""

    def __init__(self, servers):
        self._servers = servers
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.target = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._start(self._accept)

    @staticmethod
    def _start(function, *arguments):
        threading.Thread(target=function, args=arguments, daemon=True).start()

    def _accept(self):
        with contextlib.suppress(OSError):  # close() ends the loop
            while True:
                client = self._listener.accept()[0]
                server = next((each for each in self._servers if is_ready(each)), None)
                if server is None:
                    client.close()
                    continue
                host, _, port = server.address.rpartition(":")
                upstream = socket.create_connection((host, int(port)))
                self._start(self._pass_on, client, upstream)
                self._start(self._pass_on, upstream, client)

    @staticmethod
    def _pass_on(source, sink):
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
        for each in (source, sink):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def close(self):
        self._listener.close()


class GivenUpTest(unittest.TestCase):

    def test_clients_of_a_server_without_workers_go_on_at_a_ready_one(self):
        with Server(f"--worker-timeout={TIMEOUT_S}") as losing, Server() as other, \
                contextlib.closing(ServiceAddress([losing, other])) as service:
            with losing.channel() as channel:
                expected = generate(channel, request()).tokens[0]
            tokens = []
            with grpc.insecure_channel(service.target, quire_client.CHANNEL_OPTIONS) as channel:
                for message in quire_client.generate([channel], request(), max_unanswered_s=20):
                    if not tokens:
                        losing.worker.kill()
                    tokens += message.chunk.token_ids
            self.assertEqual(tokens, expected)
            # The server accepts connections again, so that a client with no other server is told why.
            with losing.channel() as channel, self.assertRaises(grpc.RpcError) as refusal:
                list(api_grpc.GenerationServiceStub(channel).Generate(request(), wait_for_ready=True, timeout=10))
            self.assertIn("no worker group is ready", refusal.exception.details())


if __name__ == "__main__":
    unittest.main(verbosity=2)
