"""Adds the stubs of proto/v1 to the package, as `quire_proto`, because the name `proto` would overwrite
proto-plus.

The stubs of google.rpc are those of googleapis-common-protos, because one process cannot load a second set.
"""
import pathlib
import tempfile

import setuptools
from grpc_tools import protoc
from setuptools.command import build_py, sdist

HERE = pathlib.Path(__file__).resolve().parent
# The sdist has a copy of the protos; in a clone they lie in the project's root.
ROOT = next(folder for folder in (HERE, *HERE.parents) if (folder / "proto/v1").is_dir())
PROTOS = ["proto/v1/types.proto", "proto/v1/generation.proto"]


class BuildPy(build_py.build_py):

    def run(self):
        super().run()
        package = pathlib.Path(self.build_lib, "quire_proto/v1")
        package.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as stubs:
            outputs = [f"--python_out={stubs}", f"--grpc_python_out={stubs}"]
            if protoc.main(["protoc", f"--proto_path={ROOT}", *outputs, *PROTOS]) != 0:
                raise SystemExit("protoc failed")
            for stub in pathlib.Path(stubs, "proto/v1").iterdir():
                text = stub.read_text(encoding="utf-8").replace("from proto.v1 import", "from quire_proto.v1 import")
                (package / stub.name).write_text(text, encoding="utf-8")


class Sdist(sdist.sdist):

    def make_release_tree(self, base_dir, files):
        super().make_release_tree(base_dir, files)
        for name in (*PROTOS, "LICENSE"):
            copy = pathlib.Path(base_dir, name)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes((ROOT / name).read_bytes())


# Builds in a scratch folder. A build in this folder would leave a second quire_client.py here, and the Debian package
# would install it.
with tempfile.TemporaryDirectory() as scratch:
    setuptools.setup(py_modules=["quire_client"], cmdclass={"build_py": BuildPy, "sdist": Sdist},
                     options={"build": {"build_base": scratch}, "egg_info": {"egg_base": scratch}})
