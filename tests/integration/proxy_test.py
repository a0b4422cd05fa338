#!/usr/bin/python3
"""deploy/proxy/haproxy.cfg: the traffic that it lets through and refuses. Skipped where there is no haproxy."""
import os
import shutil
import sys
import threading
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../flood"))

from floods import FLOODS, PATH, WATCH, HeldCalls  # noqa: E402
from quire_server import (admin_api, admin_stub, api, api_grpc, failure_of, generate,  # noqa: E402
                          server_info)
from proto.grpc.health.v1 import health_pb2, health_pb2_grpc  # noqa: E402
from run import Proxy  # noqa: E402
from serve_test import Served  # noqa: E402
import grpc  # noqa: E402


@unittest.skipUnless(shutil.which("haproxy"), "haproxy is not installed")
class ProxyTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.served = cls.enterClassContext(Served())
        cls.proxy = cls.enterClassContext(Proxy(cls.served))
        cls.channel = cls.enterClassContext(grpc.insecure_channel(cls.proxy.address))

    def test_streams_come_through_token_by_token(self):
        request = api.GenerateRequest(text=b"Once upon a time", sampling={"seed": 3, "temperature": 1},
                                      stopping={"max_tokens": 60, "ignore_eos": True})
        messages = []
        answer = generate(self.channel, request, on_message=lambda: messages.append(time.monotonic()))
        with grpc.insecure_channel(self.served.address) as direct:
            self.assertEqual(answer.tokens, generate(direct, request).tokens)
        self.assertGreater(len(messages), 10)

    def test_errors_keep_their_code_and_reason(self):
        with failure_of() as failures:
            generate(self.channel, api.GenerateRequest(text=b"a", n=-1))
        self.assertEqual(failures[0].code, grpc.StatusCode.INVALID_ARGUMENT)
        self.assertNotEqual(failures[0].reason, "")

    def test_other_services_are_not_let_through(self):
        with failure_of() as failures:
            admin_stub(self.channel).GetLoad(admin_api.GetLoadRequest())
        self.assertEqual(failures[0].code, grpc.StatusCode.UNIMPLEMENTED)

    def test_large_metadata_ends_one_call_and_no_other(self):
        stub = api_grpc.GenerationServiceStub(self.channel)
        stream = stub.Generate(api.GenerateRequest(text=b"Once", stopping={"max_tokens": 300,
                                                                           "ignore_eos": True}))
        next(stream)
        with failure_of() as failures:
            stub.GetServerInfo(api.GetServerInfoRequest(), metadata=[("x-large", "y" * 9000)])
        self.assertEqual(failures[0].code, grpc.StatusCode.INTERNAL)
        self.assertGreater(len(list(stream)), 0)

    def test_a_flood_of_resets_keeps_nobody_waiting(self):
        end = time.monotonic() + 2
        flood = FLOODS["reset-requests"](self.proxy.address)
        thread = threading.Thread(target=flood.run, args=(end,))
        thread.start()
        num_answered = 0
        while time.monotonic() < end:
            with grpc.insecure_channel(self.proxy.address,
                                       options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
                self.assertTrue(server_info(channel).ready)
                num_answered += 1
            time.sleep(0.05)  # no flood of connections
        thread.join()
        self.assertGreater(flood.num_frames, 5000)
        self.assertGreater(num_answered, 5)

    def test_health_cannot_be_watched(self):
        with failure_of() as failures:
            next(health_pb2_grpc.HealthStub(self.channel).Watch(health_pb2.HealthCheckRequest()))
        self.assertEqual(failures[0].code, grpc.StatusCode.UNIMPLEMENTED)

    def test_2100_calls_of_one_address_that_watch_health_take_no_place_of_others(self):
        # Calls come as fast as one address may call, and long enough for the proxy to drop calls that wait.
        end = time.monotonic() + 30
        flood = HeldCalls(self.proxy.address, WATCH, calls_per_second=95, source="127.0.0.10")
        thread = threading.Thread(target=flood.run, args=(end,))
        thread.start()
        try:
            while time.monotonic() < end:
                self.assertTrue(server_info(self.channel).ready)
                self.assertEqual(health_pb2_grpc.HealthStub(self.channel).Check(
                    health_pb2.HealthCheckRequest()).status, health_pb2.HealthCheckResponse.SERVING)
                time.sleep(0.1)
        finally:
            thread.join()
        self.assertGreater(flood.num_frames, 2100)
        self.assertEqual(flood.num_refused, 0)

    def test_an_address_holds_500_streams_and_no_more(self):
        request = api.GenerateRequest(text=b"Once", stopping={"max_tokens": 1900, "ignore_eos": True})
        end = time.monotonic() + 8
        flood = HeldCalls(self.proxy.address, PATH, request.SerializeToString(), calls_per_second=300,
                          source="127.0.0.11")
        thread = threading.Thread(target=flood.run, args=(end,))
        thread.start()
        most = 0
        with grpc.insecure_channel(self.served.admin_address) as direct:
            while time.monotonic() < end:
                load = admin_stub(direct).GetLoad(admin_api.GetLoadRequest())
                most = max(most, load.num_running_requests + load.num_waiting_requests
                           + load.num_swapped_requests)
                self.assertTrue(server_info(self.channel).ready)
                time.sleep(0.1)
        thread.join()
        self.assertGreater(flood.num_frames, 700)
        self.assertEqual(most, 500)


if __name__ == "__main__":
    unittest.main(verbosity=2)
