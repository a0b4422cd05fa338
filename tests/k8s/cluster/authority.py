"""Makes certificates with openssl, and Secrets with the certificates as cert-manager would make them."""
import base64
import pathlib
import subprocess


def secret(name, files):
    """Returns a Secret. files: a dict of file name to contents, bytes."""
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "type": "Opaque",
            "data": {key: base64.b64encode(value).decode() for key, value in files.items()}}


class Authority:

    def __init__(self, folder, name):
        self._folder = pathlib.Path(folder)
        self._key = self._folder / f"{name}-authority.key"
        self.ca_file = self._folder / f"{name}-authority.crt"
        self._openssl("req", "-x509", *self._new_key(self._key), "-days", "30", "-subj", f"/CN={name}",
                      "-out", self.ca_file)

    @staticmethod
    def _openssl(*args):
        subprocess.run(["openssl", *map(str, args)], check=True, capture_output=True, stdin=subprocess.DEVNULL)

    @staticmethod
    def _new_key(path):
        return ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", path]

    def issue(self, secret_name, dns_names):
        """Returns a Secret with a new key, the key's certificate for these names, and the authority's certificate."""
        stem = self._folder / secret_name
        names = ",".join(f"DNS:{each}" for each in dns_names)
        self._openssl("req", *self._new_key(f"{stem}.key"), "-subj", "/CN=quire", "-addext",
                      f"subjectAltName={names}", "-out", f"{stem}.csr")
        self._openssl("x509", "-req", "-in", f"{stem}.csr", "-CA", self.ca_file, "-CAkey", self._key,
                      "-days", "30", "-copy_extensions", "copy", "-out", f"{stem}.crt")
        return secret(secret_name, {"tls.crt": pathlib.Path(f"{stem}.crt").read_bytes(),
                                    "tls.key": pathlib.Path(f"{stem}.key").read_bytes(),
                                    "ca.crt": self.ca_file.read_bytes()})
