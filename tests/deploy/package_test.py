#!/usr/bin/python3
"""deploy/package: what the Debian package holds works where it lies, and the unit in it agrees with the
programs."""
import os
import pathlib
import re
import shlex
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ["QUIRE_BUILD"])
sys.path.insert(0, str(ROOT / "tests/tools"))

import check_manifests  # noqa: E402

PROGRAMS = {"quire", "quire_gateway", "quire_scheduler", "quire_worker"}
UNIT = "usr/lib/systemd/system/quire.service"
DEFAULTS = "etc/default/quire"
FOLDERS = ("usr/bin", "usr/lib/systemd/system", "usr/share/quire", "usr/share/doc/quire", "etc/default")
# systemd's own scale from 0 to 100, the smaller the safer.
MAX_EXPOSURE = 20


def run(*command, **more):
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True,
                          **more).stdout


def setting_of_unit(text, key):
    """Returns all values of a key, in the order of the text."""
    return re.findall(rf"(?m)^{key}=(.*)$", text)


def flags_of_service(tree):
    text = (tree / DEFAULTS).read_text(encoding="utf-8")
    [words] = [line.partition("=")[2] for line in text.splitlines() if line.startswith("QUIRE_FLAGS=")]
    [value] = shlex.split(words)
    return value.split()


@unittest.skipUnless(shutil.which("dpkg-shlibdeps"), "dpkg-dev is not installed")
class PackageTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls._folder = tempfile.TemporaryDirectory(prefix="quire-package-")
        cls.addClassCleanup(cls._folder.cleanup)
        out = pathlib.Path(cls._folder.name)
        # Under a strict umask, which must not reach the package.
        run("cpack", "--config", BUILD / "CPackConfig.cmake", "-B", out / "made", umask=0o077)
        [cls.package] = (out / "made").glob("quire_*.deb")
        cls.tree = out / "tree"
        run("dpkg-deb", "--raw-extract", cls.package, cls.tree)
        cls.unit = (cls.tree / UNIT).read_text(encoding="utf-8")

    def files(self):
        return {str(path.relative_to(self.tree)): path for path in self.tree.rglob("*")
                if path.is_file() and path.relative_to(self.tree).parts[0] != "DEBIAN"}

    def test_it_has_files_in_our_folders_alone_and_all_may_read_them(self):
        for name, path in self.files().items():
            self.assertTrue(name.startswith(FOLDERS), name)
            mode = stat.S_IMODE(path.stat().st_mode)
            is_program = name.startswith("usr/bin/") and path.name != "quire_cuda.so"
            self.assertEqual(mode, 0o755 if is_program else 0o644, name)
        for line in run("dpkg-deb", "--contents", self.package).splitlines():
            self.assertRegex(line, r"^(drwxr-xr-x|-rwxr-xr-x|-rw-r--r--) root/root ")

    def test_its_licence_is_said_where_debian_looks(self):
        text = (self.tree / "usr/share/doc/quire/copyright").read_text(encoding="utf-8")
        self.assertIn("License: Apache-2.0", text)
        self.assertIn("Apache License", (ROOT / "LICENSE").read_text(encoding="utf-8"))

    def test_programs_run_and_libraries_are_known_to_debian(self):
        here = {path.name for path in (self.tree / "usr/bin").iterdir()}
        self.assertEqual(here - {"quire_cuda.so"}, PROGRAMS)
        for name in PROGRAMS:
            self.assertRegex(run(self.tree / "usr/bin" / name, "--version"), r"^quire\w* \d+\.\d+\.\d+\n$")
        depends = run("dpkg-deb", "--field", self.package, "Depends")
        for library in ("libc6", "libgrpc++1", "libprotobuf", "libpcre2-8-0", "libprometheus-cpp-core1",
                        "libzmq5"):
            self.assertIn(library, depends)

    def test_it_has_no_scripts_and_keeps_what_an_operator_has_changed(self):
        control = {path.name for path in (self.tree / "DEBIAN").iterdir()}
        self.assertEqual(control, {"control", "conffiles", "md5sums"})
        conffiles = (self.tree / "DEBIAN/conffiles").read_text(encoding="utf-8").split()
        self.assertEqual(conffiles, ["/" + name for name in self.files() if name.startswith("etc/")])

    def test_clients_protos_boards_and_rules_are_whole(self):
        share = self.tree / "usr/share/quire"
        protos = [str(path.relative_to(share)) for path in share.rglob("*.proto")]
        self.assertEqual(len(protos), len(list((ROOT / "proto").rglob("*.proto"))))
        with tempfile.TemporaryDirectory() as folder:
            run("protoc", "-I", share, f"--python_out={folder}", *protos)
        for name in ("clients/python/quire_client.py", "clients/cpp/resuming_client.h",
                     "clients/cpp/resuming_client.cc", "clients/cpp/retry_policy.h",
                     "clients/cpp/retry_policy.cc", "prometheus/prometheus.yml",
                     "prometheus/quire.rules.yml", "proxy/haproxy.cfg", "model/model.safetensors"):
            self.assertEqual((share / name).read_bytes(),
                             (ROOT / ("deploy/" + name)).read_bytes(), name)
        self.assertEqual({path.name for path in (share / "grafana").glob("*.json")},
                         {path.name for path in (ROOT / "deploy/grafana").glob("*.json")})

    def test_an_install_without_the_package_puts_nothing_outside_its_prefix(self):
        with tempfile.TemporaryDirectory() as folder:
            said = run("cmake", "--install", BUILD, "--prefix", "/opt/quire",
                       env={**os.environ, "DESTDIR": folder})
            put = re.findall(r"(?m)^-- (?:Installing|Up-to-date): (.*)$", said)
            self.assertGreater(len(put), 30)
            for path in put:
                self.assertTrue(path.startswith(f"{folder}/opt/quire/"), path)
            self.assertEqual(PROGRAMS - set(os.listdir(f"{folder}/opt/quire/bin")), set())

    def test_the_unit_serves_as_it_is_written(self):
        self.assertEqual(setting_of_unit(self.unit, "ExecStart"), ["/usr/bin/quire serve $QUIRE_FLAGS"])
        self.assertEqual(setting_of_unit(self.unit, "EnvironmentFile"), ["/" + DEFAULTS])
        model = f"--model={self.tree}"
        flags = [flag.replace("--model=", model) for flag in flags_of_service(self.tree)]
        with tempfile.TemporaryDirectory() as folder, subprocess.Popen(
                [self.tree / "usr/bin/quire", "serve", *flags, "--port=0", "--http-port=0"],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                env={"XDG_RUNTIME_DIR": folder}) as server:
            try:
                self.assertRegex(server.stdout.readline(), "^quire: ready ")
                server.send_signal(signal.SIGTERM)
                self.assertEqual(server.wait(timeout=60), 0)
                self.assertEqual(os.listdir(folder), [])
            finally:
                server.kill()

    def test_the_unit_waits_for_the_drain_and_restarts_what_may_come_right(self):
        drain = (check_manifests.DEFAULT_DRAIN_SECONDS["quire serve"]
                 + check_manifests.SECONDS_TO_STOP["quire serve"])
        [timeout] = setting_of_unit(self.unit, "TimeoutStopSec")
        self.assertGreater(int(timeout), drain)
        self.assertEqual(setting_of_unit(self.unit, "KillMode"), ["mixed"])
        codes = dict(re.findall(r"int (kExit\w+) = (\d+);",
                                (ROOT / "common/base/exit_codes.h").read_text(encoding="utf-8")))
        [never] = setting_of_unit(self.unit, "RestartPreventExitStatus")
        self.assertEqual(never.split(), [codes[name] for name in ("kExitUsage", "kExitModel", "kExitMemory")])

    @unittest.skipUnless(shutil.which("systemd-analyze"), "systemd is not installed")
    def test_systemd_takes_the_unit_and_finds_it_safe(self):
        # A separate root, since the programs are not installed on this machine.
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            shutil.copytree(self.tree, root, dirs_exist_ok=True)
            for target in ("network-online", "multi-user", "sysinit", "basic", "shutdown"):
                (root / f"usr/lib/systemd/system/{target}.target").write_text("[Unit]\n", encoding="utf-8")
            done = subprocess.run(
                ["systemd-analyze", "verify", f"--root={root}", "/" + UNIT], stdin=subprocess.DEVNULL,
                capture_output=True, text=True, check=False)
            self.assertEqual((done.returncode, done.stdout + done.stderr), (0, ""))
            run("systemd-analyze", "security", "--offline=yes", f"--threshold={MAX_EXPOSURE}",
                f"--root={root}", "quire.service")


if __name__ == "__main__":
    unittest.main(verbosity=2)
