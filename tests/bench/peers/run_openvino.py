#!/usr/bin/env python3
"""run_openvino.py --model DIR [POINT...]: OpenVINO GenAI's continuous batching, of a model that optimum-cli exported.

Products in bf16, which it chooses itself where the processor multiplies bf16, and the KV cache in bf16 as well, which
would be of 8 bits. Steps of up to 2,048 tokens for a prefill, which cost a little less than those of 256, its default;
the latter for decode and served, where they are the better ones. points.py says what it answers.
"""
import json
import pathlib

import numpy as np
import openvino
import openvino_genai

import points


PREFILL_BUDGET, DEFAULT_BUDGET = 2048, 256


class OpenVino(points.Peer):
    def __init__(self, options):
        config = json.loads((pathlib.Path(options.model) / "config.json").read_text())
        self.vocab_size = config["vocab_size"]
        self._model = options.model
        self._properties = {"INFERENCE_PRECISION_HINT": "bf16", "KV_CACHE_PRECISION": "bf16", "NUM_STREAMS": 1,
                            "INFERENCE_NUM_THREADS": options.threads, "PERFORMANCE_HINT": "LATENCY"}
        self._budget, self._pipeline = None, None
        self._handles, self._left, self._next_key = {}, {}, 0
        self.prepare("prefill")
        self.about = {"program": "OpenVINO GenAI", "version": openvino_genai.__version__,
                      "settings": f"openvino {openvino.__version__}, {self._properties}, max_num_batched_tokens "
                                  f"{PREFILL_BUDGET} for prefill and else {DEFAULT_BUDGET}"}

    def prepare(self, kind):
        budget = PREFILL_BUDGET if kind == "prefill" else DEFAULT_BUDGET
        if budget == self._budget:
            return
        self._budget, self._pipeline = budget, None
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.max_num_seqs = points.CLIENTS
        scheduler.max_num_batched_tokens = budget
        scheduler.cache_size = 2  # GB
        scheduler.dynamic_split_fuse = True
        scheduler.enable_prefix_caching = False
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(self._model, scheduler, "CPU", self._properties)
        points.prefill(self, points.CONTEXT_TOKENS)  # the first step is slow

    def add(self, prompt, max_tokens):
        sampling = openvino_genai.GenerationConfig(max_new_tokens=max_tokens, ignore_eos=True, do_sample=False)
        key = self._next_key
        self._next_key += 1
        ids = openvino.Tensor(np.array([prompt], dtype=np.int64))
        self._handles[key] = self._pipeline.add_request(key, ids, sampling)
        self._left[key] = max_tokens
        return key

    def step(self):
        self._pipeline.step()
        counts = {}
        for key, handle in list(self._handles.items()):
            while handle.can_read():
                for output in handle.read().values():
                    counts[key] = counts.get(key, 0) + len(output.generated_ids)
            self._left[key] -= counts.get(key, 0)
            if self._left[key] == 0:
                del self._handles[key]
            else:
                running = openvino_genai.GenerationStatus.RUNNING
                assert handle.get_status() == running, f"ended {self._left[key]} tokens early"
        return counts

    def abort(self, key):
        self._handles.pop(key).cancel()
        if not self._handles:
            while self._pipeline.has_non_finished_requests():
                self._pipeline.step()


if __name__ == "__main__":
    points.run_peer(__doc__, OpenVino)
