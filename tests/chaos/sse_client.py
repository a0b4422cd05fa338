"""An HTTP client for answers that are streams of server-sent events, on asyncio.

Each call has its own connection. It checks the framing of the chunks and of the events, and nothing
within the events.
"""
import asyncio
import dataclasses
import json


@dataclasses.dataclass
class End:
    """How a call ended. is_whole: the answer came to the end that its head announced."""
    status: int = 0  # 0: no head came
    is_whole: bool = False
    body: bytes = b""  # of an answer that is no stream
    fault: str = ""  # of the connection or the framing


def request_of(host, path, body):
    """Returns the bytes of a POST, whose answer ends the connection."""
    text = json.dumps(body).encode()
    return (f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(text)}\r\nConnection: close\r\n\r\n").encode() + text


class SseCall(asyncio.Protocol):
    """One POST of JSON. `end` is a future of End; on_event gets the text of each event."""

    def __init__(self, host, path, body, on_event):
        self._request = request_of(host, path, body)
        self._on_event = on_event
        self._received, self._event = bytearray(), bytearray()
        self._end = End()
        self._length = None  # of the body; None: it comes in chunks
        self.end = asyncio.get_running_loop().create_future()
        self.transport = None

    def connection_made(self, transport):
        self.transport = transport
        transport.write(self._request)

    def data_received(self, data):
        self._received += data
        try:
            if self._end.status == 0 and not self._read_head():
                return
            if self._length is None:
                self._read_chunks()
            elif len(self._received) >= self._length:
                self._end.body = bytes(self._received[:self._length])
                self._finish()
        except ValueError as error:
            self._end.fault = f"bad framing: {error}"
            self.transport.abort()

    def connection_lost(self, exc):
        if not self.end.done():
            self._end.fault = self._end.fault or f"the connection broke: {exc}"
            self.end.set_result(self._end)

    def _finish(self):
        self._end.is_whole = True
        self.end.set_result(self._end)
        self.transport.close()

    def _read_head(self):
        head, found, rest = self._received.partition(b"\r\n\r\n")
        if not found:
            return False
        status_line, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in
                   (line.partition(":") for line in lines)}
        self._end.status = int(status_line.split(" ")[1])
        if headers.get("transfer-encoding") != "chunked":
            self._length = int(headers["content-length"])
        self._received = rest
        return True

    def _read_chunks(self):
        start = 0
        while (line_end := self._received.find(b"\r\n", start)) >= 0:
            size = int(self._received[start:line_end], 16)
            chunk_end = line_end + 2 + size
            if len(self._received) < chunk_end + 2:
                break
            if self._received[chunk_end:chunk_end + 2] != b"\r\n":
                raise ValueError("a chunk does not end where it should")
            if size == 0:
                if self._event:
                    raise ValueError("the body ends within an event")
                self._finish()
                return
            self._take_events(self._received[line_end + 2:chunk_end])
            start = chunk_end + 2
        del self._received[:start]

    def _take_events(self, data):
        *events, self._event = (self._event + data).split(b"\n\n")
        for event in events:
            if not event.startswith(b"data: ") or b"\n" in event:
                raise ValueError(f"no event: {bytes(event)!r}")
            self._on_event(event[6:].decode())


async def post(address, path, body, on_event=lambda text: None):
    """Sends the request and waits for its end. A connection that fails is an End without a status."""
    host, _, port = address.rpartition(":")
    try:
        _, call = await asyncio.get_running_loop().create_connection(
            lambda: SseCall(address, path, body, on_event), host, int(port))
    except OSError as error:
        return End(fault=str(error))
    try:
        return await call.end
    finally:
        call.transport.close()
