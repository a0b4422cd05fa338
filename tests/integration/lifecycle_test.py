#!/usr/bin/python3
"""Processes that start, stop and die: health, readiness, drain, loss of the worker, metrics."""
import os
import re
import shutil
import signal
import subprocess
import threading
import time
import unittest
import urllib.error
import urllib.request

from quire_server import (BIN, MODEL, Process, Server, api, api_grpc, failure_of, generate,
                          server_info, wait_until_idle)
import grpc
from proto.grpc.health.v1 import health_pb2

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"


def health(channel, service):
    check = channel.unary_unary(
        "/grpc.health.v1.Health/Check",
        request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
        response_deserializer=health_pb2.HealthCheckResponse.FromString)
    return check(health_pb2.HealthCheckRequest(service=service), timeout=10).status


def http_get(server, path):
    try:
        with urllib.request.urlopen(f"http://{server.http_address}{path}", timeout=10) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def eventually(claim, seconds=20):
    deadline = time.monotonic() + seconds
    while not claim():
        if time.monotonic() > deadline:
            raise AssertionError("did not come true in time")
        time.sleep(0.02)


def long_request(max_tokens, **fields):
    return api.GenerateRequest(text=b"Once upon a time", sampling={"temperature": 1, "seed": 11},
                               stopping={"max_tokens": max_tokens, "ignore_eos": True}, **fields)


class HealthTest(unittest.TestCase):

    def test_health_follows_the_worker(self):
        with Server(with_worker=False) as server, server.channel() as channel:
            for service in ("", "quire.v1.GenerationService"):
                self.assertEqual(health(channel, service), NOT_SERVING)
            self.assertEqual(health(channel, "liveness"), SERVING)
            with failure_of() as failures:
                health(channel, "no.such.Service")
            self.assertEqual(failures[0].code, grpc.StatusCode.NOT_FOUND)
            self.assertEqual(http_get(server, "/healthz")[0], 503)
            self.assertEqual(http_get(server, "/livez")[0], 200)
            with failure_of() as failures:
                generate(channel, long_request(3))
            self.assertEqual((failures[0].code, failures[0].reason),
                             (grpc.StatusCode.UNAVAILABLE, "LOADING"))
            self.assertGreater(failures[0].retry_delay, 0)

            server.start_worker()
            server.wait_until_ready()

            for service in ("", "quire.v1.GenerationService", "liveness"):
                self.assertEqual(health(channel, service), SERVING)
            self.assertEqual(http_get(server, "/healthz")[0], 200)
            self.assertEqual(http_get(server, "/readyz")[0], 200)
            self.assertTrue(generate(channel, long_request(3)).finished)

            server.worker.kill()

            eventually(lambda: health(channel, "") == NOT_SERVING)
            self.assertEqual(health(channel, "liveness"), SERVING)
            self.assertEqual(http_get(server, "/healthz")[0], 503)
            self.assertEqual(http_get(server, "/readyz")[0], 503)

    def test_a_stream_of_health_has_one_message_a_change(self):
        with Server(with_worker=False) as server, server.channel() as channel:
            watch = channel.unary_stream(
                "/grpc.health.v1.Health/Watch",
                request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
                response_deserializer=health_pb2.HealthCheckResponse.FromString)
            messages = watch(health_pb2.HealthCheckRequest(), timeout=60)
            seen = [next(messages).status]
            server.start_worker()
            server.wait_until_ready()
            seen.append(next(messages).status)
            server.terminate()
            with failure_of():
                for message in messages:
                    seen.append(message.status)
            self.assertEqual(seen, [NOT_SERVING, SERVING, NOT_SERVING])

    def test_a_worker_is_ready_when_it_has_loaded(self):
        with Server(with_worker=False) as server:
            def worker_health():
                with grpc.insecure_channel(server.worker_address) as channel:
                    grpc.channel_ready_future(channel).result(timeout=60)
                    return health(channel, ""), health(channel, "liveness")

            server.worker = Process([os.path.join(BIN, "quire_worker"), "--model", MODEL, "--listen",
                                     server.worker_address, "--fail-points=stick-in-load"])
            self.assertEqual(worker_health(), (NOT_SERVING, SERVING))
            server.worker.kill()
            server.start_worker()
            self.assertEqual(worker_health(), (SERVING, SERVING))

    def test_the_start_tells_what_was_chosen_and_what_fits(self):
        with Server("--num-gpu-blocks-override=513", worker_flags=["--threads=1", "--swap-space=64MiB"]) as server:
            server.worker.wait_for(r"model files found files=1 tensors=\d+ bytes=\d+$")
            server.worker.wait_for(r"memory planned weight_bytes=\d+ kv_cache_bytes=\d+ swap_space_bytes=67108864 available_bytes=\d+$")
            server.worker.wait_for(r"worker ready backend=cpu-\S+ backend_by=\"the best .*\" threads=1 threads_by=--threads .* "
                                   r"kv_cache_by=\"30 % of free .* swap_space_bytes=67108864 swap_space_by=--swap-space$")
            server.scheduler.wait_for(r"KV cache size: 8,192 tokens$")
            server.scheduler.wait_for(r"Maximum concurrency for 2,048 tokens per request: 4.00x$")
            server.scheduler.wait_for(r"requests can be sent grpc=\S+ http=\S+ after_s=\d+\.\d\d$")

    def test_reflection_knows_our_service_and_health(self):
        with Server("--enable-reflection") as server, server.channel() as channel:
            ask = channel.stream_stream(REFLECTION)
            listed = next(ask(iter([b"\x3a\x01*"]), timeout=10))
            self.assertIn(b"quire.v1.GenerationService", listed)
            self.assertIn(b"grpc.health.v1.Health", listed)
            for symbol in (b"quire.v1.GenerationService", b"grpc.health.v1.Health"):
                found = next(ask(iter([b"\x22" + bytes([len(symbol)]) + symbol]), timeout=10))
                self.assertNotIn(b"not found", found.lower())
                self.assertIn(b".proto", found)


class DrainTest(unittest.TestCase):

    def test_sigterm_lets_running_requests_finish_and_refuses_new_ones(self):
        with Server() as server, server.channel() as channel:
            stub = api_grpc.GenerationServiceStub(channel)
            running = stub.Generate(long_request(1200), timeout=60)
            num_tokens = len(next(running).chunk.token_ids)

            server.terminate()
            eventually(lambda: health(channel, "") == NOT_SERVING)
            with failure_of() as failures:
                generate(channel, long_request(3))
            http_status = http_get(server, "/healthz")[0]
            for message in running:
                num_tokens += len(message.chunk.token_ids)
                last = message

            self.assertEqual((failures[0].code, failures[0].reason),
                             (grpc.StatusCode.UNAVAILABLE, "DRAINING"))
            self.assertEqual(http_status, 503)
            self.assertEqual(num_tokens, 1200)
            self.assertTrue(last.HasField("finished"))
            self.assertEqual(server.scheduler.popen.wait(timeout=20), 0)

    def test_requests_that_outlast_the_drain_end_with_unavailable(self):
        with Server("--shutdown-timeout=0") as server, server.channel() as channel:
            stub = api_grpc.GenerationServiceStub(channel)
            running = stub.Generate(long_request(2000), timeout=60)
            next(running)

            server.terminate()
            with failure_of() as failures:
                for _ in running:
                    pass

            self.assertEqual((failures[0].code, failures[0].reason),
                             (grpc.StatusCode.UNAVAILABLE, "DRAINING"))
            self.assertEqual(server.scheduler.popen.wait(timeout=20), 0)

    @staticmethod
    def keep_tokenizers_busy(server, stub, num_calls=12):
        """Twelve calls take one or two seconds, and eight have arrived: texts that come now wait behind them."""
        text = api.TokenizeRequest(text=b"onceuponatimetherewasalittle" * 36000)
        busy = [stub.Tokenize.future(text, timeout=60) for _ in range(num_calls)]
        eventually(lambda: re.search(r'open_calls{method="Tokenize"} ([89]|[123]\d)$', http_get(server, "/metrics")[1], re.M))
        return busy

    def test_a_drain_waits_for_texts_that_are_tokenized(self):
        with Server() as server, server.channel() as channel:
            stub = api_grpc.GenerationServiceStub(channel)
            busy = self.keep_tokenizers_busy(server, stub)
            requests = [stub.Generate(api.GenerateRequest(
                text=b"Once " * 200, stopping={"max_tokens": 3, "ignore_eos": True}), timeout=60) for _ in range(16)]
            wait_for_line(server, 'quire_grpc_open_calls{method="Generate"} 16')
            time.sleep(0.3)  # a call is counted before it is looked at

            server.terminate()

            for request in requests:
                self.assertEqual(sum(len(message.chunk.token_ids) for message in request), 3)
            # Calls that came after SIGTERM are refused.
            self.assertGreaterEqual(sum(call.exception() is None for call in busy), 8)
            self.assertEqual(server.scheduler.popen.wait(timeout=20), 0)

    def test_texts_that_outlast_the_drain_end_with_unavailable(self):
        with Server("--shutdown-timeout=0") as server, server.channel() as channel:
            stub = api_grpc.GenerationServiceStub(channel)
            # The calls are held, since gRPC cancels an unreferenced call. The last of them still wait at the end.
            busy = self.keep_tokenizers_busy(server, stub, num_calls=36)
            request = stub.Generate(long_request(3), timeout=60)
            wait_for_line(server, 'quire_grpc_open_calls{method="Generate"} 1')
            time.sleep(0.3)

            server.terminate()

            with failure_of() as failures:
                next(request)
            self.assertFalse(all(call.exception() is None for call in busy))  # else it did not wait
            self.assertEqual((failures[0].code, failures[0].reason), (grpc.StatusCode.UNAVAILABLE, "DRAINING"))
            self.assertEqual(server.scheduler.popen.wait(timeout=20), 0)

    def test_another_signal_ends_the_drain(self):
        with Server(with_worker=True) as server, server.channel() as channel:
            stub = api_grpc.GenerationServiceStub(channel)
            running = stub.Generate(long_request(1200), timeout=60)
            next(running)
            server.worker.popen.send_signal(signal.SIGSTOP)  # the stream stands

            server.terminate()
            server.scheduler.wait_for("scheduler is draining")
            server.terminate()  # the same signal, of timeout(1)
            time.sleep(1.1)
            self.assertIsNone(server.scheduler.popen.poll())
            server.terminate()

            with failure_of() as failures:
                for _ in running:
                    pass
            self.assertEqual((failures[0].code, failures[0].reason), (grpc.StatusCode.UNAVAILABLE, "DRAINING"))
            self.assertEqual(server.scheduler.popen.wait(timeout=20), 0)
            self.assertRegex(server.scheduler.text(), 'the drain ended .*why="another signal arrived" requests_left=1')

    def test_an_idle_server_stops_at_once(self):
        for with_worker in (True, False):
            with Server(with_worker=with_worker) as server:
                server.terminate()
                self.assertEqual(server.scheduler.popen.wait(timeout=10), 0)


class WorkerLossTest(unittest.TestCase):

    def test_a_scheduler_that_stood_still_blames_no_worker(self):
        # The scheduler stops for longer than a worker may be silent. It must first read the waiting reports.
        with Server() as server, server.channel() as channel:
            server.scheduler.popen.send_signal(signal.SIGSTOP)
            time.sleep(2.5)
            server.scheduler.popen.send_signal(signal.SIGCONT)
            time.sleep(0.5)
            generate(channel, api.GenerateRequest(text=b"a", stopping={"max_tokens": 2}))
            self.assertNotIn("worker group lost", server.scheduler.text())

    def test_streams_go_on_with_the_same_tokens_when_the_worker_is_killed(self):
        with Server() as server, server.channel() as channel:
            requests = [api.GenerateRequest(text=b"Once upon a time",
                                            sampling={"temperature": 1, "seed": seed},
                                            stopping={"max_tokens": 300, "ignore_eos": True})
                        for seed in range(8)]
            expected = [generate(channel, r).tokens[0] for r in requests]
            answers = [None] * len(requests)

            def run(i, messages):
                answers[i] = generate(channel, requests[i], timeout=120,
                                      on_message=messages.release)

            for num_messages in (1, 100, 500):
                messages = threading.Semaphore(0)
                threads = [threading.Thread(target=run, args=(i, messages))
                           for i in range(len(requests))]
                for thread in threads:
                    thread.start()
                for _ in range(num_messages):
                    messages.acquire()
                server.worker.kill()
                server.start_worker()
                for thread in threads:
                    thread.join()
                self.assertEqual([a.tokens[0] for a in answers], expected)
            wait_until_idle(server)
            losses = re.search(r"^quire_worker_group_losses_total (\d+)$",
                               http_get(server, "/metrics")[1], re.M)
            self.assertGreaterEqual(int(losses.group(1)), 3)

    def test_a_worker_with_another_model_is_refused_by_name(self):
        with Server(with_worker=False) as server:
            folder = os.path.join(server._folder.name, "other")
            shutil.copytree(MODEL, folder)
            config = os.path.join(folder, "config.json")
            with open(config, encoding="utf-8") as file:
                text = file.read()
            with open(config, "w", encoding="utf-8") as file:
                file.write(text.replace('"rope_theta": 10000.0', '"rope_theta": 20000.0'))
            worker = Process([os.path.join(BIN, "quire_worker"), "--model", folder, "--listen",
                              server.worker_address])
            try:
                server.scheduler.wait_for("CONFIG_MISMATCH")
                self.assertIn("config_hash", server.scheduler.text())
                with server.channel() as channel:
                    self.assertFalse(server_info(channel).ready)
            finally:
                worker.kill()


def wait_for_line(server, line, seconds=20):
    """The library ends a call after its client has the status."""
    deadline = time.monotonic() + seconds
    while True:
        text = http_get(server, "/metrics")[1]
        if line in text.splitlines():
            return
        if time.monotonic() > deadline:
            raise AssertionError(f"no line {line!r} in:\n{text}")
        time.sleep(0.05)


class MetricsTest(unittest.TestCase):

    def test_metrics_tell_what_was_served(self):
        with Server() as server, server.channel() as channel:
            answer = generate(channel, long_request(20))
            generate(channel, long_request(5))
            wait_until_idle(server)
            status, text = http_get(server, "/metrics")
            native = http_get(server, "/metrics/native")[1]
            prompt = answer.finished[0].num_prompt_tokens

            self.assertEqual(status, 200)
            for line in (f'quire_tokens_total{{kind="prompt"}} {2 * prompt}',
                         'quire_tokens_total{kind="generated"} 25',
                         'quire_requests_total{outcome="length"} 2',
                         'quire_requests{state="running"} 0',
                         'quire_kv_blocks{state="active",tier="device"} 0',
                         'quire_kv_fragmentation_ratio 0',
                         "quire_ttft_seconds_count 2",
                         "quire_itl_seconds_count 23",
                         "quire_queue_seconds_count 2",
                         "quire_prefill_seconds_count 2",
                         "quire_decode_seconds_count 2",
                         "quire_time_per_output_token_seconds_count 2",
                         f"quire_request_prompt_tokens_sum {2 * prompt}",
                         "quire_request_output_tokens_sum 25"):
                self.assertRegex(text, "(?m)^" + re.escape(line) + "$")
            for name in ("vllm:num_requests_running", "vllm:num_requests_waiting",
                         "vllm:kv_cache_usage_perc", "vllm:cache_config_info"):
                self.assertRegex(text, rf'(?m)^{name}{{.*model_name="\w+".*}} ')
            self.assertNotIn("vllm:", native)
            self.assertEqual(http_get(server, "/nothing")[0], 404)
            wait_for_line(server, 'quire_grpc_requests_total{code="OK",method="Generate"} 2')
            wait_for_line(server, 'quire_grpc_open_calls{method="Generate"} 0')

    def test_refusals_are_counted_by_reason_and_by_code(self):
        with Server() as server, server.channel() as channel:
            for bad in (api.GenerateRequest(text=b"a", n=99), api.GenerateRequest()):
                with failure_of() as failures:
                    generate(channel, bad)
                self.assertEqual(failures[0].code, grpc.StatusCode.INVALID_ARGUMENT)
            wait_until_idle(server)
            text = http_get(server, "/metrics")[1]

            for line in ('quire_admission_rejects_total{reason="invalid"} 2',
                         'quire_admission_rejects_total{reason="queue_full"} 0',
                         'quire_requests_total{outcome="rejected"} 2'):
                self.assertRegex(text, "(?m)^" + re.escape(line) + "$")
            wait_for_line(
                server, 'quire_grpc_requests_total{code="INVALID_ARGUMENT",method="Generate"} 2')

    def test_blocks_add_up_and_what_was_done_with_them_is_told(self):
        with Server() as server, server.channel() as channel:
            for _ in range(2):  # the second one finds the first one's prompt
                generate(channel, api.GenerateRequest(token_ids={"ids": list(range(10, 50))},
                                                      stopping={"max_tokens": 30, "ignore_eos": True}))
            wait_until_idle(server)
            text = http_get(server, "/metrics")[1]

        def value(line):
            return float(re.search("(?m)^" + re.escape(line) + " (.*)$", text).group(1))

        states = [float(v) for v in re.findall(r'(?m)^quire_kv_blocks{.*tier="device"} (.*)$', text)]
        self.assertEqual(sum(states), value('quire_kv_blocks_capacity{tier="device"}'))
        self.assertEqual(value('quire_kv_block_ops_total{op="prefix_hit"}'), 2)  # of 16 tokens each
        self.assertEqual(value('quire_kv_block_ops_total{op="alloc"}'), 5 + 3)  # 70 tokens, without 32
        self.assertEqual(value('quire_kv_block_ops_total{op="evict"}'), 0)
        self.assertRegex(text, r'(?m)^vllm:prompt_tokens_by_source_total{.*"local_cache_hit"} 32$')

    @unittest.skipUnless(shutil.which("promtool"), "promtool is not installed")
    def test_promtool_has_no_complaint_about_our_names(self):
        with Server() as server, server.channel() as channel:
            generate(channel, long_request(5))
            native = http_get(server, "/metrics/native")[1]
        check = subprocess.run(["promtool", "check", "metrics"], input=native, text=True,
                               capture_output=True, check=False)
        self.assertEqual((check.returncode, check.stdout + check.stderr), (0, ""))


class CommandLineTest(unittest.TestCase):

    def refusal(self, *flags):
        done = subprocess.run([os.path.join(BIN, "quire_scheduler"), *flags], capture_output=True,
                              text=True, timeout=20, check=False)
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        return done.returncode, done.stderr

    def test_mistakes_are_named_in_one_line(self):
        model = f"--model={MODEL}"
        for flags, named in [((), "--model"),
                             ((model, "--workers=nonsense"), "--workers"),
                             ((model, "--port=70000"), "--port"),
                             ((model, "--block-size=0"), "--block-size"),
                             ((model, "--block-size=24"), "power of two"),
                             ((model, "--block-size=512"), "--block-size"),
                             ((model, "--max-num-seqs=4097"), "--max-num-seqs"),
                             ((model, "--max-num-batched-tokens=131073"),
                              "--max-num-batched-tokens"),
                             ((model, "--max-model-len=99999"), "--max-model-len"),
                             ((model, "--kv-cache-dtype=int3"), "--kv-cache-dtype"),
                             ((model, "--host=0.0.0.0"), "--allow-insecure-bind"),
                             ((model, "--no-such-flag"), "no-such-flag")]:
            code, text = self.refusal(*flags)
            self.assertEqual(code, 2, text)
            self.assertIn(named, text)

    def test_a_model_that_cannot_be_served_ends_with_code_3(self):
        code, text = self.refusal("--model=/nonexistent")

        self.assertEqual(code, 3)
        self.assertTrue(text.startswith("load: "), text)


if __name__ == "__main__":
    unittest.main(verbosity=2)
