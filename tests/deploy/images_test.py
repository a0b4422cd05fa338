#!/usr/bin/python3
"""deploy/images and deploy/compose.yaml: the files that they name exist, and agree with the programs, the
manifests of k8s/ and the configurations that are mounted. No image is built."""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import unittest

import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
DOCKERFILE = DEPLOY / "images/Dockerfile"
sys.path.insert(0, str(ROOT / "tests/tools"))

import check_manifests  # noqa: E402

PROGRAMS = check_manifests.Programs(os.environ["QUIRE_BIN"])
IMAGES = {"quire": {"quire", "quire_gateway", "quire_scheduler", "quire_worker"},
          "quire-cuda": {"quire", "quire_gateway", "quire_scheduler", "quire_worker", "quire_cuda"}}


def read(path):
    return path.read_text(encoding="utf-8")


class Stage:
    """One FROM and its instructions, as pairs of word and rest; ARGs replaced by their defaults."""

    def __init__(self, base, name, variables):
        self.base, self.name, self.instructions = base, name, []
        self.variables = dict(variables)

    def add(self, word, rest):
        if word == "ARG":
            name, _, value = rest.partition("=")
            self.variables[name] = value
        for name, value in self.variables.items():
            rest = rest.replace(f"${{{name}}}", value)
        self.instructions.append((word, rest))

    def of(self, word):
        return [rest for each, rest in self.instructions if each == word]


def stages():
    """Returns the stages by name, in the order of the file."""
    text = re.sub(r"(?m)^\s*#.*\n", "", read(DOCKERFILE)).replace("\\\n", "")
    result, variables = {}, {}
    for line in filter(None, map(str.strip, text.splitlines())):
        word, rest = line.split(maxsplit=1)
        if word == "FROM":
            base, _, name = re.sub(r"\$\{(\w+)\}", lambda match: variables[match[1]], rest).split()
            stage = result[name] = Stage(base, name, {})
        elif not result:
            variables[rest.partition("=")[0]] = rest.partition("=")[2]
        else:
            stage.add(word, rest)
    return result


def ignored(path):
    """Returns whether .dockerignore keeps a path of the repository out. Knows "*", "!NAME" and "**/NAME"."""
    result = False
    for pattern in filter(None, read(ROOT / ".dockerignore").splitlines()):
        if pattern == "*":
            result = True
        elif pattern.startswith("!"):
            result &= path.parts[0] != pattern[1:]
        elif pattern.startswith("**/"):
            result |= pattern[3:] in path.parts
        elif not pattern.startswith("#"):
            raise AssertionError(f".dockerignore: {pattern}: not known here")
    return result


class DockerfileTest(unittest.TestCase):

    def test_stages_are_images_of_debian_or_earlier_stages(self):
        seen = set()
        for name, stage in stages().items():
            self.assertTrue(stage.base == "debian:bookworm-slim" or stage.base in seen, name)
            for source in re.findall(r"--mount=\S*from=([\w-]+)", "\n".join(stage.of("RUN"))):
                self.assertIn(source, seen, name)
            seen.add(name)
        self.assertEqual(set(IMAGES) - seen, set())

    def test_what_is_copied_is_there_and_not_ignored(self):
        for stage in stages().values():
            for rest in stage.of("COPY"):
                *sources, _ = rest.split()
                for source in sources:
                    self.assertFalse(source.startswith("--"), rest)
                    self.assertTrue((ROOT / source).exists(), rest)
                    self.assertFalse(source != "." and ignored(pathlib.Path(source)), rest)

    def test_what_cmake_reads_is_not_ignored(self):
        folders = re.findall(r"(?m)^add_subdirectory\((\w[\w/]*)\)", read(ROOT / "CMakeLists.txt"))
        documents = re.search(r"foreach\(document (.*)\)", read(DEPLOY / "package/CMakeLists.txt"))[1]
        names = [*folders, "CMakeLists.txt", *(f"{name}.md" for name in documents.split())]
        self.assertGreater(len(names), 8)
        for name in names:
            self.assertTrue((ROOT / name).exists(), name)
            self.assertFalse(ignored(pathlib.Path(name)), name)
        for name in (".git", "build", "tests", "deploy/clients/python/__pycache__"):
            self.assertTrue(ignored(pathlib.Path(name)), name)

    def test_what_an_image_builds_is_what_it_has(self):
        for image, programs in IMAGES.items():
            [source] = re.findall(r"from=([\w-]+),source=/packages", "\n".join(stages()[image].of("RUN")))
            built = [json.loads(rest)[-1] for rest in stages()[source].of("RUN") if "-- quire" in rest]
            self.assertEqual(len(built), 1)
            self.assertEqual(set(re.search(r"-- ([\w ]+);", built[0])[1].split()), programs)
            self.assertIn("-B /packages", built[0])

    def test_scripts_use_what_setup_has_and_options_that_cmake_knows(self):
        setup = read(DEPLOY / "setup.sh")
        options = "\n".join(read(ROOT / name) for name in ("CMakeLists.txt", "kernels/cuda/CMakeLists.txt"))
        for stage in stages().values():
            for rest in stage.of("RUN"):
                if not rest.startswith("["):
                    continue
                shell, flags, script = json.loads(rest)
                self.assertEqual((shell, flags), ("bash", "-euc"))
                for name in re.findall(r"\$\{(\w+)\[@\]\}", script):
                    self.assertIn(f"\n{name}=(", setup)
                for name in re.findall(r"(?:^|; *)(install_packages|build) ", script):
                    self.assertIn(f"\n{name}() {{", setup)
                for name in re.findall(r"-D(QUIRE_\w+)=", script):
                    self.assertIn(f"option({name} ", options)

    def test_images_run_as_the_manifests_want(self):
        manifests = [each for path in sorted((ROOT / "k8s").rglob("*.yaml"))
                     for each in yaml.safe_load_all(read(path)) if isinstance(each, dict)]
        names = {image.get("newName", image["name"]) for each in manifests
                 for image in each.get("images", [])}
        self.assertEqual(names, set(IMAGES))
        pods = [each["spec"]["template"]["spec"] for each in manifests
                if each.get("kind") in ("Deployment", "StatefulSet")]
        pods = [pod for pod in pods if "securityContext" in pod
                and all("command" in container for container in pod["containers"])]  # others' images have none
        self.assertGreater(len(pods), 2)
        users = {f"{pod['securityContext']['runAsUser']}:{pod['securityContext']['runAsGroup']}"
                 for pod in pods}
        commands = {word for pod in pods for container in pod["containers"] for word in container["command"]}
        commands -= {"serve", "supervise"}  # commands of quire
        for image, programs in IMAGES.items():
            stage = stages()[image]
            self.assertEqual(set(stage.of("USER")), users)
            self.assertEqual(commands - programs, set())
            self.assertEqual(stage.of("STOPSIGNAL"), ["SIGTERM"])
            [entry], [command] = map(json.loads, stage.of("ENTRYPOINT")), map(json.loads, stage.of("CMD"))
            subprocess.run([pathlib.Path(os.environ["QUIRE_BIN"]) / entry[0], *entry[1:], *command],
                           stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=True, timeout=60)
            ports = {str(port["containerPort"]) for pod in pods for container in pod["containers"]
                     if container["command"] == ["quire", "serve"] for port in container["ports"]}
            self.assertEqual({port for rest in stage.of("EXPOSE") for port in rest.split()}, ports)


def defaults(value):
    """"${NAME:-default}" is its default."""
    return re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", value)


class ComposeTest(unittest.TestCase):

    def setUp(self):
        self.compose = yaml.safe_load(read(DEPLOY / "compose.yaml"))
        self.services = self.compose["services"]

    def command(self, service):
        """Values by flag."""
        return dict(word.removeprefix("--").partition("=")[::2] for word in self.services[service]["command"]
                    if word.startswith("--"))

    def mounts(self, service):
        """Source by path in the container: a file or folder of ours, or the name of a volume."""
        result = {}
        for volume in self.services[service].get("volumes", []):
            source, target, *mode = defaults(volume).split(":")
            if source.startswith("."):
                self.assertEqual(mode, ["ro"], volume)
                self.assertTrue((DEPLOY / source).exists(), volume)
                result[target] = (DEPLOY / source).resolve()
            else:
                self.assertIn(source, self.compose["volumes"])
                result[target] = source
        return result

    def mounted(self, service, path):
        """The file of ours that a container sees at a path."""
        path = pathlib.PurePath(path)
        [(target, source)] = [(target, source) for target, source in self.mounts(service).items()
                              if isinstance(source, pathlib.Path) and path.is_relative_to(target)]
        return source / path.relative_to(target)

    def test_every_service_has_a_version_and_no_privilege(self):
        for name, service in self.services.items():
            with self.subTest(name):
                self.assertRegex(service["image"], r"^[\w/]+:v?\d+\.\d+\.\d+$")
                self.assertIs(service["read_only"], True)
                self.assertEqual(service["cap_drop"], ["ALL"])
                self.assertEqual(service["security_opt"], ["no-new-privileges:true"])
                self.assertEqual(service["network_mode"], "host")
                self.assertNotIn("ports", service)

    def test_quire_is_built_here_and_takes_its_flags(self):
        service = self.services["quire"]
        version = re.search(r"project\(quire VERSION ([\d.]+)", read(ROOT / "CMakeLists.txt"))[1]
        self.assertEqual(service["image"], f"quire:{version}")
        self.assertEqual((DEPLOY / service["build"]["context"]).resolve(), ROOT)
        self.assertEqual(ROOT / service["build"]["dockerfile"], DOCKERFILE)
        self.assertIn(service["build"]["target"], IMAGES)
        self.assertEqual(service["command"][0], "serve")
        tried = check_manifests.tried_arguments({"args": service["command"][1:]})
        tried = [re.sub(r"^(--worker-http-port=)\d+$", r"\g<1>0", each) for each in tried]
        self.assertIsNone(PROGRAMS.refusal_of("quire serve", tried))
        self.assertTrue((self.mounted("quire", self.command("quire")["model"]) / "config.json").is_file())

    def test_quire_has_time_to_drain_and_a_place_for_its_sockets(self):
        service = self.services["quire"]
        container = {"command": ["quire", "serve"], "args": service["command"][1:]}
        self.assertGreater(int(service["stop_grace_period"].removesuffix("s")),
                           check_manifests.drain_seconds(container))
        self.assertEqual([mount.partition(":")[0] for mount in service["tmpfs"]], ["/tmp"])

    def test_nothing_but_this_machine_reaches_a_port(self):
        quire = self.command("quire")
        self.assertEqual({"host", "http-host", "worker-http-host", "allow-insecure-bind"} & set(quire), set())
        self.assertRegex(self.command("prometheus")["web.listen-address"], r"^127\.0\.0\.1:\d+$")
        self.assertEqual(self.services["grafana"]["environment"]["GF_SERVER_HTTP_ADDR"], "127.0.0.1")

    def test_prometheus_scrapes_what_quire_serves(self):
        flags, quire = self.command("prometheus"), self.command("quire")
        config = self.mounted("prometheus", flags["config.file"])
        scraped = yaml.safe_load(read(config))
        targets = {job["job_name"]: job["static_configs"][0]["targets"] for job in scraped["scrape_configs"]}
        self.assertEqual(targets, {"quire": [f"127.0.0.1:{quire['http-port']}"],
                                   "quire-worker": [f"127.0.0.1:{quire['worker-http-port']}"]})
        for name in scraped["rule_files"]:
            self.assertTrue((config.parent / name).is_file(), name)
        self.assertEqual(self.mounts("prometheus")[flags["storage.tsdb.path"]], "prometheus")

    @unittest.skipUnless(shutil.which("prometheus"), "prometheus is not installed")
    def test_prometheus_takes_its_flags(self):
        text = subprocess.run(["prometheus", "--help"], capture_output=True, text=True, check=False)
        known = set(re.findall(r"--([\w.-]+)", text.stdout + text.stderr))
        self.assertEqual(set(self.command("prometheus")) - known, set())

    def test_grafana_finds_prometheus_and_the_boards(self):
        scraped = yaml.safe_load(read(DEPLOY / "prometheus/prometheus.yml"))
        provisioning = self.mounted("grafana", "/etc/grafana/provisioning")
        [source] = yaml.safe_load(read(provisioning / "datasources/prometheus.yaml"))["datasources"]
        listens = self.command("prometheus")["web.listen-address"]
        self.assertEqual((source["type"], source["url"]), ("prometheus", f"http://{listens}"))
        self.assertEqual(source["jsonData"]["timeInterval"], scraped["global"]["scrape_interval"])
        [provider] = yaml.safe_load(read(provisioning / "dashboards/quire.yaml"))["providers"]
        boards = list(self.mounted("grafana", provider["options"]["path"]).glob("*.json"))
        self.assertEqual(len(boards), 4)


if __name__ == "__main__":
    unittest.main(verbosity=2)
