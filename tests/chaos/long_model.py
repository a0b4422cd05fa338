"""`quire serve` with a model of a long context and random weights, small enough for two processors.

A token costs next to nothing here, so the time goes into the scheduler's work on many tokens. The model has no
tokenizer: prompts are token ids.
"""
import json
import os
import random

import grpc

from quire_server import BIN, Process, admin_stub, api, api_grpc
from served_model import Counters, ServedModel

MAX_MODEL_LEN = 131_072
VOCAB_SIZE = 128  # ids are one byte each on the wire
CONFIG = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "float32",
          "vocab_size": VOCAB_SIZE, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1,
          "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16,
          "max_position_embeddings": MAX_MODEL_LEN, "rms_norm_eps": 1e-5, "rope_theta": 500_000.0,
          "tie_word_embeddings": False}
CALLS_PER_CHANNEL = 100  # the server allows 128
READY_SECONDS = 60


class LongModel(ServedModel):
    """`with LongModel(folder, *flags) as server:` stops everything."""

    def __init__(self, folder, *flags):
        self._set_up(1)
        model = os.path.join(folder, "model")
        os.mkdir(model)
        with open(os.path.join(model, "config.json"), "w", encoding="ascii") as file:
            json.dump(CONFIG, file)
        try:
            self._serve = Process([os.path.join(BIN, "quire"), "serve", "--model", model,
                                   "--load-format=dummy", "--port=0", "--http-port=0",
                                   "--admin-address=127.0.0.1:0", *flags])
            ready = self._serve.wait_for(r"^quire: ready grpc=(\S+) http=(\S+) admin=(\S+)",
                                         READY_SECONDS)
            self.address, self.http_address, admin_address = ready.groups()
            self._counters = Counters(self.http_address)
            self.admin = admin_stub(grpc.insecure_channel(admin_address))
        except BaseException:
            self.close()
            raise


def random_ids(seed, num_tokens):
    chance = random.Random(seed)
    return [chance.randrange(VOCAB_SIZE) for _ in range(num_tokens)]


def make_request(ids, max_tokens, **more):
    """Greedy, unless `more` says something else."""
    request = api.GenerateRequest(token_ids={"ids": ids}, sampling={"temperature": 0},
                                  stopping={"max_tokens": max_tokens, "ignore_eos": True})
    request.MergeFrom(api.GenerateRequest(**more))
    return request


class Callers:
    """Calls by the hundred from one thread: an answer stays in the library until it is read."""

    def __init__(self, address):
        self._address = address
        self._channels = []

    def begin(self, request, num_calls):
        """Begins calls of this request, and returns them. None has a deadline, since the scheduler's bound of the time
        of many long prompts would make it refuse one."""
        calls = []
        for k in range(num_calls):
            if k % CALLS_PER_CHANNEL == 0:
                options = [("grpc.use_local_subchannel_pool", 1)]
                self._channels.append(grpc.insecure_channel(self._address, options=options))
                stub = api_grpc.GenerationServiceStub(self._channels[-1])
            calls.append(stub.Generate(request))
        return calls

    def close(self):
        for channel in self._channels:
            channel.close()


def tokens_of(call):
    """Returns tokens by sequence. Raises grpc.RpcError."""
    tokens = {}
    for message in call:
        if message.HasField("chunk"):
            tokens.setdefault(message.chunk.index, []).extend(message.chunk.token_ids)
    return tokens
