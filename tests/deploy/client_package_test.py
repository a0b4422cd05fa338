#!/usr/bin/python3
"""deploy/clients/python as a pip package. Debian's protoc takes the place of grpcio-tools, so nothing is downloaded."""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
CLIENT = ROOT / "deploy/clients/python"
GRPC_TOOLS = """
import subprocess

def main(arguments):
    options = [argument.replace("--grpc_python_out", "--grpc_out") for argument in arguments]
    return subprocess.call(options + ["--plugin=protoc-gen-grpc={}"])
"""
USER = """
import proto
from google.rpc import status_pb2

import quire_client

assert proto.IS_PROTO_PLUS
assert quire_client.status_pb2 is status_pb2
request = quire_client.api.GenerateRequest(text=b"Once", stopping={"max_tokens": 2})
assert quire_client.api.GenerateRequest.FromString(request.SerializeToString()) == request
quire_client.api_grpc.GenerationServiceStub(quire_client.dial("127.0.0.1:1"))
print(quire_client.__file__)
"""


def run(*command, path, **more):
    """Returns standard output. path: the folders where Python looks for modules first."""
    environment = {**os.environ, "PYTHONPATH": ":".join(map(str, path)), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, check=True,
                          env=environment, **more).stdout


def files(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.suffix != ".pyc" and path.is_file())


class ClientPackageTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="quire-client-")
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        tools = cls.folder / "tools"
        (tools / "grpc_tools").mkdir(parents=True)
        (tools / "grpc_tools/protoc.py").write_text(
            GRPC_TOOLS.format(shutil.which("grpc_python_plugin")), encoding="utf-8")
        cls.files_before = files(CLIENT)
        run(sys.executable, "setup.py", "-q", "sdist", "--dist-dir", cls.folder, path=[tools], cwd=CLIENT)
        [cls.sdist] = cls.folder.glob("*.tar.gz")
        with tarfile.open(cls.sdist) as archive:
            archive.extractall(cls.folder / "unpacked")
        [cls.source] = (cls.folder / "unpacked").iterdir()
        cls.lib = cls.folder / "lib"
        run(sys.executable, "setup.py", "-q", "build", "--build-lib", cls.lib, path=[tools], cwd=cls.source)

    def test_its_version_is_the_projects(self):
        [version] = re.findall(r"project\(quire VERSION (\S+) ", (ROOT / "CMakeLists.txt").read_text("utf-8"))
        self.assertEqual(self.sdist.name, f"quire_client-{version}.tar.gz")

    def test_the_sdist_has_the_license(self):
        self.assertEqual((self.source / "LICENSE").read_bytes(), (ROOT / "LICENSE").read_bytes())

    def test_the_build_leaves_no_file_in_the_source_folder(self):
        self.assertEqual(files(CLIENT), self.files_before)

    def test_the_package_takes_no_name_of_another_project(self):
        self.assertEqual({path.name for path in self.lib.iterdir()}, {"quire_client.py", "quire_proto"})

    def test_the_client_works_beside_proto_plus_and_googleapis_common_protos(self):
        others = self.folder / "others"
        (others / "proto").mkdir(parents=True)
        (others / "proto/__init__.py").write_text("IS_PROTO_PLUS = True\n", encoding="utf-8")
        subprocess.run(["protoc", f"-I{ROOT}/proto", f"--python_out={others}", "google/rpc/status.proto",
                        "google/rpc/error_details.proto"], check=True)
        self.assertEqual(run(sys.executable, "-c", USER, path=[others, self.lib], cwd=self.folder).strip(),
                         f"{self.lib}/quire_client.py")


if __name__ == "__main__":
    unittest.main(verbosity=2)
