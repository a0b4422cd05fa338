"""Installs an overlay of k8s/ in a namespace: built as an operator builds it, reduced to small resources, applied."""
import copy
import os
import pathlib
import subprocess
import time
from dataclasses import dataclass

import yaml

from authority import Authority, secret
from cluster import ClusterError, Pod
from load import Server

K8S = pathlib.Path(__file__).resolve().parents[3] / "k8s"
STABLE_SECONDS = 6  # longer than a readiness probe's period (5 s): until then a failed pod may still look ready
NUM_SERVERS = 2  # replicas of the overlays whose server is one pod
NUM_RANKS = 2  # of tensor-parallel, because the bundled model can be divided by 2
RESOURCES = {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "256Mi"}}
SMALL_FLAGS = {"threads": "1", "kv-cache-memory-bytes": "64MiB", "swap-space": "32MiB"}
GPU_FLAGS = ("device", "gemm-cache")
INSTANCE = "app.kubernetes.io/instance"
WORKER_NAMES = [f"quire-worker-{rank}" for rank in range(8)]


@dataclass(frozen=True)
class Variant:
    """An overlay, and the components to install with it."""
    overlay: str
    is_secured: bool = False  # TLS for clients, mTLS for workers, API keys, network policies
    is_monitored: bool = False  # monitoring, and autoscaling unless multi-pod; needs the definitions of --crds

    @property
    def is_multi_pod(self):
        return self.overlay == "multi-pod"

    @property
    def name(self):
        """The name of the Service for clients, and the value of the pods' label app.kubernetes.io/instance."""
        return f"quire-{self.overlay}"

    def clients_secret(self, has_definitions):
        """Returns the name of the Secret for TLS with clients. With cert-manager each overlay has its own Secret."""
        return f"{self.name}-tls" if has_definitions else "quire-tls"

    def components(self, has_definitions):
        names = ["gateway"]
        if self.is_monitored and has_definitions:
            names += ["monitoring", "gateway-monitoring", "worker-monitoring" if self.is_multi_pod else "autoscaling"]
        if self.is_secured:
            names += ["network-policy", "certificates" if has_definitions else "tls", "api-keys"]
            if self.is_multi_pod:
                names.append("worker-certificates" if has_definitions else "worker-tls")
        return names


VARIANTS = {
    "cpu": Variant("cpu"),
    "cpu-secured": Variant("cpu", is_secured=True, is_monitored=True),
    "multi-pod": Variant("multi-pod"),
    "multi-pod-secured": Variant("multi-pod", is_secured=True, is_monitored=True),
    "gpu": Variant("gpu"),
    "tensor-parallel": Variant("tensor-parallel"),
}


def set_flag(container, name, value):
    """Replaces the flag's value, or appends the flag. value None: removes the flag."""
    args = container["args"]
    places = [i for i, arg in enumerate(args) if arg == f"--{name}" or arg.startswith(f"--{name}=")]
    new = [] if value is None else [f"--{name}={value}"]
    if places:
        args[places[0]:places[0] + 1] = new
    else:
        args += new


def flag(container, name):
    return next((arg.partition("=")[2] for arg in container["args"] if arg.startswith(f"--{name}=")), None)


def pod_spec(workload):
    return workload["spec"]["template"]["spec"]


def container_of(workload):
    [container] = pod_spec(workload)["containers"]
    return container


def program_of(workload):
    """Returns the last word of the command: serve (of `quire serve`), quire_gateway, quire_scheduler or
    quire_worker."""
    return container_of(workload)["command"][-1]


def make_small(workload):
    """Reduces a workload's resources to what any machine has: little memory, one thread, no GPU."""
    container = container_of(workload)
    container["resources"] = copy.deepcopy(RESOURCES)
    for name in GPU_FLAGS:
        set_flag(container, name, None)
    if program_of(workload) in ("serve", "quire_worker"):
        for name, value in SMALL_FLAGS.items():
            set_flag(container, name, value)
    if program_of(workload) == "serve":
        workload["spec"]["replicas"] = NUM_SERVERS
        if flag(container, "tensor-parallel-size"):
            set_flag(container, "tensor-parallel-size", str(NUM_RANKS))


def keep_off(workload, node):
    """Keeps a workload's pods off the node that steps kill: a gateway's death ends its HTTP streams."""
    term = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "NotIn", "values": [node]}]}
    pod_spec(workload)["affinity"] = {"nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}


def owns(workload, pod):
    return workload["spec"]["selector"]["matchLabels"].items() <= pod.labels.items()


def missing_of(workload, pods):
    """Returns why a workload does not have all its pods serving, in words; None if it has."""
    name, wanted = workload["metadata"]["name"], workload["spec"]["replicas"]
    status = workload["status"]
    if (status.get("observedGeneration", 0) < workload["metadata"]["generation"]
            or status.get("updatedReplicas", 0) != wanted or status.get("replicas", 0) != wanted):
        return f"{name} rolls out"
    mine = [pod for pod in pods if owns(workload, pod) and not pod.is_terminating]
    num_running = sum(pod.is_running for pod in mine)
    num_serving = sum(pod.is_ready for pod in mine)
    wanted_serving = 1 if name == "quire-scheduler" else wanted  # the other schedulers stand by
    if num_running != wanted or num_serving != wanted_serving:
        return f"{name}: {num_running} of {wanted} pods run, {num_serving} of {wanted_serving} serve"
    return None


class Install:
    """An installed Variant. options: of run.py; uses image, model_volume, crds and quire. folder: a place for files."""

    def __init__(self, cluster, variant, options, folder):
        self.cluster = cluster
        self.variant = variant
        self.options = options
        self._folder = pathlib.Path(folder)
        self.objects = []  # the objects that create() applied
        self._authorities = {}
        self._key_file = None

    def create(self):
        """Installs the variant. Returns when all its pods serve."""
        self.cluster.make_namespace()
        self._apply_model_volume()
        if self.variant.is_secured:
            self._make_keys()
            self.renew_certificates()
        self.objects = self.build()
        self.cluster.apply(self.objects)
        self.wait_ready(time.monotonic())

    def delete(self):
        self.cluster.delete_namespace()
        # A volume that outlives its claim would not bind to the claim of the next installation.
        self.cluster.kubectl("delete", f"--filename={self.options.model_volume}", "--ignore-not-found",
                             seconds=120)

    def _apply_model_volume(self):
        self.cluster.kubectl("apply", f"--filename={self.options.model_volume}")

    def build(self):
        def path(*parts):
            return os.path.relpath(K8S.joinpath(*parts), self._folder.resolve())

        name, _, tag = self.options.image.rpartition(":")
        kustomization = {
            "apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization",
            "namespace": self.cluster.namespace,
            "resources": [path("overlays", self.variant.overlay)],
            "components": [path("components", each)
                           for each in self.variant.components(self.options.crds is not None)],
            "images": [{"name": each, "newName": name, "newTag": tag} for each in ("quire", "quire-cuda")],
        }
        (self._folder / "kustomization.yaml").write_text(yaml.safe_dump(kustomization), "utf-8")
        objects = self.cluster.build(self._folder)
        for workload in self.workloads(objects):
            make_small(workload)
            if program_of(workload) == "quire_gateway":
                keep_off(workload, self.options.victim_node)
        return objects

    def _make_keys(self):
        made = {tenant: subprocess.run([self.options.quire, "key", "--tenant", tenant], check=True,
                                       capture_output=True) for tenant in ("suite", "gateway", "prometheus")}
        self._key_file = self._folder / "suite.key"
        self._key_file.touch(mode=0o600)
        self._key_file.write_bytes(made["suite"].stdout)
        self.cluster.apply([
            secret("quire-keys", {"api-keys": made["suite"].stderr + made["gateway"].stderr,
                                  "admin-api-keys": made["prometheus"].stderr}),
            secret("quire-gateway-key", {"key": made["gateway"].stdout}),
            secret("quire-metrics-key", {"key": made["prometheus"].stdout})])

    def renew_certificates(self):
        """Writes new keys and certificates into the TLS Secrets, which need not exist. Keeps the authorities."""
        if not self._authorities:
            self._authorities = {name: Authority(self._folder, name) for name in ("clients", "workers")}
        namespace = self.cluster.namespace
        names = [f"{service}{end}" for service in (self.variant.name, "quire-schedulers", f"{self.variant.name}-api",
                                                   f"{self.variant.name}-servers")
                 for end in ("", f".{namespace}", f".{namespace}.svc", f".{namespace}.svc.cluster.local")]
        secrets = [self._authorities["clients"].issue(self.clients_secret, names)]
        if self.variant.is_multi_pod:
            secrets += [self._authorities["workers"].issue("quire-worker-tls", WORKER_NAMES),
                        self._authorities["workers"].issue("quire-worker-client-tls", ["quire-scheduler"])]
        self.cluster.apply(secrets)

    @property
    def clients_secret(self):
        return self.variant.clients_secret(self.options.crds is not None)

    def server(self, service=None):
        """Returns what clients need to reach `service`, by default the variant's Service for clients."""
        secured = self.variant.is_secured
        return Server(target=f"{service or self.variant.name}.{self.cluster.namespace}.svc.cluster.local:50051",
                      ca_file=str(self._authorities["clients"].ca_file) if secured else None,
                      api_key_file=str(self._key_file) if secured else None,
                      api=f"{self.variant.name}-api.{self.cluster.namespace}.svc.cluster.local:8000")

    @staticmethod
    def workloads(objects):
        return [each for each in objects if each["kind"] in ("Deployment", "StatefulSet")]

    def change(self, edit):
        """Calls edit(workload) on a copy of each workload, and applies the changed objects."""
        changed = copy.deepcopy(self.objects)
        for workload in self.workloads(changed):
            edit(workload)
        self.cluster.apply(changed)

    def restore(self):
        self.cluster.apply(self.objects)

    def missing(self):
        """Returns one text for each workload that does not have all its pods serving."""
        lists = self.cluster.list("deployments,statefulsets,pods")
        pods = [Pod(each) for each in lists if each["kind"] == "Pod"]
        found = [missing_of(each, pods) for each in self.workloads(lists)]
        return [each for each in found if each is not None]

    def wait_ready(self, begin, seconds=300):
        """Waits until all workloads have served for STABLE_SECONDS without a break. Returns the seconds from `begin` to
        the start of that time."""
        deadline = time.monotonic() + seconds
        since, missing = None, []
        while since is None or time.monotonic() - since < STABLE_SECONDS:
            try:
                missing = self.missing()
            except ClusterError as error:
                missing = [str(error)]
            if missing:
                since = None
            elif since is None:
                since = time.monotonic()
            if time.monotonic() > deadline:
                raise TimeoutError(f"not ready after {seconds} s: {'; '.join(missing)}")
            time.sleep(0.5)
        return since - begin

    def pods(self, component):
        """Returns the pods of a component (server, worker or gateway) without terminating pods."""
        return [pod for pod in self.cluster.pods(component) if not pod.is_terminating]

    def own_pods(self):
        """Returns the pods of this overlay alone, with terminating pods."""
        return [pod for pod in self.cluster.pods() if pod.labels.get(INSTANCE) == self.variant.name]

    def active(self):
        """Returns the scheduler that serves, or any server that does. Raises RuntimeError if none serves."""
        found = next((pod for pod in self.pods("server") if pod.is_ready), None)
        if found is None:
            raise RuntimeError("no scheduler or server is ready")
        return found

    def standbys(self):
        return [pod for pod in self.pods("server") if not pod.is_ready]

    def rank(self, number):
        return next(pod for pod in self.pods("worker") if pod.labels["quire-rank"] == str(number))
