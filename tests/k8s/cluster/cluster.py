"""A Kubernetes cluster and one namespace of it, by kubectl."""
import json
import math
import subprocess
import tempfile
import time

import yaml


class ClusterError(Exception):
    """kubectl failed. The text is what it wrote."""


class Pod:
    """A pod as the API server told it once."""

    def __init__(self, data):
        self.data = data
        self.name = data["metadata"]["name"]
        self.uid = data["metadata"]["uid"]
        self.labels = data["metadata"].get("labels", {})
        self.component = self.labels.get("app.kubernetes.io/component")
        self.node = data["spec"].get("nodeName")
        self.ip = data["status"].get("podIP")
        self.phase = data["status"].get("phase")
        self.is_terminating = "deletionTimestamp" in data["metadata"]
        self.is_ready = any(each["type"] == "Ready" and each["status"] == "True"
                            for each in data["status"].get("conditions", []))
        self.containers = data["status"].get("containerStatuses", [])
        self.num_restarts = sum(each["restartCount"] for each in self.containers)

    @property
    def is_serving(self):
        return self.is_ready and not self.is_terminating

    @property
    def is_running(self):
        return bool(self.containers) and all("running" in each["state"] for each in self.containers)

    @property
    def container_id(self):
        """Without the runtime's name in front of it."""
        return self.containers[0].get("containerID", "").rpartition("/")[2] if self.containers else ""

    @property
    def status_text(self):
        """What `kubectl describe pod` says of its containers and of itself: reasons and messages."""
        parts = [self.phase or "", self.data["status"].get("reason", ""),
                 self.data["status"].get("message", "")]
        started = self.containers + self.data["status"].get("initContainerStatuses", [])
        for state in [each.get(key, {}) for each in started for key in ("state", "lastState")]:
            for detail in state.values():
                parts += [detail.get("reason", ""), detail.get("message", "")]
        parts += [each.get("message", "") for each in self.data["status"].get("conditions", [])]
        return "\n".join(part for part in parts if part)


class Cluster:
    """Thread safety: methods keep no state, call them from any thread."""

    def __init__(self, kubeconfig, namespace):
        self.kubeconfig = kubeconfig
        self.namespace = namespace

    def kubectl(self, *args, stdin=None, seconds=60):
        """Standard output. Raises ClusterError on any exit code but 0 and after `seconds`."""
        command = ["kubectl", f"--kubeconfig={self.kubeconfig}", f"--namespace={self.namespace}", *args]
        try:
            done = subprocess.run(command, input=stdin, text=True, capture_output=True, timeout=seconds,
                                  check=False)
        except subprocess.TimeoutExpired as error:
            raise ClusterError(f"{' '.join(args)}: no answer within {seconds} s") from error
        if done.returncode != 0:
            raise ClusterError(f"{' '.join(args)}: {done.stderr.strip()}")
        return done.stdout

    def get(self, kind, name):
        return json.loads(self.kubectl("get", kind, name, "--output=json", seconds=10))

    def list(self, kind):
        return json.loads(self.kubectl("get", kind, "--output=json", seconds=10))["items"]

    def pods(self, component=None):
        found = [Pod(each) for each in self.list("pods")]
        return [each for each in found if component in (None, each.component)]

    def apply(self, objects):
        self.kubectl("apply", "--filename=-", stdin=yaml.safe_dump_all(objects), seconds=120)

    def delete(self, objects):
        """Returns at once."""
        self.kubectl("delete", "--filename=-", "--ignore-not-found", "--wait=false",
                     stdin=yaml.safe_dump_all(objects), seconds=120)

    def delete_pod(self, pod, *args):
        """Returns at once."""
        self.kubectl("delete", "pod", pod.name, "--wait=false", *args)

    def log(self, pod, since=None):
        """Of the current container and of the one before, whichever there are. since: a time.monotonic()."""
        age = [] if since is None else [f"--since={math.ceil(time.monotonic() - since) + 1}s"]
        texts = []
        for which in (["--previous"], []):
            try:
                texts.append(self.kubectl("logs", pod.name, "--all-containers", "--tail=200", *which, *age,
                                          seconds=10))
            except ClusterError:
                pass  # there is no such container
        return "\n".join(texts)

    def build(self, folder):
        """The objects of a kustomization."""
        text = self.kubectl("kustomize", str(folder))
        return [each for each in yaml.safe_load_all(text) if each is not None]

    def is_node_ready(self, name):
        conditions = self.get("node", name)["status"]["conditions"]
        return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)

    def node_names(self):
        return sorted(each["metadata"]["name"] for each in self.list("nodes"))

    def node_address(self, name):
        addresses = self.get("node", name)["status"]["addresses"]
        return next(each["address"] for each in addresses if each["type"] == "InternalIP")

    def make_namespace(self):
        """As operators make it: pods have to keep the restricted standard."""
        self.apply([{"apiVersion": "v1", "kind": "Namespace", "metadata": {
            "name": self.namespace, "labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}])

    def delete_namespace(self):
        self.kubectl("delete", "namespace", self.namespace, "--ignore-not-found", seconds=240)

    def wait(self, is_done, seconds, what, pause=0.5):
        """Seconds until is_done() held. A cluster that does not answer meanwhile is waited for too."""
        begin = time.monotonic()
        while True:
            reason = ""
            try:
                if is_done():
                    return time.monotonic() - begin
            except ClusterError as error:
                reason = f": {error}"
            if time.monotonic() - begin > seconds:
                raise TimeoutError(f"{what}: not within {seconds} s{reason}")
            time.sleep(pause)


def temporary_folder():
    return tempfile.TemporaryDirectory(prefix="quire-cluster-")
