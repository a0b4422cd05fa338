#!/usr/bin/env python3
"""generate_example.py ADDRESS[,ADDRESS...] PROMPT: one sampled answer on standard output.

Kill the server while it streams and start it again: the answer goes on.

QUIRE_API_KEY in the environment is the client's key, where the server asks for one.
With QUIRE_SSL_CA_CERTS in the environment, the file of the authorities that the server's certificate is of, it speaks
TLS; QUIRE_SSL_CERTFILE and QUIRE_SSL_KEYFILE are the client's own certificate, where the server asks for one. All are PEM.
"""
import os
import sys

import quire_client
from proto.v1 import generation_pb2 as api


def main():
    if len(sys.argv) != 3:
        sys.exit("usage: generate_example.py ADDRESS[,ADDRESS...] PROMPT")
    tls = [os.environ.get(f"QUIRE_SSL_{name}") for name in ("CA_CERTS", "CERTFILE", "KEYFILE")]
    channels = [quire_client.dial(address, *tls) for address in sys.argv[1].split(",")]
    request = api.GenerateRequest(text=sys.argv[2].encode(), sampling={"temperature": 0.8},
                                  stopping={"max_tokens": 200})
    for message in quire_client.generate(channels, request, os.environ.get("QUIRE_API_KEY")):
        sys.stdout.buffer.write(message.chunk.text + message.finished.text)
        sys.stdout.buffer.flush()
    print()


if __name__ == "__main__":
    main()
