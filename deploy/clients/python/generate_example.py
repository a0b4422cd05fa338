#!/usr/bin/env python3
"""generate_example.py ADDRESS[,ADDRESS...] PROMPT: prints one sampled answer on standard output.

Kill the server during the answer and start it again: the answer goes on.

Environment: QUIRE_API_KEY is the client's key, if the server asks for one. QUIRE_SSL_CA_CERTS names the file of the
authorities that may sign the server's certificate, and turns TLS on. QUIRE_SSL_CERTFILE and QUIRE_SSL_KEYFILE are the
client's own certificate and key, if the server asks for a certificate. All files are PEM.
"""
import codecs
import os
import sys
import unicodedata

import quire_client


class Output:
    """Standard output. If it is a terminal, escapes control characters, so that no answer can control the terminal."""

    def __init__(self):
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def write(self, text):
        if sys.stdout.isatty():
            sys.stdout.write("".join(
                f"\\u{ord(c):04x}" if unicodedata.category(c) == "Cc" and c not in "\n\t" else c
                for c in self.decoder.decode(text)))
            sys.stdout.flush()
        else:
            sys.stdout.buffer.write(text)
            sys.stdout.buffer.flush()


def main():
    if len(sys.argv) != 3:
        sys.exit("usage: generate_example.py ADDRESS[,ADDRESS...] PROMPT")
    tls = [os.environ.get(f"QUIRE_SSL_{name}") for name in ("CA_CERTS", "CERTFILE", "KEYFILE")]
    channels = [quire_client.dial(address, *tls) for address in sys.argv[1].split(",")]
    request = quire_client.api.GenerateRequest(text=sys.argv[2].encode(), sampling={"temperature": 0.8},
                                               stopping={"max_tokens": 200})
    output = Output()
    for message in quire_client.generate(channels, request, os.environ.get("QUIRE_API_KEY")):
        output.write(message.chunk.text + message.finished.text)
    print()


if __name__ == "__main__":
    main()
