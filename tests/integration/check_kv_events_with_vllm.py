#!/usr/bin/python3
"""By hand: KV events beside vLLM's own classes. Needs vllm/distributed/kv_events.py of a vLLM wheel, and packages:

    python3 -m venv venv && venv/bin/pip install msgspec pyzmq msgpack grpcio protobuf remotezip
    venv/bin/python -B tests/integration/check_kv_events_with_vllm.py WHEEL_URL_OR_KV_EVENTS_PY

1. Each golden of kv_event_encoder_test.cc decodes to vLLM's structs, which vLLM's encoder turns into the same fields
   in the same order. Bytes differ only where msgspec writes a small map's size in three bytes.
2. The same for all batches of a server whose pool is too small; rebuilt from vLLM's structs, they foretell its hits.
"""
import pathlib
import random
import sys
import tempfile
import types

import msgpack
import msgspec

FOLDER = pathlib.Path(__file__).resolve().parent
GOLDENS = FOLDER.parent / "scheduler/kv_events/testdata"
NAME = "vllm/distributed/kv_events.py"


def source_of(where):
    if where.startswith("http"):
        from remotezip import RemoteZip
        with RemoteZip(where) as wheel:
            return wheel.read(NAME).decode()
    return pathlib.Path(where).read_text()


def stand_in(name, **members):
    """A module of vLLM that kv_events.py imports, but that its event classes do not need."""
    module = types.ModuleType(name)
    vars(module).update(members)
    sys.modules[name] = module


def load_vllm(where):
    import logging
    nothing = lambda *_: None  # noqa: E731
    for package in ("vllm", "vllm.config", "vllm.utils", "vllm.v1", "vllm.v1.core", "vllm.distributed"):
        stand_in(package)
    stand_in("vllm.config.kv_events", KVEventsConfig=type("KVEventsConfig", (), {}))
    stand_in("vllm.logger", init_logger=logging.getLogger)
    stand_in("vllm.utils.network_utils", get_ip=nothing, get_tcp_uri=nothing, is_valid_ipv6_address=nothing,
             split_zmq_path=nothing)
    stand_in("vllm.v1.core.kv_cache_utils", ExternalBlockHash=bytes | int)
    module = types.ModuleType("vllm.distributed.kv_events")
    sys.modules[module.__name__] = module
    exec(compile(source_of(where), NAME, "exec"), vars(module))
    return module


def fields_of(payload):
    return msgpack.unpackb(payload, object_pairs_hook=list)


def check(vllm, payload):
    batch = msgspec.msgpack.Decoder(vllm.KVEventBatch).decode(payload)
    assert fields_of(msgspec.msgpack.Encoder().encode(batch)) == fields_of(payload), batch
    return batch


class Index:
    """The blocks of a server, by vLLM's structs."""

    def __init__(self, vllm):
        self.vllm = vllm
        self.blocks = {}

    def apply(self, batch):
        for event in batch.events:
            if isinstance(event, self.vllm.BlockStored):
                parent = event.parent_block_hash
                if parent is None:
                    parent = event.extra_keys[0][0] if event.extra_keys else ""
                for i, block in enumerate(event.block_hashes):
                    tokens = event.token_ids[i * event.block_size:(i + 1) * event.block_size]
                    assert block not in self.blocks
                    self.blocks[block] = (parent, tuple(tokens))
                    parent = block
            elif isinstance(event, self.vllm.BlockRemoved):
                for block in event.block_hashes:
                    del self.blocks[block]
            else:
                assert isinstance(event, self.vllm.AllBlocksCleared)
                self.blocks.clear()


def check_server(vllm):
    sys.path.insert(0, str(FOLDER))
    from kv_event_router import Subscriber
    from quire_server import Server, api, generate, metric, server_info, wait_until_idle
    counts = dict.fromkeys(("BlockStored", "BlockRemoved", "AllBlocksCleared"), 0)
    with tempfile.TemporaryDirectory() as folder:
        endpoints = [f"ipc://{folder}/events", f"ipc://{folder}/replay"]
        with Server(f"--kv-events-endpoint={endpoints[0]}", f"--kv-events-replay-endpoint={endpoints[1]}",
                    "--num-gpu-blocks-override=33", "--block-size=16") as server, server.channel() as channel:
            subscriber, index, draw = Subscriber(*endpoints), Index(vllm), random.Random(7)
            vocab_size = server_info(channel).vocab_size
            beginnings = [[draw.randrange(280, vocab_size) for _ in range(16 * n)] for n in (2, 5, 8, 9)]
            num_checked, hits = 0, 0
            for _ in range(80):
                wait_until_idle(server)
                subscriber.follow(metric(server, 'quire_kv_event_batches_total{result="published"}'))
                for payload in subscriber.payloads[num_checked:]:
                    batch = check(vllm, payload)
                    index.apply(batch)
                    for event in batch.events:
                        counts[type(event).__name__] += 1
                num_checked = len(subscriber.payloads)
                assert index.blocks == subscriber.blocks.blocks
                prompt = draw.choice(beginnings) + [draw.randrange(280, vocab_size) for _ in range(draw.randint(1, 40))]
                salt = draw.choice(["", "a"])
                foretold = subscriber.blocks.num_cached_tokens(prompt, 16, salt)
                before = metric(server, 'quire_prefix_cache_tokens_total{result="hit"}')
                generate(channel, api.GenerateRequest(
                    token_ids={"ids": prompt}, cache_salt=salt.encode(), sampling={"temperature": 0},
                    stopping={"max_tokens": 8, "ignore_eos": True}))
                found = metric(server, 'quire_prefix_cache_tokens_total{result="hit"}') - before
                assert found == foretold, (found, foretold)
                hits += found
            subscriber.close()
    print(f"server: {num_checked} batches decode and encode to the same fields: {counts}; {len(index.blocks)} blocks "
          f"at the end; {hits:.0f} tokens foretold and found in 80 requests")


def main():
    vllm = load_vllm(sys.argv[1])
    for golden in sorted(GOLDENS.glob("*.msgpack")):
        batch = check(vllm, golden.read_bytes())
        print(f"{golden.name}: same fields, {[type(event).__name__ for event in batch.events]}")
    check_server(vllm)


if __name__ == "__main__":
    main()
