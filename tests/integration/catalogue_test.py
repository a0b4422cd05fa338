#!/usr/bin/python3
"""Bad requests of every kind, from a stock client to real processes: each gets the code and the
reason that the catalogue names, and the request after it is served as if nothing had happened."""
import math
import os
import random
import sys
import threading
import time
import unittest

from quire_server import (Failure, Server, api, api_grpc, failure_of, generate, server_info,
                          wait_until_idle)
import grpc

NUM_ROUNDS = int(os.environ.get("QUIRE_CATALOGUE_ROUNDS", "1"))
INVALID = grpc.StatusCode.INVALID_ARGUMENT
GENERATE = "/quire.v1.GenerationService/Generate"


def request(**fields):
    fields.setdefault("text", b"Once upon a time")
    fields.setdefault("stopping", {"max_tokens": 4})
    return api.GenerateRequest(**fields)


def token_ids(*ids):
    return api.GenerateRequest(token_ids=api.TokenIds(ids=ids), stopping={"max_tokens": 4})


def sampling(**fields):
    return request(sampling=fields)


def stopping(**fields):
    fields.setdefault("max_tokens", 4)
    return request(stopping=fields)


def bias(*pairs):
    return sampling(logit_bias=[{"token_id": i, "bias": b} for i, b in pairs])


def field(number, content):
    """A length-delimited field on the wire."""
    head = b""
    for varint in (number << 3 | 2, len(content)):
        while varint > 0x7F:
            head += bytes([varint & 0x7F | 0x80])
            varint >>= 7
        head += bytes([varint])
    return head + content


GOOD_BYTES = request().SerializeToString()


def rows(info):
    """(id, request or bytes, code, reason). Code None: the request is fine."""
    context = info.max_model_len_tokens
    vocab = info.vocab_size
    both = request()
    both.token_ids.ids.append(1)
    return [
        ("B001 garbage", b"\xff" * 40, INVALID, "MALFORMED_PROTO"),
        ("B002 truncated field", GOOD_BYTES[:-3], INVALID, "MALFORMED_PROTO"),
        ("B003 deep nesting", b"\x7b" * 200 + b"\x7c" * 200, INVALID, "MALFORMED_PROTO"),
        ("B004 wrong wire type", b"\x18\x05", INVALID, "MALFORMED_PROTO"),
        ("B004 wrong type below", GOOD_BYTES + field(5, b"\x08\x01"), INVALID, "MALFORMED_PROTO"),
        ("B005 few unknown bytes", GOOD_BYTES + field(5000, b"x" * 900), None, ""),
        ("B006 many unknown bytes", GOOD_BYTES + field(5000, b"x" * 1100), INVALID,
         "UNKNOWN_FIELDS"),
        ("B007 message over the limit", field(3, b"x" * (5 << 20)),
         grpc.StatusCode.RESOURCE_EXHAUSTED, ""),
        ("B015 empty message", b"", INVALID, "MISSING_FIELD"),
        ("B016 text and ids", both, INVALID, "CONFLICTING_FIELDS"),
        ("B017 no prompt", api.GenerateRequest(n=1), INVALID, "MISSING_FIELD"),
        ("B018 no token", token_ids(), INVALID, "EMPTY_PROMPT"),
        ("B018 empty text, no special tokens", request(text=b"", add_special_tokens=False), INVALID,
         "EMPTY_PROMPT"),
        ("B019 lone continuation", request(text=b"a\x80"), INVALID, "INVALID_UTF8"),
        ("B019 overlong", request(text=b"\xc0\x80"), INVALID, "INVALID_UTF8"),
        ("B019 surrogate", request(text=b"\xed\xa0\x80"), INVALID, "INVALID_UTF8"),
        ("B019 above U+10FFFF", request(text=b"\xf4\x90\x80\x80"), INVALID, "INVALID_UTF8"),
        ("B019 cut tail", request(text=b"a\xe2\x82"), INVALID, "INVALID_UTF8"),
        ("B020 NUL bytes", request(text=b"a\0b\0"), None, ""),
        ("B021 text over the byte limit", request(text=b"a" * ((1 << 20) + 1)), INVALID,
         "PROMPT_BYTES"),
        ("B022 prompt fills the context", token_ids(*[5] * context), INVALID, "PROMPT_TOO_LONG"),
        ("B022 text fills the context", request(text=b"a b " * context), INVALID,
         "PROMPT_TOO_LONG"),
        ("B023 prompt and output", stopping(max_tokens=context), INVALID, "CONTEXT_EXCEEDED"),
        ("B025 id -1", token_ids(-1), INVALID, "TOKEN_ID_RANGE"),
        ("B025 id of the vocabulary size", token_ids(vocab), INVALID, "TOKEN_ID_RANGE"),
        ("B025 largest id", token_ids(2**31 - 1), INVALID, "TOKEN_ID_RANGE"),
        ("B027 a million ids", token_ids(*[1] * 1_000_000), INVALID, "PROMPT_TOO_LONG"),
        ("B028 text of a special token", request(text=b"a <|end_of_text|> b"), None, ""),
        ("B030 max_tokens 0", stopping(max_tokens=0), INVALID, "MAX_TOKENS_RANGE"),
        ("B031 max_tokens -1", stopping(max_tokens=-1), INVALID, "MAX_TOKENS_RANGE"),
        ("B032 max_tokens over the cap", stopping(max_tokens=context + 1), INVALID,
         "MAX_TOKENS_RANGE"),
        ("B033 min over max", stopping(min_tokens=5), INVALID, "MIN_TOKENS_RANGE"),
        ("B033 min -1", stopping(min_tokens=-1), INVALID, "MIN_TOKENS_RANGE"),
        ("B034 temperature -1", sampling(temperature=-1), INVALID, "TEMPERATURE_RANGE"),
        ("B034 temperature NaN", sampling(temperature=math.nan), INVALID, "TEMPERATURE_RANGE"),
        ("B034 temperature Inf", sampling(temperature=math.inf), INVALID, "TEMPERATURE_RANGE"),
        ("B034 temperature 101", sampling(temperature=101), INVALID, "TEMPERATURE_RANGE"),
        ("B035 temperature 1e-30", sampling(temperature=1e-30), None, ""),
        ("B036 top_p 0", sampling(top_p=0), INVALID, "TOP_P_RANGE"),
        ("B036 top_p 1.5", sampling(top_p=1.5), INVALID, "TOP_P_RANGE"),
        ("B036 top_p NaN", sampling(top_p=math.nan), INVALID, "TOP_P_RANGE"),
        ("B037 top_k -1", sampling(top_k=-1), INVALID, "TOP_K_RANGE"),
        ("B037 top_k over the vocabulary", sampling(top_k=vocab + 1), INVALID, "TOP_K_RANGE"),
        ("B038 min_p 2", sampling(min_p=2), INVALID, "MIN_P_RANGE"),
        ("B039 repetition 0", sampling(repetition_penalty=0), INVALID, "PENALTY_RANGE"),
        ("B039 repetition 1e-45", sampling(repetition_penalty=1e-45), INVALID, "PENALTY_RANGE"),
        ("B039 repetition NaN", sampling(repetition_penalty=math.nan), INVALID, "PENALTY_RANGE"),
        ("B040 presence 3", sampling(presence_penalty=3), INVALID, "PENALTY_RANGE"),
        ("B040 frequency -3", sampling(frequency_penalty=-3), INVALID, "PENALTY_RANGE"),
        ("B041 n 0", request(n=0), INVALID, "N_RANGE"),
        ("B042 n 17", request(n=17), INVALID, "N_RANGE"),
        ("B048 logprobs 21", request(response={"logprobs": 21}), INVALID, "LOGPROBS_RANGE"),
        ("prompt_logprobs 21", request(response={"prompt_logprobs": 21}), INVALID, "LOGPROBS_RANGE"),
        ("B048 logprobs -1", request(response={"logprobs": -1}), INVALID, "LOGPROBS_RANGE"),
        ("B050 17 stop strings", stopping(stop=[b"x"] * 17), INVALID, "STOP_LIMIT"),
        ("B050 empty stop string", stopping(stop=[b""]), INVALID, "STOP_LIMIT"),
        ("B050 long stop string", stopping(stop=[b"x" * 257]), INVALID, "STOP_LIMIT"),
        ("B050 stop string not UTF-8", stopping(stop=[b"\x80"]), INVALID, "STOP_LIMIT"),
        ("B051 65 stop ids", stopping(stop_token_ids=[1] * 65), INVALID, "STOP_LIMIT"),
        ("B051 stop id out of range", stopping(stop_token_ids=[vocab]), INVALID, "TOKEN_ID_RANGE"),
        ("B052 301 biases", bias(*[(i, 1) for i in range(301)]), INVALID, "LOGIT_BIAS"),
        ("B052 bias id out of range", bias((vocab, 1)), INVALID, "LOGIT_BIAS"),
        ("B052 bias NaN", bias((1, math.nan)), INVALID, "LOGIT_BIAS"),
        ("B052 bias 101", bias((1, 101)), INVALID, "LOGIT_BIAS"),
        ("B055 largest seed", sampling(seed=2**64 - 1), None, ""),
        ("B061 unknown model", request(model="gpt-9"), grpc.StatusCode.NOT_FOUND, "MODEL"),
        ("B062 long model name", request(model="m" * 257), INVALID, "MODEL_NAME"),
        ("B062 control in model name", request(model="a\nb"), INVALID, "MODEL_NAME"),
        ("B068 long request id", request(request_id="i" * 129), INVALID, "REQUEST_ID"),
        ("B068 bad request id", request(request_id="a/b"), INVALID, "REQUEST_ID"),
        ("B072 timeout 0", request(timeout_ms=0), INVALID, "TIMEOUT"),
        ("B072 timeout -1", request(timeout_ms=-1), INVALID, "TIMEOUT"),
    ] + resume_rows(info)


def resume_rows(info):
    fingerprint = info.determinism_fingerprint
    failed = grpc.StatusCode.FAILED_PRECONDITION

    def resume(*sequences, seed=7, fingerprint=fingerprint, length=None, **fields):
        sequences = [{"token_ids": each} if isinstance(each, list) else each for each in sequences]
        return request(resume={"seed": seed, "determinism_fingerprint": fingerprint,
                               "sequences": sequences, "max_tokens": length}, **fields)

    stop = {"max_tokens": 40, "stop_token_ids": [301]}
    return [
        ("B090 two sequences of one", resume([300], [300]), INVALID, "RESUME"),
        ("B090 one sequence of three", resume([300], n=3), INVALID, "RESUME"),
        ("B090 many sequences", resume(*[[]] * 4000), INVALID, "RESUME"),
        ("B090 more than a message may have", resume(*[[]] * 5000), INVALID, "MALFORMED_PROTO"),
        ("B091 negative token", resume([-1]), INVALID, "TOKEN_ID_RANGE"),
        ("B091 no such token", resume([info.vocab_size]), INVALID, "TOKEN_ID_RANGE"),
        ("B092 max_tokens reached", resume([300] * 4), INVALID, "RESUME"),
        ("B092 beyond the context", resume([300] * 20_000), INVALID, "RESUME"),
        ("B093 stop token inside", resume([300, 301, 302], stopping=stop), INVALID, "RESUME"),
        ("B093 end of sequence inside", resume([info.eos_token_ids[0]]), INVALID, "RESUME"),
        ("B094 seed missing", resume([300], seed=None, sampling={"temperature": 1}), INVALID,
         "MISSING_FIELD"),
        ("B094 another seed", resume([300], sampling={"seed": 8}), INVALID, "CONFLICTING_FIELDS"),
        ("B095 another fingerprint", resume([300], fingerprint="abacus"), failed, "FINGERPRINT"),
        ("B095 no fingerprint", resume([300], fingerprint=""), INVALID, "MISSING_FIELD"),
        ("B097 no promised length", resume([300], length=0), INVALID, "RESUME"),
        ("B097 promised more than asked for", resume([300], length=5), INVALID, "RESUME"),
        ("B097 promised more than the context", resume([300], length=2**31 - 1, stopping={}), failed,
         "CONTEXT"),
        ("B096 greedy without a seed", resume([300], seed=None, sampling={"temperature": 0}), None,
         ""),
        ("B096 empty", request(resume={}), None, ""),
    ]


def send(channel, message):
    """A Generate call with a message or any bytes; the number of responses."""
    data = message if isinstance(message, bytes) else message.SerializeToString()
    call = channel.unary_stream(GENERATE, request_serializer=None, response_deserializer=None)
    return sum(1 for _ in call(data, timeout=60))


class CatalogueTest(unittest.TestCase):
    """Rows that need no special server."""

    @classmethod
    def setUpClass(cls):
        cls.server = Server()
        cls.addClassCleanup(cls.server.close)
        cls.channel = cls.server.channel()
        cls.addClassCleanup(cls.channel.close)
        cls.healthy = request(sampling={"temperature": 0}, stopping={"max_tokens": 6})
        cls.expected = generate(cls.channel, cls.healthy).tokens

    def check_healthy(self):
        self.assertEqual(generate(self.channel, self.healthy).tokens, self.expected)

    def test_every_row_gets_its_code_and_reason_and_harms_nobody(self):
        table = rows(server_info(self.channel))
        self.assertGreater(len(table), 40)
        seed = int.from_bytes(os.urandom(4), "big")
        print(f"seed {seed}", file=sys.stderr)
        chance = random.Random(seed)
        for name, message, code, reason in (row for _ in range(NUM_ROUNDS)
                                            for row in chance.sample(table, len(table))):
            with self.subTest(name):
                with failure_of() as failures:
                    self.assertGreater(send(self.channel, message), 0)
                if code is None:
                    self.assertEqual(failures, [])
                else:
                    self.assertEqual(len(failures), 1, "the request was served")
                    self.check_failure(failures[0], code, reason)
                self.check_healthy()
        wait_until_idle(self.server)

    def check_failure(self, failure, code, reason):
        self.assertEqual((failure.code, failure.reason), (code, reason), str(failure))
        self.assertLessEqual(len(failure.message), 256)
        self.assertTrue(failure.message.isascii())
        self.assertNotIn("Once upon", failure.message)
        if reason:
            self.assertTrue(failure.request_id)
        if code == INVALID:
            self.assertEqual(len(failure.violations), 1)

    def test_library_refusals_harm_nobody(self):
        unimplemented = grpc.StatusCode.UNIMPLEMENTED
        cases = [
            ("B011 method", "/quire.v1.GenerationService/Fly", [b""], unimplemented),
            ("B011 service", "/quire.v1.FlightService/Fly", [b""], unimplemented),
            # The first message is answered; the second one is never read.
            ("B012 two messages", GENERATE, [GOOD_BYTES, GOOD_BYTES], None),
            # Half-closed without a message reads as no bytes, which we refuse ourselves.
            ("B013 no message", GENERATE, [], INVALID),
        ]
        for name, method, messages, code in cases:
            with self.subTest(name):
                call = self.channel.stream_stream(method, request_serializer=None,
                                                  response_deserializer=None)
                with failure_of() as failures:
                    for _ in call(iter(messages), timeout=20):
                        pass
                if code is not None:
                    self.assertEqual(failures[0].code, code, failures[0])
                self.check_healthy()

    def test_b010_metadata_over_the_limit_is_refused(self):
        own = self.server.channel()  # this version of the library fails the whole connection
        with failure_of() as failures:
            stub = api_grpc.GenerationServiceStub(own)
            list(stub.Generate(self.healthy, metadata=[("x", "y" * 20_000)], timeout=20))
        own.close()

        self.assertEqual(failures[0].code, grpc.StatusCode.RESOURCE_EXHAUSTED)
        self.check_healthy()

    def test_b069_a_live_request_id_is_taken(self):
        stub = api_grpc.GenerationServiceStub(self.channel)
        first = request(request_id="taken", stopping={"max_tokens": 1500, "ignore_eos": True})
        running = stub.Generate(first, timeout=60)
        next(running)

        with failure_of() as failures:
            generate(self.channel, request(request_id="taken"))
        running.cancel()
        wait_until_idle(self.server)
        again = generate(self.channel, request(request_id="taken"))

        self.assertEqual((failures[0].code, failures[0].reason),
                         (grpc.StatusCode.ALREADY_EXISTS, "REQUEST_ID_IN_USE"))
        self.assertEqual(again.started.request_id, "taken")

    def test_b073_b076_deadlines(self):
        long = {"max_tokens": 1500, "ignore_eos": True}
        with failure_of() as failures:
            generate(self.channel, request(stopping=long), timeout=0.1)
        self.assertEqual(failures[0].code, grpc.StatusCode.DEADLINE_EXCEEDED)
        try:
            generate(self.channel, request(stopping=long, timeout_ms=200))
            self.fail("the request was served")
        except grpc.RpcError as error:
            failure = Failure(error)
            self.assertEqual((failure.code, failure.reason),
                             (grpc.StatusCode.DEADLINE_EXCEEDED, "EXPIRED_RUNNING"))
            # Every token that was committed had been sent.
            self.assertEqual(failure.metadata["next_index"], str(len(error.answer.tokens[0])))
        wait_until_idle(self.server)
        self.check_healthy()

    def test_b077_b078_cancelled_by_client_and_by_abort(self):
        stub = api_grpc.GenerationServiceStub(self.channel)
        long = request(request_id="victim", stopping={"max_tokens": 1500, "ignore_eos": True})
        running = stub.Generate(long, timeout=60)
        next(running)
        stub.Abort(api.AbortRequest(request_id="victim"))
        with failure_of() as failures:
            for _ in running:
                pass
        with failure_of() as unknown:
            stub.Abort(api.AbortRequest(request_id="nobody"))

        self.assertEqual((failures[0].code, failures[0].reason),
                         (grpc.StatusCode.CANCELLED, "ADMIN"))
        self.assertEqual(unknown[0].code, grpc.StatusCode.NOT_FOUND)
        wait_until_idle(self.server)
        self.check_healthy()

    def test_unary_methods_refuse_bad_bytes_and_bad_values(self):
        stub = api_grpc.GenerationServiceStub(self.channel)
        for method in ("Abort", "Tokenize", "Detokenize", "GetServerInfo"):
            call = self.channel.unary_unary("/quire.v1.GenerationService/" + method)
            with failure_of() as failures:
                call(b"\xff\xff", timeout=20)
            self.assertEqual(failures[0].reason, "MALFORMED_PROTO", method)
        for call, argument, reason in [
                (stub.Tokenize, api.TokenizeRequest(text=b"\x80"), "INVALID_UTF8"),
                (stub.Tokenize, api.TokenizeRequest(text=b"a" * ((1 << 20) + 1)), "PROMPT_BYTES"),
                (stub.Detokenize, api.DetokenizeRequest(token_ids=[-1]), "TOKEN_ID_RANGE"),
                (stub.Detokenize, api.DetokenizeRequest(token_ids=[0] * (1 << 17)), "TEXT_BYTES"),
                (stub.Abort, api.AbortRequest(), "MISSING_FIELD")]:
            with failure_of() as failures:
                call(argument)
            self.assertEqual(failures[0].reason, reason)
        self.check_healthy()

    def test_tokenize_and_detokenize_are_inverse(self):
        stub = api_grpc.GenerationServiceStub(self.channel)
        text = "Ein Bär, zwei 🐻 and three bears.\n".encode()
        ids = stub.Tokenize(api.TokenizeRequest(text=text)).token_ids
        back = stub.Detokenize(api.DetokenizeRequest(token_ids=ids, skip_special_tokens=True)).text

        self.assertEqual(back, text)


class SmallServerTest(unittest.TestCase):
    """Rows about a server that is full: one sequence at a time, one request in the queue.

    The slowest kernels, so that the request that fills the server lasts for seconds on any machine.
    """

    @classmethod
    def setUpClass(cls):
        cls.server = Server("--max-num-seqs=1", "--max-queued-requests=1", "--max-queued-tokens=50",
                            "--num-gpu-blocks-override=64",
                            worker_flags=["--cpu-isa=portable", "--threads=1"])
        cls.addClassCleanup(cls.server.close)
        cls.channel = cls.server.channel()
        cls.addClassCleanup(cls.channel.close)

    def setUp(self):
        wait_until_idle(self.server)

    def start_long(self, **fields):
        stub = api_grpc.GenerationServiceStub(self.channel)
        stream = stub.Generate(request(stopping={"max_tokens": 900, "ignore_eos": True}, **fields),
                               timeout=120)
        self.addCleanup(stream.cancel)
        return stream

    def test_b024_b047_what_can_never_fit_is_refused_at_once(self):
        context = server_info(self.channel).max_model_len_tokens
        self.assertEqual(context, 63 * 16)
        with failure_of() as failures:
            generate(self.channel, request(n=4, stopping={"max_tokens": 500}))
        self.assertEqual((failures[0].code, failures[0].reason), (INVALID, "EXCEEDS_CAPACITY"))
        with failure_of() as failures:
            generate(self.channel, stopping(max_tokens=context))
        self.assertEqual(failures[0].reason, "CONTEXT_EXCEEDED")

    def test_b075_b079_b080_a_full_queue_and_a_deadline_in_it(self):
        running = self.start_long()
        next(running)
        with failure_of() as tokens:
            generate(self.channel, token_ids(*[5] * 60))
        waiting = threading.Thread(target=self.expect_expired_in_queue)
        waiting.start()
        deadline = time.monotonic() + 20
        while server_info(self.channel).num_waiting_requests == 0:
            self.assertLess(time.monotonic(), deadline)
        with failure_of() as full:
            generate(self.channel, request())
        waiting.join()
        running.cancel()

        self.assertEqual((tokens[0].code, tokens[0].reason),
                         (grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_TOKENS"))
        self.assertEqual((full[0].code, full[0].reason),
                         (grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL"))
        for failure in (tokens[0], full[0]):
            self.assertGreater(failure.retry_delay, 0.5)
        self.assertEqual(self.queue_failure.reason, "EXPIRED_QUEUED")
        self.assertEqual(self.queue_failure.code, grpc.StatusCode.DEADLINE_EXCEEDED)
        wait_until_idle(self.server)
        self.assertTrue(generate(self.channel, request()).finished)

    def expect_expired_in_queue(self):
        with failure_of() as failures:
            generate(self.channel, request(timeout_ms=250))
        self.queue_failure = failures[0]


class BusyServerTest(unittest.TestCase):
    """Rows about a server that knows how long things take, and has tenants."""

    @classmethod
    def setUpClass(cls):
        cls.server = Server("--max-num-seqs=1", "--max-queued-requests=4",
                            "--scheduling-policy=fair",
                            worker_flags=["--cpu-isa=portable", "--threads=1"])
        cls.addClassCleanup(cls.server.close)
        cls.channel = cls.server.channel()
        cls.addClassCleanup(cls.channel.close)

    def setUp(self):
        wait_until_idle(self.server)

    def start(self, **fields):
        stream = api_grpc.GenerationServiceStub(self.channel).Generate(request(**fields),
                                                                       timeout=120)
        self.addCleanup(stream.cancel)
        return stream

    def start_long(self):
        stream = self.start(stopping={"max_tokens": 900, "ignore_eos": True}, tenant="greedy")
        next(stream)
        return stream

    def test_b074_a_deadline_that_cannot_be_met_is_refused_at_once(self):
        for _ in range(20):  # it learns how long outputs are
            generate(self.channel, request(stopping={"max_tokens": 40, "ignore_eos": True}))
        self.start_long()
        with failure_of() as failures:
            generate(self.channel, request(stopping={"max_tokens": 40}, timeout_ms=10))
        self.assertEqual((failures[0].code, failures[0].reason),
                         (grpc.StatusCode.RESOURCE_EXHAUSTED, "DEADLINE_UNREACHABLE"))
        self.assertGreater(failures[0].retry_delay, 0.05)

    def test_b081_a_tenant_leaves_room_for_others(self):
        running = self.start_long()
        for num_waiting in (1, 2):
            self.start(tenant="greedy")
            deadline = time.monotonic() + 20
            while server_info(self.channel).num_waiting_requests < num_waiting:
                self.assertLess(time.monotonic(), deadline)
        with failure_of() as failures:
            generate(self.channel, request(tenant="greedy"))
        self.assertEqual((failures[0].code, failures[0].reason),
                         (grpc.StatusCode.RESOURCE_EXHAUSTED, "TENANT_LIMIT"))
        self.assertGreater(failures[0].retry_delay, 0.05)
        modest = self.start(tenant="modest")
        running.cancel()
        self.assertTrue(list(modest))


if __name__ == "__main__":
    unittest.main(verbosity=2)
