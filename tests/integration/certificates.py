"""Certificates for a test, by the openssl program."""
import os
import pathlib
import ssl
import subprocess

import grpc

HOSTS = "subjectAltName=DNS:localhost,IP:127.0.0.1"


def _openssl(*arguments):
    subprocess.run(["openssl", *arguments], check=True, capture_output=True, stdin=subprocess.DEVNULL)


class Certificate:
    """A certificate, its key, and the authority that others are asked to be of. Paths."""

    def __init__(self, folder, name, authorities):
        self.certfile = os.path.join(folder, f"{name}.pem")
        self.keyfile = os.path.join(folder, f"{name}-key.pem")
        self.authorities = authorities

    def flags(self, prefix="ssl"):
        return [f"--{prefix}-certfile={self.certfile}", f"--{prefix}-keyfile={self.keyfile}",
                f"--{prefix}-ca-certs={self.authorities}"]

    def channel(self, address, with_certificate=True):
        """Returns a channel that trusts servers of this certificate's authorities."""
        own = [self.keyfile, self.certfile] if with_certificate else []
        texts = [pathlib.Path(path).read_bytes() for path in (self.authorities, *own)]
        return grpc.secure_channel(address, grpc.ssl_channel_credentials(*texts),
                                   options=[("grpc.use_local_subchannel_pool", 1)])

    def context(self):
        """Returns the context of HTTPS clients that show this certificate, and trust servers of its authorities."""
        context = ssl.create_default_context(cafile=self.authorities)
        context.load_cert_chain(self.certfile, self.keyfile)
        return context

    def replace_by(self, other):
        """Replaces each file by the other certificate's file, one after another, each atomically."""
        for old, new in ((self.certfile, other.certfile), (self.keyfile, other.keyfile),
                         (self.authorities, other.authorities)):
            pathlib.Path(old + ".new").write_bytes(pathlib.Path(new).read_bytes())
            os.replace(old + ".new", old)


class Authority:

    def __init__(self, folder, name):
        self._folder = folder
        self.path = os.path.join(folder, f"{name}-ca.pem")
        self._key = os.path.join(folder, f"{name}-ca-key.pem")
        _openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
                 "-subj", f"/CN={name}", "-keyout", self._key, "-out", self.path)

    def issue(self, name, days=2, believes=None):
        """Issues a certificate for this machine, expired if days < 0. Its holder trusts peers of the authority
        `believes`, by default of this authority."""
        issued = Certificate(self._folder, name, (believes or self).path)
        request = os.path.join(self._folder, f"{name}.csr")
        _openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", f"/CN={name}",
                 "-addext", HOSTS, "-keyout", issued.keyfile, "-out", request)
        _openssl("x509", "-req", "-in", request, "-CA", self.path, "-CAkey", self._key, "-days", str(days),
                 "-copy_extensions", "copy", "-out", issued.certfile)
        return issued
