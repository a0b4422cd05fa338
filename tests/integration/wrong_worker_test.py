#!/usr/bin/python3
"""A worker that would go on with other bits is refused by name; streams wait for a right one."""
from concurrent import futures
import os
import shutil
import threading
import time
import unittest

from lifecycle_test import NOT_SERVING, SERVING, health
from quire_server import (BIN, MODEL, Process, Server, any_pb2, api, error_details_pb2, generate, grpc,
                          status_pb2)
from serve_test import eventually
from worker_http_test import LISTENS, get, samples

# Only CPUs store keys and values as int8, so an emulated GPU is a worker of another cache type.
CACHE = "--kv-cache-dtype=int8"


def copy_of_model(folder, name, file, change):
    """Makes a copy of the bundled model with the bytes of one file changed."""
    copy = os.path.join(folder, name)
    shutil.copytree(MODEL, copy)
    with open(os.path.join(copy, file), "r+b") as opened:
        data = change(bytearray(opened.read()))
        opened.seek(0)
        opened.truncate()
        opened.write(data)
    return copy


def with_another_weight(data):
    """Flips one bit of one weight in the middle, which no sample of the weights meets."""
    data[len(data) // 2 + 12345] ^= 1
    return data


def with_another_rope(data):
    return data.replace(b'"rope_theta": 10000.0', b'"rope_theta": 20000.0')


class LyingWorker(grpc.GenericRpcHandler):
    """Refuses every call, with this message."""

    def __init__(self, address, message):
        details = status_pb2.Status(details=[any_pb2.Any()])
        details.details[0].Pack(error_details_pb2.ErrorInfo(reason="CONFIG_MISMATCH", domain="quire"))
        self._details = details.SerializeToString()
        self._message = message
        self._server = grpc.server(futures.ThreadPoolExecutor(4), handlers=[self])
        self._server.add_insecure_port(address)
        self._server.start()

    def service(self, _):
        return grpc.unary_unary_rpc_method_handler(self._refuse)

    def _refuse(self, _, context):
        context.set_trailing_metadata([("grpc-status-details-bin", self._details)])
        context.abort(grpc.StatusCode.FAILED_PRECONDITION, self._message)

    def close(self):
        self._server.stop(grace=None)


class WrongWorkerTest(unittest.TestCase):

    def refuse(self, server, name, model, *flags):
        """Starts the wrong worker. Waits until the scheduler and the worker have logged the refusal, and probes of the
        worker fail."""
        worker = Process([os.path.join(BIN, "quire_worker"), "--model", model, "--listen",
                          server.worker_address, "--http-port=0", *flags])
        num_lines = len(server.scheduler.lines)
        try:
            http = worker.wait_for(LISTENS).group(2)
            worker.wait_for("^quire_worker: ready ")
            server.scheduler.wait_for(f"refuse.*{name}", after=num_lines)
            worker.wait_for(f"no scheduler can use this worker.*{name}")
            self.assertRegex(eventually(lambda: get(http, "/readyz")[0] == 503 and get(http, "/readyz")[1]),
                             f"^refused: [A-Z_]+ {name}: ")
            self.assertEqual(get(http, "/livez")[0], 200)
            self.assertEqual(samples(http)["quire_worker_ready"], 0)
            with grpc.insecure_channel(server.worker_address) as channel:
                eventually(lambda: health(channel, "") == NOT_SERVING)
                self.assertEqual(health(channel, "liveness"), SERVING)
        finally:
            worker.kill()

    def test_streams_wait_for_a_worker_of_their_kind(self):
        requests = [api.GenerateRequest(text=b"Once upon a time",
                                        sampling={"temperature": 1, "seed": seed},
                                        stopping={"max_tokens": 400, "ignore_eos": True})
                    for seed in range(4)]
        answers = [None] * len(requests)
        flowing = threading.Semaphore(0)

        def run(i):
            answers[i] = generate(channel, requests[i], timeout=120, on_message=flowing.release)

        with Server(CACHE) as server, server.channel() as channel:
            expected = [generate(channel, one).tokens for one in requests]
            folder = server._folder.name
            weights = copy_of_model(folder, "weights", "model.safetensors", with_another_weight)
            config = copy_of_model(folder, "config", "config.json", with_another_rope)
            threads = [threading.Thread(target=run, args=(i,)) for i in range(len(requests))]
            for thread in threads:
                thread.start()
            for _ in range(20):
                flowing.acquire()
            server.worker.kill()

            self.refuse(server, "determinism_fingerprint", MODEL, "--cpu-isa=portable")
            self.refuse(server, "kv_cache_dtype", MODEL, "--device=emu")
            self.refuse(server, "model_hash", weights)
            self.refuse(server, "config_hash", config)
            self.assertTrue(all(thread.is_alive() for thread in threads))
            server.start_worker()
            with grpc.insecure_channel(server.worker_address) as link:
                self.assertEqual(health(link, ""), SERVING)
            for thread in threads:
                thread.join()

        self.assertEqual([answer.tokens for answer in answers], expected)

    def test_a_worker_that_lies_writes_no_line_of_its_own(self):
        with Server(with_worker=False) as server:
            false_line = "quire_scheduler: ready grpc=127.0.0.1:1 http=127.0.0.1:2"
            worker = LyingWorker(server.worker_address, f"other\x1b[2J\r\n{false_line}")
            try:
                refusal = server.scheduler.wait_for("^quire_scheduler: refuses CONFIG_MISMATCH")
            finally:
                worker.close()
            time.sleep(0.5)  # for lines that should not come
            lines = server.scheduler.lines

        self.assertEqual([line for line in lines if line.startswith(false_line)], [], "\n".join(lines))
        self.assertTrue(all(line.isprintable() for line in lines), lines)
        self.assertIn(false_line, refusal.string)


if __name__ == "__main__":
    unittest.main(verbosity=2)
