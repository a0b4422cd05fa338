"""A Kubernetes cluster and one namespace of it, by kubectl."""
import json
import math
import subprocess
import tempfile
import time

import yaml


class ClusterError(Exception):
    """kubectl failed. The message has the text that kubectl wrote to standard error."""


class Pod:
    """The state of a pod when the API server was asked. It does not change afterwards."""

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
        """The id of the first container, without the runtime's name in front (containerd://); "" before it exists."""
        return self.containers[0].get("containerID", "").rpartition("/")[2] if self.containers else ""

    @property
    def status_text(self):
        """The reasons and messages of the pod and its containers, which `kubectl describe pod` shows, a line each."""
        parts = [self.phase or "", self.data["status"].get("reason", ""),
                 self.data["status"].get("message", "")]
        started = self.containers + self.data["status"].get("initContainerStatuses", [])
        for state in [each.get(key, {}) for each in started for key in ("state", "lastState")]:
            for detail in state.values():
                parts += [detail.get("reason", ""), detail.get("message", "")]
        parts += [each.get("message", "") for each in self.data["status"].get("conditions", [])]
        return "\n".join(part for part in parts if part)


class Cluster:
    """Runs kubectl for one namespace. Thread safety: safe from any thread, because no method changes the object."""

    def __init__(self, kubeconfig, namespace):
        self.kubeconfig = kubeconfig
        self.namespace = namespace

    def kubectl(self, *args, stdin=None, seconds=60):
        """Returns kubectl's standard output. Raises ClusterError if the exit code is not 0, or after `seconds`."""
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
        """Returns before the objects are gone."""
        self.kubectl("delete", "--filename=-", "--ignore-not-found", "--wait=false",
                     stdin=yaml.safe_dump_all(objects), seconds=120)

    def delete_pod(self, pod, *args):
        """Returns before the pod has ended. args: further flags of `kubectl delete`."""
        self.kubectl("delete", "pod", pod.name, "--wait=false", *args)

    def log(self, pod, since=None):
        """Returns the last 200 log lines of the pod's containers, and of the containers before their last restart.

        since: a time of time.monotonic(); older lines are left out.
        """
        age = [] if since is None else [f"--since={math.ceil(time.monotonic() - since) + 1}s"]
        texts = []
        for which in (["--previous"], []):
            try:
                texts.append(self.kubectl("logs", pod.name, "--all-containers", "--tail=200", *which, *age,
                                          seconds=10))
            except ClusterError:
                pass  # the pod has no such container
        return "\n".join(texts)

    def build(self, folder):
        """Returns the objects that a kustomization makes."""
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
        """Makes the namespace as operators do, with Kubernetes' restricted Pod Security Standard for all pods."""
        self.apply([{"apiVersion": "v1", "kind": "Namespace", "metadata": {
            "name": self.namespace, "labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}])

    def delete_namespace(self):
        self.kubectl("delete", "namespace", self.namespace, "--ignore-not-found", seconds=240)

    def wait(self, is_done, seconds, what, pause=0.5):
        """Waits until is_done() is true. Returns the seconds that it took. Raises TimeoutError after `seconds`.

        Waits also while the cluster does not answer (ClusterError).
        """
        begin = time.monotonic()
        while True:
            reason = ""
            try:
                if is_done():
                    return time.monotonic() - begin
            except ClusterError as error:
                reason = f": {error}"
            if time.monotonic() - begin > seconds:
                raise TimeoutError(f"{what}: did not happen within {seconds} s{reason}")
            time.sleep(pause)


def temporary_folder():
    return tempfile.TemporaryDirectory(prefix="quire-cluster-")
