#!/usr/bin/python3
"""A client whose HTTP/2 window is closed from the start. It holds a request for half a minute at most, and no
other client waits for it. The test writes the frames itself, since no library would do this."""
import socket
import struct
import time
import unittest

from quire_server import Server, api, generate, server_info, wait_until_idle

SLOW_CONSUMER_SECONDS = 30
SETTINGS, HEADERS, DATA, WINDOW_UPDATE = 4, 1, 0, 8
END_STREAM, END_HEADERS = 1, 4
INITIAL_WINDOW_SIZE = 4


def frame(kind, flags, stream, payload):
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(
        ">I", stream) + payload


def literal_header(name, value):
    return b"\x00" + bytes([len(name)]) + name + bytes([len(value)]) + value


class ClosedWindow:
    """One Generate call whose window lets no output through until open()."""

    def __init__(self, address, request):
        host, port = address.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)))
        headers = b"".join(literal_header(name, value) for name, value in [
            (b":method", b"POST"), (b":scheme", b"http"), (b":authority", b"test"),
            (b":path", b"/quire.v1.GenerationService/Generate"),
            (b"content-type", b"application/grpc"), (b"te", b"trailers")])
        message = request.SerializeToString()
        self.socket.sendall(
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" +
            frame(SETTINGS, 0, 0, struct.pack(">HI", INITIAL_WINDOW_SIZE, 0)) +
            frame(SETTINGS, 1, 0, b"") + frame(HEADERS, END_HEADERS, 1, headers) +
            frame(DATA, END_STREAM, 1, b"\0" + struct.pack(">I", len(message)) + message))

    def open(self):
        self.socket.sendall(frame(WINDOW_UPDATE, 0, 1, struct.pack(">I", 1 << 20)))

    def frames(self, seconds):
        """Returns kinds and flags of the call's frames that arrive within `seconds`, or until the call ends."""
        self.socket.settimeout(seconds)
        received = []
        data = b""
        try:
            while True:
                while len(data) < 9 or len(data) < 9 + int.from_bytes(data[:3], "big"):
                    more = self.socket.recv(65536)
                    if not more:
                        return received
                    data += more
                length = int.from_bytes(data[:3], "big")
                kind, flags, stream = data[3], data[4], int.from_bytes(data[5:9], "big")
                data = data[9 + length:]
                if stream == 1:
                    received.append((kind, bool(flags & END_STREAM) and kind in (DATA, HEADERS)))
                    if received[-1][1]:
                        return received
        except TimeoutError:
            return received

    def close(self):
        self.socket.close()


class SlowReaderTest(unittest.TestCase):

    def num_messages(self, client):
        client.open()
        received = client.frames(seconds=20)
        client.close()
        self.assertEqual(received[-1], (HEADERS, True), received)
        return sum(1 for kind, _ in received if kind == DATA)

    def test_a_closed_window_is_cut_and_holds_nothing_and_nobody(self):
        with Server() as server, server.channel() as channel:
            healthy = api.GenerateRequest(text=b"Once upon a time", sampling={"temperature": 0},
                                          stopping={"max_tokens": 20})
            expected = generate(channel, healthy).tokens
            # More than 4,096 tokens in all: the outbox fills, and the request is cut while it runs.
            greedy = ClosedWindow(server.address, api.GenerateRequest(
                text=b"Once", n=8, sampling={"temperature": 1},
                stopping={"max_tokens": 1500, "ignore_eos": True}))
            # Few tokens: the request ends, and its stream is cut when the client reads nothing for long.
            modest = ClosedWindow(server.address, api.GenerateRequest(
                text=b"Once", stopping={"max_tokens": 50, "ignore_eos": True}))
            # Few tokens, which the client reads before that.
            late = ClosedWindow(server.address, api.GenerateRequest(
                text=b"Once", stopping={"max_tokens": 50, "ignore_eos": True}))
            start = time.monotonic()
            while server_info(channel).num_running_requests == 0:
                self.assertLess(time.monotonic() - start, 10)

            self.assertEqual(generate(channel, healthy).tokens, expected)
            wait_until_idle(server, seconds=20)
            late.open()
            self.assertGreater(self.num_messages(late), 1)
            time.sleep(SLOW_CONSUMER_SECONDS + 3)

            # A client that opens its window now gets the message that was on its way, and an end. On a
            # busy machine the greedy client may have been cut before its first message was on its way.
            self.assertLessEqual(self.num_messages(greedy), 1)
            self.assertEqual(self.num_messages(modest), 1)
            self.assertEqual(generate(channel, healthy).tokens, expected)


if __name__ == "__main__":
    unittest.main(verbosity=2)
