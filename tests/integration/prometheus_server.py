"""A Prometheus with the configuration and rules of deploy/prometheus, for a test."""
import json
import os
import pathlib
import re
import shutil
import socket
import tempfile
import urllib.parse
import urllib.request

from quire_server import Process

SOURCE = pathlib.Path(os.environ["QUIRE_SOURCE"]) / "deploy/prometheus"


def free_address():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return "127.0.0.1:%d" % free.getsockname()[1]


class Prometheus:
    """`with Prometheus(server, worker, gateway) as prometheus:` scrapes the addresses every second."""

    def __init__(self, server, worker, gateway):
        self._folder = tempfile.TemporaryDirectory(prefix="quire-prometheus-")
        folder = pathlib.Path(self._folder.name)
        shutil.copy(SOURCE / "quire.rules.yml", folder)
        text = (SOURCE / "prometheus.yml").read_text(encoding="utf-8")
        text, num_servers = re.subn(r"127\.0\.0\.1:8000", server, text)
        text, num_workers = re.subn(r"127\.0\.0\.1:8100", worker, text)
        text, num_intervals = re.subn(r"_interval: 15s", "_interval: 1s", text)
        assert (num_servers, num_workers, num_intervals) == (1, 1, 2), text
        text += f"  - job_name: quire-gateway\n    static_configs:\n      - targets: [\"{gateway}\"]\n"
        (folder / "prometheus.yml").write_text(text, encoding="utf-8")
        self.address = free_address()
        self._process = Process(["prometheus", f"--config.file={folder}/prometheus.yml",
                                 f"--storage.tsdb.path={folder}/data",
                                 f"--web.listen-address={self.address}"])
        try:
            self._process.wait_for("Server is ready to receive web requests")
        except BaseException:
            self.__exit__()
            raise

    def get(self, path, **parameters):
        url = f"http://{self.address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=20) as response:
            return json.load(response)["data"]

    def query(self, expression):
        """The series: labels, and a value, or for a range all values with their times."""
        return self.get("query", query=expression)["result"]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.kill()
        self._folder.cleanup()
