#!/usr/bin/python3
"""The Python client beside a server that answers from a script. Its waits take no time."""
import concurrent.futures
import os
import sys
import unittest
import unittest.mock

sys.path.insert(0, os.environ["QUIRE_PYTHON_STUBS"])
sys.path.insert(0, os.path.join(os.environ["QUIRE_SOURCE"], "deploy/clients/python"))

import grpc  # noqa: E402
import quire_client  # noqa: E402
from google.protobuf import any_pb2, duration_pb2  # noqa: E402
from proto.google.rpc import error_details_pb2, status_pb2  # noqa: E402
from proto.v1 import generation_pb2 as api  # noqa: E402
from proto.v1 import generation_pb2_grpc as api_grpc  # noqa: E402

FINGERPRINT = "cpu/bf16/0123/4567"
Code = grpc.StatusCode


def started(**changes):
    fields = {"request_id": "made-by-the-server", "seed": 7,
              "determinism_fingerprint": FINGERPRINT, "max_tokens": 500, **changes}
    return api.GenerateResponse(started=fields)


def tokens(first_position, ids, index=0):
    return api.GenerateResponse(
        chunk={"index": index, "first_position": first_position, "token_ids": ids})


def prompt(first_position, logprobs):
    return api.GenerateResponse(prompt_logprobs={
        "first_position": first_position, "logprobs": [{"logprob": logprob} for logprob in logprobs]})


def finished(num_output_tokens, index=0):
    return api.GenerateResponse(finished={"index": index, "num_output_tokens": num_output_tokens})


class End:
    """The end of a stream. details: messages of google.rpc, or bytes as they are."""

    def __init__(self, code, message="", details=()):
        self.code = code
        self.message = message
        if isinstance(details, bytes):
            self.details = details
        else:
            status = status_pb2.Status()
            for detail in details:
                any_detail = any_pb2.Any()
                any_detail.Pack(detail)
                status.details.append(any_detail)
            self.details = status.SerializeToString()


def gone():
    return End(Code.UNAVAILABLE, "gone")


def reason(name):
    return error_details_pb2.ErrorInfo(reason=name, domain="quire")


def loading():
    return End(Code.UNAVAILABLE, "loading", [reason("LOADING")])


def full(retry_delay_s=0, nanos=0):
    delay = duration_pb2.Duration(seconds=retry_delay_s, nanos=nanos)
    return End(Code.RESOURCE_EXHAUSTED, "full",
               [reason("QUEUE_FULL"), error_details_pb2.RetryInfo(retry_delay=delay)])


OK = End(Code.OK)
TOO_SMALL = End(Code.RESOURCE_EXHAUSTED, "too small", [reason("EXCEEDS_CAPACITY")])
REFUSALS = [
    TOO_SMALL,
    End(Code.RESOURCE_EXHAUSTED, "no details"),
    End(Code.RESOURCE_EXHAUSTED, "bad details", b"\xff\xff"),
    End(Code.FAILED_PRECONDITION, "fingerprint", [reason("FINGERPRINT")]),
    End(Code.INVALID_ARGUMENT, "resume", [reason("RESUME")]),
    End(Code.ABORTED, "slow"),
    End(Code.CANCELLED, "by an operator", [reason("ADMIN")]),
    End(Code.INTERNAL, "not finite", [reason("NON_FINITE_LOGITS")]),
    End(Code.UNKNOWN, "of a proxy", [reason("PROXY")]),
]


class ScriptedServer(api_grpc.GenerationServiceServicer):
    """Answers one call after the other: messages, then an End. Keeps the requests."""

    def __init__(self, *script):
        self.requests = []
        self.on_call = lambda: None
        self._script = list(script)
        self._server = grpc.server(concurrent.futures.ThreadPoolExecutor(max_workers=2))
        api_grpc.add_GenerationServiceServicer_to_server(self, self._server)
        self._port = self._server.add_insecure_port("127.0.0.1:0")
        self._server.start()

    def Generate(self, request, context):
        self.requests.append(request)
        self.on_call()
        if not self._script:
            context.abort(Code.FAILED_PRECONDITION, "the script is over")
        *messages, end = self._script.pop(0)
        yield from messages
        if end.details:
            context.set_trailing_metadata((("grpc-status-details-bin", end.details),))
        if end.code != Code.OK:
            context.abort(end.code, end.message)

    def channel(self):
        return grpc.insecure_channel(f"127.0.0.1:{self._port}")

    def stop(self):
        self._server.stop(None)


class FakeTime:
    """Time that passes when somebody sleeps, or as a test says."""

    def __init__(self):
        self.waits = []
        self._now = 1000.0

    def pass_(self, seconds):
        self._now += seconds

    def monotonic(self):
        return self._now

    def sleep(self, seconds):
        self.waits.append(seconds)
        self._now += seconds


class QuireClientTest(unittest.TestCase):

    def setUp(self):
        self.time = FakeTime()
        patch = unittest.mock.patch.object(quire_client, "time", self.time)
        patch.start()
        self.addCleanup(patch.stop)

    def server(self, *script):
        server = ScriptedServer(*script)
        self.addCleanup(server.stop)
        return server

    def run_client(self, *servers, patience=None, **fields):
        """The messages that came, and the error's message if there was one. patience: arguments of generate()."""
        messages = []
        channels = [server.channel() for server in servers]
        try:
            for message in quire_client.generate(channels, api.GenerateRequest(**fields), **patience or {}):
                messages.append(message)
        except grpc.RpcError as error:
            self.notes = getattr(error, "__notes__", [])
            return messages, error.details()
        finally:
            for channel in channels:
                channel.close()
        return messages, None

    def tokens_of(self, messages):
        return [token for message in messages for token in message.chunk.token_ids]

    def test_a_broken_stream_goes_on_at_the_next_server_as_one(self):
        first = self.server([started(), tokens(0, [10, 11]), gone()],
                            [started(), tokens(3, [13]), finished(4), OK])
        second = self.server([started(), tokens(2, [12]), End(Code.INTERNAL, "torn")])

        messages, error = self.run_client(first, second, text=b"abc")

        self.assertIsNone(error)
        self.assertEqual(self.tokens_of(messages), [10, 11, 12, 13])
        self.assertEqual(sum(message.HasField("started") for message in messages), 1)
        self.assertFalse(first.requests[0].HasField("resume"))
        resumed = second.requests[0]
        self.assertEqual((resumed.text, resumed.request_id), (b"abc", "made-by-the-server"))
        self.assertEqual(resumed.resume, api.Resume(
            seed=7, determinism_fingerprint=FINGERPRINT, max_tokens=500,
            sequences=[{"token_ids": [10, 11]}]))

    def test_log_probabilities_of_the_prompt_go_on_where_they_broke(self):
        first = self.server([started(), prompt(1, [-1, -2]), gone()])
        second = self.server([started(), prompt(3, [-3]), tokens(0, [10]), finished(1), OK])

        messages, error = self.run_client(first, second)

        self.assertIsNone(error)
        logprobs = [each.logprob for message in messages for each in message.prompt_logprobs.logprobs]
        self.assertEqual(logprobs, [-1, -2, -3])
        self.assertEqual(second.requests[0].resume.num_prompt_logprobs, 2)

    def test_a_server_that_closes_cancels_and_the_stream_goes_on(self):
        closing = self.server([started(), tokens(0, [10]), End(Code.CANCELLED, "")],
                              [End(Code.CANCELLED, "")], [started(), tokens(1, [11]), finished(2), OK])

        messages, error = self.run_client(closing)

        self.assertIsNone(error)
        self.assertEqual(self.tokens_of(messages), [10, 11])

    def test_a_length_that_was_not_told_is_not_sent_back(self):
        server = self.server([started(max_tokens=0), tokens(0, [10]), gone()],
                             [started(), finished(1), OK])

        self.assertIsNone(self.run_client(server)[1])
        self.assertFalse(server.requests[1].resume.HasField("max_tokens"))

    def test_a_refusal_of_the_first_attempt_is_raised_at_once(self):
        for refusal in [*REFUSALS, full()]:
            with self.subTest(refusal.message):
                server = self.server([refusal])

                self.assertEqual(self.run_client(server), ([], refusal.message))
                self.assertEqual(len(server.requests), 1)
        self.assertEqual(self.time.waits, [])

    def test_a_refusal_of_a_resumed_request_is_raised_at_once(self):
        for refusal in REFUSALS:
            with self.subTest(refusal.message):
                server = self.server([started(), tokens(0, [10]), gone()], [refusal])

                self.assertEqual(self.run_client(server)[1], refusal.message)
                self.assertEqual(len(server.requests), 2)

    def test_a_full_server_is_asked_again_once_the_request_is_resumed(self):
        server = self.server([started(), tokens(0, [10]), gone()], [full()], [full()],
                             [started(), tokens(1, [11]), finished(2), OK])
        never_started = self.server([gone()], [full()], [started(), finished(0), OK])

        messages, error = self.run_client(server)

        self.assertIsNone(error)
        self.assertEqual(self.tokens_of(messages), [10, 11])
        self.assertIsNone(self.run_client(never_started)[1])
        self.assertTrue(never_started.requests[1].HasField("resume"))

    def test_a_full_server_says_when_to_ask_again(self):
        server = self.server([gone()], [full(40, nanos=500_000_000)], [full(-5)],
                             [started(), finished(0), OK])

        self.assertIsNone(self.run_client(server)[1])
        self.assertAlmostEqual(self.time.waits[1], 40.5)
        self.assertLess(self.time.waits[2], quire_client.MAX_WAIT_S)

    def test_the_time_without_an_answer_is_bounded_and_the_caller_told_so(self):
        for end in (gone(), End(Code.INTERNAL, "torn"), End(Code.UNKNOWN, "torn"),
                    End(Code.CANCELLED, "closing")):
            with self.subTest(end.message):
                server = self.server(*[[end]] * 1000)
                self.time.waits.clear()

                self.assertEqual(self.run_client(server), ([], end.message))
                self.assertAlmostEqual(sum(self.time.waits), 180)
                self.assertEqual(self.notes, ["(given up after 180 s without an answer)"])

    def test_an_answer_that_has_begun_is_worth_more_patience_than_one_that_has_not(self):
        patience = {"max_unanswered_s": 60, "max_unanswered_at_first_s": 10}
        begun = self.server([started(), tokens(0, [10]), gone()], *[[gone()]] * 1000)
        never_answered = self.server(*[[gone()]] * 1000)

        loads = self.server([loading()], *[[gone()]] * 1000)

        for server, seconds in ((begun, 60), (loads, 60), (never_answered, 10)):
            self.time.waits.clear()
            self.assertEqual(self.run_client(server, patience=patience)[1], "gone")
            self.assertAlmostEqual(sum(self.time.waits), seconds)

    def test_an_attempt_counts_as_far_as_its_server_may_have_been_dead(self):
        for lasts in (7, 10, 3600):
            with self.subTest(lasts):
                server = self.server(*[[gone()]] * 1000)
                server.on_call = lambda lasts=lasts: self.time.pass_(lasts)

                self.assertEqual(self.run_client(server)[1], "gone")
                counted = min(lasts, 10) * len(server.requests)
                self.assertGreaterEqual(counted + sum(self.time.waits), 180)
                self.assertLess(counted + sum(self.time.waits), 180 + 10)
                self.time.waits.clear()

    def test_a_full_server_is_a_sign_of_life(self):
        nothing = [[gone()]] * 100  # 75 to 150 s of waits
        server = self.server([started(), tokens(0, [10]), gone()],
                             *nothing, [full()], *nothing, [full()], *nothing,
                             [started(), tokens(1, [11]), finished(2), OK])

        messages, error = self.run_client(server)

        self.assertIsNone(error)
        self.assertEqual(self.tokens_of(messages), [10, 11])
        self.assertGreater(sum(self.time.waits), 180)

    def test_waiting_for_a_place_is_bounded(self):
        with unittest.mock.patch.object(quire_client, "MAX_WAIT_FOR_A_PLACE_S", 60.0):
            server = self.server([gone()], *[[full()]] * 1000)

            self.assertEqual(self.run_client(server), ([], "full"))

        waited = sum(self.time.waits[1:])
        self.assertAlmostEqual(waited, 60)
        self.assertEqual(self.notes, ["(given up after waiting for full servers for 60 s)"])

    def test_a_message_begins_the_wait_for_a_place_anew(self):
        with unittest.mock.patch.object(quire_client, "MAX_WAIT_FOR_A_PLACE_S", 60.0):
            server = self.server([gone()], [full(50)], [started(), tokens(0, [10]), gone()],
                                 [full(50)], [full(50)], [started(), finished(1), OK])

            self.assertIsNone(self.run_client(server)[1])

    def test_a_message_begins_the_time_without_an_answer_anew(self):
        nothing = [[gone()]] * 100  # 75 to 150 s of waits
        server = self.server(*nothing, [started(), tokens(0, [10]), gone()],
                             *nothing, [started(), tokens(1, [11]), gone()],
                             *nothing, [started(), tokens(2, [12]), finished(3), OK])

        messages, error = self.run_client(server)

        self.assertIsNone(error)
        self.assertEqual(self.tokens_of(messages), [10, 11, 12])
        self.assertGreater(sum(self.time.waits), 180)

    def test_to_begin_again_is_no_progress(self):
        server = self.server(*[[started(), gone()]] * 1000)

        messages, error = self.run_client(server)

        self.assertEqual(error, "gone")
        self.assertEqual(sum(message.HasField("started") for message in messages), 1)

    def test_waits_double_up_to_the_longest(self):
        server = self.server(*[[gone()]] * 9, [started(), finished(0), OK])

        self.run_client(server)

        longest = [min(quire_client.MAX_WAIT_S, quire_client.FIRST_WAIT_S * 2**retry)
                   for retry in range(9)]
        for wait, most in zip(self.time.waits, longest, strict=True):
            self.assertTrue(most / 2 <= wait <= most, self.time.waits)

    def test_the_deadline_is_one_for_all_attempts(self):
        server = self.server([gone()], [started(), finished(0), OK])
        self.run_client(server, timeout_ms=60_000)
        self.assertEqual(server.requests[0].timeout_ms, 60_000)
        self.assertTrue(59_000 < server.requests[1].timeout_ms < 60_000)

        busy = self.server([gone()], [full(3600)])
        with self.assertRaises(TimeoutError):
            self.run_client(busy, timeout_ms=60_000)

    def test_what_breaks_behind_its_last_message_is_complete(self):
        server = self.server([started(), tokens(0, [10]), finished(1), gone()])

        messages, error = self.run_client(server)

        self.assertIsNone(error)
        self.assertEqual(self.tokens_of(messages), [10])

    def test_what_does_not_go_on_where_it_broke_is_an_error(self):
        for wrong in ([started(), tokens(2, [12])], [started(), tokens(0, [10])],
                      [started(), tokens(0, [10], index=1)], [started(), finished(2)],
                      [started(seed=8), finished(1)], [started()], [started(), prompt(2, [-1])],
                      [started(determinism_fingerprint="gpu"), finished(1)]):
            server = self.server([started(), tokens(0, [10]), gone()], [*wrong, OK])
            with self.assertRaises(quire_client.ProtocolError):
                self.run_client(server)


if __name__ == "__main__":
    unittest.main(verbosity=2)
