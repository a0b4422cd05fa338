#!/usr/bin/python3
"""The programs' logs: lines of JSON, and one line for each request."""
import json
import unittest

from quire_server import Server, api, api_grpc, generate, grpc

TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"  # from the W3C's example
PARENT_ID = "00f067aa0ba902b7"
TRACE = (("traceparent", f"00-{TRACE_ID}-{PARENT_ID}-01"),)
CANARY = b"canary in a coal mine"


def request(request_id, max_tokens=7, **fields):
    return api.GenerateRequest(request_id=request_id, text=CANARY,
                               stopping={"max_tokens": max_tokens, "ignore_eos": True},
                               tenant="canary-tenant", cache_salt=b"canary-salt", **fields)


def lines_of_json(process):
    """Returns the JSON lines of standard error. Lines of standard output begin with the program's name."""
    return [json.loads(line) for line in process.lines if not line.startswith("quire_")]


class RequestLogTest(unittest.TestCase):

    def ends(self, server, num):
        """Returns the lines of the requests that ended, by request id."""
        for request_id in ("cancelled", "last"):
            server.scheduler.wait_for(f'"{request_id}"', seconds=60)
        found = [line for line in lines_of_json(server.scheduler) if line["message"] == "request ended"]
        self.assertEqual(len(found), num, found)
        return {line["request_id"]: line for line in found}

    def test_a_line_of_json_for_each_request_and_nothing_of_its_text(self):
        with Server("--log-format=json", "--enable-log-requests", worker_flags=["--log-format=json"]) as server:
            with server.channel() as channel:
                stub = api_grpc.GenerationServiceStub(channel)
                list(stub.Generate(request("traced"), metadata=TRACE, timeout=60))
                list(stub.Generate(request("badly-traced"), metadata=(("traceparent", "00-1-2-3"),), timeout=60))
                list(stub.Generate(request("traced-twice"), metadata=TRACE + TRACE, timeout=60))
                with self.assertRaises(grpc.RpcError):
                    generate(channel, request("refused", sampling={"temperature": -1}))
                # The request is so long that no machine ends it before the client leaves.
                call = stub.Generate(request("cancelled", max_tokens=1500, n=16), timeout=60)
                next(call)
                call.cancel()
                answer = generate(channel, request("last", n=2, sampling={"temperature": 1, "seed": 1}))
            ends = self.ends(server, 6)

            traced = ends["traced"]
            self.assertEqual((traced["trace_id"], traced["parent_id"]), (TRACE_ID, PARENT_ID))
            self.assertEqual((traced["level"], traced["status"], traced["reason"]), ("INFO", "OK", ""))
            self.assertEqual(traced["output_tokens"], "7")
            self.assertGreater(float(traced["first_token_ms"]), 0)
            self.assertGreaterEqual(float(traced["total_ms"]), float(traced["first_token_ms"]))
            for other in ("badly-traced", "traced-twice"):
                self.assertEqual((ends[other]["status"], ends[other]["trace_id"]), ("OK", ""))
            self.assertEqual((ends["refused"]["status"], ends["refused"]["output_tokens"]), ("INVALID_ARGUMENT", "0"))
            self.assertEqual((ends["refused"]["reason"], ends["refused"]["first_token_ms"]), ("TEMPERATURE_RANGE", ""))
            self.assertEqual((ends["cancelled"]["status"], ends["cancelled"]["reason"]), ("CANCELLED", "CLIENT"))
            self.assertEqual((ends["last"]["prompt_tokens"], ends["last"]["output_tokens"]),
                             (str(answer.started.num_prompt_tokens), "14"))

            self.assertTrue(lines_of_json(server.worker))
            for process in (server.scheduler, server.worker):
                self.assertNotIn("canary", process.text())

    def test_text_by_default_and_no_line_a_request(self):
        with Server() as server, server.channel() as channel:
            generate(channel, request("silent"))
            self.assertNotIn("silent", server.scheduler.text())
            server.scheduler.wait_for(r"^[-0-9T:.]+Z INFO scheduler listens grpc=")
            self.assertRegex(server.scheduler.text(), r" INFO scheduler settings block_size=16 kv_cache_dtype=auto .*"
                             r"scheduling_policy=fcfs preemption_mode=auto .*tls=none .*admin_api_keys=off\n")


if __name__ == "__main__":
    unittest.main()
