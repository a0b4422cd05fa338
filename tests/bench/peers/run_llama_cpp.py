#!/usr/bin/env python3
"""run_llama_cpp.py --model FILE.gguf [POINT...]: llama.cpp's library, batched as its llama-server does.

A step is one llama_decode: the next token of each running sequence, then as much of the waiting prompts as the batch
holds. Its tools are not in the Python package, so this loop stands for them. points.py says what it answers.
"""
import heapq
from importlib.metadata import version

import llama_cpp
import numpy as np

import points

GGML_TYPES = {"f16": 1, "bf16": 30}


class LlamaCpp(points.Peer):
    def __init__(self, options):
        llama_cpp.llama_backend_init()
        model = llama_cpp.llama_model_load_from_file(options.model.encode(), llama_cpp.llama_model_default_params())
        assert model, "the model cannot be read"
        self.vocab_size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
        settings = llama_cpp.llama_context_default_params()
        settings.n_seq_max = points.CLIENTS
        settings.kv_unified = options.unified
        settings.n_ctx = points.MAX_SEQUENCE_TOKENS * (4 if options.unified else points.CLIENTS)
        settings.n_batch, settings.n_ubatch = 2048, options.ubatch
        settings.n_threads = settings.n_threads_batch = options.threads
        settings.flash_attn_type = 1 if options.flash else 0
        settings.type_k = settings.type_v = GGML_TYPES[options.kv_cache]
        self._context = llama_cpp.llama_init_from_model(model, settings)
        assert self._context, "the context cannot be made"
        self._memory = llama_cpp.llama_get_memory(self._context)
        self._batch = llama_cpp.llama_batch_init(settings.n_batch, 0, 1)
        self._capacity = settings.n_batch
        self._free = list(range(points.CLIENTS))
        self._sequences, self._next_key = {}, 0
        system = llama_cpp.llama_print_system_info().decode().strip()
        self.about = {"program": "llama.cpp", "version": "llama-cpp-python " + version("llama-cpp-python"),
                      "settings": f"flash attention {options.flash}, kv_unified {options.unified}, "
                                  f"KV {options.kv_cache}, n_batch 2048, n_ubatch {options.ubatch}; {system}"}

    def add(self, prompt, max_tokens):
        key = self._next_key
        self._next_key += 1
        self._sequences[key] = {"slot": heapq.heappop(self._free), "todo": prompt, "position": 0, "left": max_tokens}
        return key

    def _fill(self):
        """Fills the batch, and returns its rows that give a token: row and key.

        Sequences are ordered by slot, since llama.cpp computes sequences apart whose slots do not follow one another.
        """
        batch, rows, size = self._batch, [], 0
        order = sorted(self._sequences.items(), key=lambda item: (len(item[1]["todo"]) > 1, item[1]["slot"]))
        for key, sequence in order:
            taken = sequence["todo"][:self._capacity - size]
            sequence["todo"] = sequence["todo"][len(taken):]
            for token in taken:
                batch.token[size], batch.pos[size], batch.logits[size] = token, sequence["position"], 0
                batch.n_seq_id[size], batch.seq_id[size][0] = 1, sequence["slot"]
                sequence["position"] += 1
                size += 1
            if taken and not sequence["todo"]:
                batch.logits[size - 1] = 1
                rows.append((size - 1, key))
        batch.n_tokens = size
        return rows

    def step(self):
        rows = self._fill()
        result = llama_cpp.llama_decode(self._context, self._batch)
        assert result == 0, f"llama_decode: {result}"
        for row, key in rows:
            logits = np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(self._context, row), (self.vocab_size,))
            sequence = self._sequences[key]
            sequence["todo"] = [int(logits.argmax())]
            sequence["left"] -= 1
            if sequence["left"] == 0:
                self.abort(key)
        return {key: 1 for _, key in rows}

    def abort(self, key):
        slot = self._sequences.pop(key)["slot"]
        llama_cpp.llama_memory_seq_rm(self._memory, slot, -1, -1)
        heapq.heappush(self._free, slot)


def add_flags(parser):
    parser.add_argument("--kv-cache", default="f16", choices=GGML_TYPES, help="f16 is llama.cpp's default")
    parser.add_argument("--ubatch", type=int, default=512, help="512 is llama.cpp's default")
    parser.add_argument("--no-flash", dest="flash", action="store_false")
    parser.add_argument("--unified", action="store_true",
                        help="one KV buffer for all sequences: slower with many, for each then reads past all")


if __name__ == "__main__":
    points.run_peer(__doc__, LlamaCpp, add_flags)
