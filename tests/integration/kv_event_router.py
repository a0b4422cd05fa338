"""What a router does with KV events: it keeps the set of cached blocks, and knows from that how much of a prompt a
server has cached. Tests compare this with what the server finds."""
import struct
import time

import msgpack
import zmq

END_OF_REPLAY = 2**64 - 1


def number_bytes(number):
    return struct.pack(">Q", number)


class CachedBlocks:
    """The blocks of one server, by events in order."""

    def __init__(self):
        self.blocks = {}    # hash -> (parent's hash or salt, tokens of the block)
        self.children = {}  # the reverse
        self.num_removed = 0
        self.num_cleared = 0

    def apply(self, payload):
        _, events, rank = msgpack.unpackb(payload)
        assert rank == 0, rank
        for event in events:
            getattr(self, event["type"])(event)

    def AllBlocksCleared(self, event):
        assert event == {"type": "AllBlocksCleared"}, event
        self.blocks.clear()
        self.children.clear()
        self.num_cleared += 1

    def BlockStored(self, event):
        size, hashes, tokens = event["block_size"], event["block_hashes"], event["token_ids"]
        assert len(tokens) == size * len(hashes) > 0, event
        assert (event["medium"], event["group_idx"]) == ("GPU", 0), event
        keys = event.get("extra_keys")
        assert keys is None or (event["parent_block_hash"] is None and len(keys) == len(hashes)), event
        parent = event["parent_block_hash"]
        if parent is None:
            parent = keys[0][0] if keys else ""
        for i, block in enumerate(hashes):
            content = (parent, tuple(tokens[i * size:(i + 1) * size]))
            assert block not in self.blocks and content not in self.children, "stored twice"
            self.blocks[block] = content
            self.children[content] = block
            parent = block

    def BlockRemoved(self, event):
        assert (event["medium"], event["group_idx"]) == ("GPU", 0), event
        for block in event["block_hashes"]:
            del self.children[self.blocks.pop(block)]
            self.num_removed += 1

    def num_cached_tokens(self, prompt, block_size, salt=""):
        """The tokens that a server finds: whole blocks, never the last token."""
        parent, num_tokens = salt, 0
        while num_tokens + block_size < len(prompt):
            content = (parent, tuple(prompt[num_tokens:num_tokens + block_size]))
            if content not in self.children:
                break
            parent = self.children[content]
            num_tokens += block_size
        return num_tokens


class Subscriber:
    """Follows the events of one server. Asks for what it missed, as vLLM's example does."""

    def __init__(self, endpoint, replay_endpoint, topic=""):
        self.context = zmq.Context()
        self.events = self.context.socket(zmq.SUB)
        self.events.setsockopt_string(zmq.SUBSCRIBE, topic)
        self.events.connect(endpoint)
        self.replay = self.context.socket(zmq.DEALER)
        self.replay.connect(replay_endpoint)
        self.topic = topic.encode()
        self.payloads = []  # by number
        self.num_replayed = 0
        self.num_live = 0  # messages that came without being asked for
        self.blocks = CachedBlocks()

    def close(self):
        self.context.destroy(linger=0)

    def take(self, number, payload):
        assert number == len(self.payloads), (number, len(self.payloads))
        self.payloads.append(payload)
        self.blocks.apply(payload)

    def catch_up(self):
        """Asks for all batches after the last one."""
        self.replay.send_multipart([b"", number_bytes(len(self.payloads))])
        while True:
            assert self.replay.poll(30_000), "the replay has no end"
            empty, topic, number, payload = self.replay.recv_multipart()
            assert empty == b"", empty
            number = struct.unpack(">Q", number)[0]
            if number == END_OF_REPLAY:
                assert (topic, payload) == (b"", b""), (topic, payload)
                return
            assert topic == self.topic, topic
            self.take(number, payload)
            self.num_replayed += 1

    def receive(self, timeout_ms=0):
        """Takes the next message. Returns False if none comes."""
        if not self.events.poll(timeout_ms):
            return False
        topic, number, payload = self.events.recv_multipart()
        assert topic == self.topic, topic
        self.num_live += 1
        number = struct.unpack(">Q", number)[0]
        if number > len(self.payloads):
            self.catch_up()  # up to this message, and maybe beyond
        if number == len(self.payloads):
            self.take(number, payload)
        return True

    def follow(self, num_batches):
        """Receives until that many batches are there."""
        deadline = time.monotonic() + 30
        while len(self.payloads) < num_batches:
            if not self.receive(timeout_ms=100):
                self.catch_up()  # of a message that ZeroMQ dropped, none may follow
            assert time.monotonic() < deadline, (len(self.payloads), num_batches)

    def lose(self, num_messages):
        """Throws the next messages away."""
        for _ in range(num_messages):
            assert self.events.poll(30_000), "no message"
            self.events.recv_multipart()
