#!/usr/bin/python3
"""Checks manifests for what a cluster would only find while it runs them, or not at all: selectors
that select nothing, or pods of another overlay of k8s/; ports and volumes that do not meet; a grace that
is shorter than the drain; flags that the programs do not take.

    check_manifests.py [--bin DIR] [--crds DIR] FOLDER...

FOLDER has a kustomization.yaml. --bin: the programs; with them every command line is tried as far as
a program reads it before it looks for a model. --crds: definitions of custom kinds, YAML or JSON, to
validate those against (needs Debian's python3-jsonschema). Where PyPI's kubernetes-validate is
importable, the cluster's own kinds are validated by it. Exit code 1: faults, one a line.
"""
import argparse
import pathlib
import re
import subprocess
import sys
import tempfile

import kustomize_subset
from check_gateways import check_gateways, check_inference_pools
from check_groups import check_nodes, check_ranks, check_rollouts, check_standbys
from check_neighbours import INSTANCE, check_neighbours
from kustomize_subset import ManifestError, containers_of, pod_of
from manifest_overlay import Overlay, flags_of, is_ours, ports_of, program_of

ROOT = pathlib.Path(__file__).resolve().parents[2]
METRICS = ROOT / "common/metrics/metric_names.h"
CUSTOM = re.compile(r"^(monitoring\.coreos\.com|keda\.sh|cert-manager\.io|inference\.networking\.k8s\.io)/")
# Pages of the HTTP port that each probe may ask for.
PROBES = {"startupProbe": ("/livez",), "readinessProbe": ("/readyz",), "livenessProbe": ("/livez",)}
PROBES_OF = {
    # A worker has started when it is ready.
    ("quire_worker", "startupProbe"): ("/livez", "/readyz"),
    # A scheduler takes requests while ranks are away.
    ("quire_scheduler", "readinessProbe"): ("/admission",),
}
# Flags with paths of files that are only read.
READ_ONLY = re.compile(r"model|((worker|scheduler)-)?ssl-.*|(admin-)?api-keys-file|scheduler-api-key-file|config-file")
# Bounds the end of a program after its drain: two servers take 500 ms each, `quire serve` also ends its workers.
SECONDS_TO_STOP = {"quire_gateway": 3, "quire_scheduler": 2, "quire_worker": 2, "quire serve": 7}
DEFAULT_DRAIN_SECONDS = {"quire_gateway": 25, "quire_scheduler": 25, "quire_worker": 0, "quire serve": 25}
# Bounds the loading of a model. A worker's start-up probe waits for it, and a rollout waits longer.
SECONDS_TO_LOAD = 1800
# Keys of cert-manager's Secrets, by the last word of the TLS flag that names the file.
SECRET_KEYS = {"certfile": "tls.crt", "keyfile": "tls.key", "certs": "ca.crt"}
# The label of pods, as Prometheus spells it.
INSTANCE_LABEL = re.sub(r"\W", "_", INSTANCE)
# Exit codes of common/base/exit_codes.h.
BAD_MODEL = 3


def check_objects(overlay):
    seen = set()
    for each in overlay.objects:
        name = kustomize_subset.identity(each), each["metadata"].get("namespace")
        if name in seen:
            overlay.fault(each, "stands twice")
        seen.add(name)


def check_selectors(overlay):
    for each in overlay.workloads():
        labels = pod_of(each)["metadata"].get("labels", {})
        wanted = each["spec"]["selector"]["matchLabels"]
        if not wanted.items() <= labels.items():
            overlay.fault(each, f"selects {wanted}, its pods are {labels}")
        if len(overlay.selected(wanted)) > 1:
            overlay.fault(each, "selects pods of another workload as well")
    for each in overlay.of("PodDisruptionBudget", "PodMonitor"):
        _check_selects(overlay, each, each["spec"]["selector"])
    for each in overlay.of("PodDisruptionBudget"):
        if str(each["spec"].get("maxUnavailable", 0)) in ("0", "0%"):
            overlay.fault(each, "no pod may ever go: no node can be emptied")
        if each["spec"].get("unhealthyPodEvictionPolicy") != "AlwaysAllow":
            overlay.fault(each, "unhealthyPodEvictionPolicy: pods that are not ready keep a node")


def _check_selects(overlay, each, selector):
    hit = overlay.selected(selector)
    if not hit:
        overlay.fault(each, f"selects no pod: {selector}")
    return hit


def check_ports(overlay):
    for each in overlay.of("Service"):
        for workload in _check_selects(overlay, each, each["spec"]["selector"]):
            for port in each["spec"]["ports"]:
                _check_port_name(overlay, each, workload, port["targetPort"])
    for each in overlay.of("PodMonitor"):
        for workload in overlay.selected(each["spec"]["selector"]):
            for endpoint in each["spec"]["podMetricsEndpoints"]:
                _check_port_name(overlay, each, workload, endpoint["port"])
    for each in overlay.of("NetworkPolicy"):
        for workload in _check_selects(overlay, each, each["spec"]["podSelector"]):
            for rule in each["spec"].get("ingress", []):
                for port in rule.get("ports", []):
                    _check_port_name(overlay, each, workload, port["port"])
    for each in overlay.of("NetworkPolicy"):
        for rule in each["spec"].get("ingress", []) + each["spec"].get("egress", []):
            for peer in rule.get("from", []) + rule.get("to", []):
                if "podSelector" in peer and "namespaceSelector" not in peer:
                    _check_selects(overlay, each, peer["podSelector"])


def _check_port_name(overlay, each, workload, name):
    if name not in ports_of(workload):
        overlay.fault(each, f"port {name!r} is none of {workload['metadata']['name']}'s pods")


def check_names(overlay):
    """Checks the names by which an object refers to another."""
    accounts = {each["metadata"]["name"] for each in overlay.of("ServiceAccount")}
    workloads = {(each["kind"], each["metadata"]["name"]): each for each in overlay.of("Deployment")}
    for each in overlay.workloads():
        if pod_of(each)["spec"].get("serviceAccountName") not in accounts:
            overlay.fault(each, "its service account is not there")
    for each in overlay.of("ScaledObject", "HorizontalPodAutoscaler"):
        target = each["spec"]["scaleTargetRef"]
        scaled = workloads.get((target["kind"], target["name"]))
        if scaled is None:
            overlay.fault(each, f"scales what is not there, or has a fixed number of pods: {target}")
        elif "replicas" in scaled["spec"]:
            overlay.fault(scaled, "is scaled, and has replicas: each apply sets that number again")


def check_probes(overlay):
    for each in overlay.workloads():
        for container in containers_of(each):
            if not is_ours(container):
                continue
            for kind in PROBES:
                probe = container.get(kind, {})
                if "grpc" not in probe and "httpGet" not in probe:
                    overlay.fault(each, f"{container['name']} has no {kind} by gRPC or HTTP")
                    continue
                _check_probe(overlay, each, container, kind)
                if probe.get("timeoutSeconds", 1) > probe.get("periodSeconds", 10):
                    overlay.fault(each, f"{kind}: takes longer than its period")


def _check_probe(overlay, each, container, kind):
    flags, probe = flags_of(container), container[kind]
    ports = {port["name"]: port["containerPort"] for port in container.get("ports", [])}
    if "grpc" in probe:
        port = probe["grpc"]["port"]
        page = "/livez" if probe["grpc"].get("service") == "liveness" else "/readyz"
        if port not in ports.values():
            overlay.fault(each, f"{kind}: port {port} is not the container's")
        if program_of(container) == "quire_scheduler":
            overlay.fault(each, f"{kind}: a standby closes connections to its gRPC port: probes by HTTP")
        if "ssl-certfile" in flags:
            overlay.fault(each, f"{kind}: the kubelet's gRPC probes speak no TLS: components/tls")
    else:
        port, page = probe["httpGet"]["port"], probe["httpGet"]["path"]
        if str(ports.get(port, port)) != flags.get("http-port"):
            overlay.fault(each, f"{kind}: port {port} is not that of --http-port")
        if flags.get("http-host", "127.0.0.1") in ("127.0.0.1", "localhost", "::1", "[::1]"):
            overlay.fault(each, f"{kind}: no kubelet reaches the HTTP port: --http-host")
        # The HTTP port of `quire serve` is its gateway's, which has TLS; the other programs' has none.
        scheme = "HTTPS" if program_of(container) == "quire serve" and "ssl-certfile" in flags else "HTTP"
        if probe["httpGet"].get("scheme", "HTTP") != scheme:
            overlay.fault(each, f"{kind}: the HTTP port speaks {scheme}")
    pages = PROBES_OF.get((program_of(container), kind), PROBES[kind])
    if page not in pages:
        word = (f"readiness, by {pages[0]}" if kind == "readinessProbe"
                else "liveness: what loads or drains lives")
        overlay.fault(each, f"{kind}: must ask for {word}")


def startup_seconds(container):
    """Returns the seconds that a start-up probe allows."""
    probe = container.get("startupProbe", {})
    return probe.get("periodSeconds", 10) * probe.get("failureThreshold", 3)


def check_loading(overlay):
    """Checks that a model has time to load: no probe kills its program, and no deadline fails its rollout."""
    for each in overlay.workloads():
        for container in filter(is_ours, containers_of(each)):
            seconds = startup_seconds(container)
            if program_of(container) == "quire_worker" and seconds < SECONDS_TO_LOAD:
                overlay.fault(each, f"startupProbe: {seconds} s, a model may load for {SECONDS_TO_LOAD} s")
            if program_of(container) != "quire_worker":  # only a worker's start-up probe waits for the model
                seconds += SECONDS_TO_LOAD
            deadline = each["spec"].get("progressDeadlineSeconds", 600)
            if each["kind"] == "Deployment" and deadline <= seconds:
                overlay.fault(each, f"progressDeadlineSeconds: {deadline}; startupProbe and loading take "
                                    f"{seconds} s")


def drain_seconds(container):
    """Returns a bound of the seconds from SIGTERM to the end of the process."""
    program = program_of(container)
    flag = flags_of(container).get("shutdown-timeout")
    return (DEFAULT_DRAIN_SECONDS[program] if flag is None else int(flag)) + SECONDS_TO_STOP[program]


def pre_stop_seconds(container):
    return container.get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)


def check_grace(overlay):
    for each in overlay.workloads():
        grace = pod_of(each)["spec"].get("terminationGracePeriodSeconds", 30)
        for container in filter(is_ours, containers_of(each)):
            if program_of(container) not in SECONDS_TO_STOP:
                overlay.fault(each, f"{program_of(container)!r} is none of our programs")
                continue
            needed = pre_stop_seconds(container) + drain_seconds(container)
            if grace <= needed:
                overlay.fault(each, f"a grace of {grace} s: preStop, drain and stop take {needed} s")


def check_volumes(overlay):
    for each in overlay.workloads():
        volumes = {volume["name"]: volume for volume in pod_of(each)["spec"].get("volumes", [])}
        mounted = set()
        for container in containers_of(each):
            for mount in container.get("volumeMounts", []):
                mounted.add(mount["name"])
                volume = volumes.get(mount["name"])
                if volume is None:
                    overlay.fault(each, f"mounts {mount['name']!r}, and there is no such volume")
                elif "persistentVolumeClaim" in volume and not (
                        mount.get("readOnly") and volume["persistentVolumeClaim"].get("readOnly")):
                    overlay.fault(each, f"the claim {mount['name']!r} must be read-only, twice")
            _check_paths(overlay, each, container)
        for name in set(volumes) - mounted:
            overlay.fault(each, f"nobody mounts {name!r}")
        for volume in volumes.values():
            if "emptyDir" in volume and "sizeLimit" not in (volume["emptyDir"] or {}):
                overlay.fault(each, f"{volume['name']!r} may fill its node: sizeLimit is needed")


def _check_paths(overlay, each, container):
    """Checks that absolute paths of flags and environment are in volumes. A volume must be read-only if the
    program only reads the path, and writable if it does not."""
    values = {**flags_of(container), **{v["name"]: v.get("value") for v in container.get("env", [])}}
    for name, value in values.items():
        if not (value or "").startswith("/"):
            continue
        hit = [mount for mount in container.get("volumeMounts", [])
               if pathlib.PurePath(value).is_relative_to(mount["mountPath"])]
        if not hit:
            overlay.fault(each, f"{name}: {value} is in no volume, and the root is read-only")
        elif bool(READ_ONLY.fullmatch(name)) != bool(hit[-1].get("readOnly")):
            overlay.fault(each, f"{name}: {value} is in a volume of the wrong kind")


def check_security(overlay):
    # Only programs of others may call the cluster's API.
    foreign = {pod_of(each)["spec"].get("serviceAccountName") for each in overlay.workloads()
               if not any(map(is_ours, containers_of(each)))}
    for each in overlay.of("ServiceAccount"):
        if each.get("automountServiceAccountToken") is not False and each["metadata"]["name"] not in foreign:
            overlay.fault(each, "automountServiceAccountToken must be false")
    for each in overlay.workloads():
        spec = pod_of(each)["spec"]
        context = spec.get("securityContext", {})
        if (spec.get("automountServiceAccountToken") is not False
                and spec.get("serviceAccountName") not in foreign):
            overlay.fault(each, "automountServiceAccountToken must be false")
        if not (context.get("runAsNonRoot") and context.get("runAsUser", 0) > 0
                and context.get("seccompProfile") == {"type": "RuntimeDefault"}):
            overlay.fault(each, "must run as a user, with seccomp's RuntimeDefault")
        for container in containers_of(each):
            if container.get("securityContext") != {
                    "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True,
                    "capabilities": {"drop": ["ALL"]}}:
                overlay.fault(each, f"{container['name']}: must have no privilege and a read-only root")
            if not re.search(r":[^:/]+$", container["image"]) or container["image"].endswith(":latest"):
                overlay.fault(each, f"the image {container['image']} has no tag of a version")
            if "memory" not in container.get("resources", {}).get("limits", {}):
                overlay.fault(each, "no limit of memory: Quire would size its cache by the node's")


def check_threads(overlay):
    """Checks that ranks on CPUs have as many threads as the pod requests CPUs. By default they take the whole node."""
    for each in overlay.workloads():
        for container in filter(is_ours, containers_of(each)):
            program, flags = program_of(container), flags_of(container)
            if program in ("quire_gateway", "quire_scheduler") or flags.get("device") == "cuda":
                continue
            ranks = int(flags.get("tensor-parallel-size") or 1) if program == "quire serve" else 1
            threads = flags.get("threads") or "none"
            requested = container.get("resources", {}).get("requests", {}).get("cpu")
            if not threads.isdigit() or str(int(threads) * ranks) != str(requested):
                overlay.fault(each, f"--threads: {threads} for each of {ranks} ranks, it requests "
                                    f"{requested} CPUs")


def check_tls(overlay):
    for each in overlay.workloads():
        for container in containers_of(each):
            if "ssl-certfile" in flags_of(container):
                _check_clear_text(overlay, each, container)
            if "workers" in flags_of(container):
                _check_links(overlay, each, container)
    check_certificates(overlay)


def _services_of(overlay, workload, container):
    """Returns the Services of the container's first port, which is that of clients."""
    return [each for each in overlay.services_of(workload)
            if any(port["targetPort"] == container["ports"][0]["name"] for port in each["spec"]["ports"])]


def _check_clear_text(overlay, workload, container):
    for each in _services_of(overlay, workload, container):
        if any(port.get("appProtocol") in ("kubernetes.io/h2c", "http") for port in each["spec"]["ports"]):
            overlay.fault(each, "appProtocol says clear text, its pods speak TLS")


def _check_links(overlay, scheduler, container):
    """Checks that scheduler and workers agree on mTLS. With --allow-insecure-bind they would start all the same."""
    has_tls = "worker-ssl-certfile" in flags_of(container)
    for each in overlay.workloads():
        for other in containers_of(each):
            if program_of(other) == "quire_worker" and ("ssl-certfile" in flags_of(other)) != has_tls:
                overlay.fault(scheduler, "it and its workers do not agree whether their links have TLS")


def check_certificates(overlay):
    """Checks that cert-manager makes the files that the programs read, for the names that are dialled."""
    issuers = {each["metadata"]["name"]: each for each in overlay.of("Issuer")}
    certificates = {each["spec"]["secretName"]: each for each in overlay.of("Certificate")}
    for each in certificates.values():
        issuer = each["spec"]["issuerRef"]
        if issuer.get("kind", "Issuer") == "Issuer" and issuer["name"] not in issuers:
            overlay.fault(each, f"its Issuer {issuer['name']!r} is not there")
    for each in issuers.values():
        authority = certificates.get(each["spec"].get("ca", {}).get("secretName"))
        if "ca" in each["spec"] and not (authority and authority["spec"].get("isCA")):
            overlay.fault(each, "its Secret is no Certificate of an authority")
    mounted = set()
    signers = {"ssl": set(), "worker-ssl": set()}
    for each in overlay.workloads():
        for container in containers_of(each):
            for flag, certificate in _certificates_of(overlay, each, container, certificates).items():
                mounted.add(certificate["spec"]["secretName"])
                is_link = program_of(container) == "quire_worker" or flag.startswith("worker-")
                signers["worker-ssl" if is_link else "ssl"].add(certificate["spec"]["issuerRef"]["name"])
                if flag.endswith("ssl-certfile"):
                    _check_certificate(overlay, each, container, flag, certificate)
    for secret, each in certificates.items():
        if not each["spec"].get("isCA") and secret not in mounted:
            overlay.fault(each, f"no program reads its Secret {secret!r}")
    if len(signers["worker-ssl"]) > 1 or signers["worker-ssl"] & signers["ssl"]:
        overlay.faults.append(f"Issuers: workers and scheduler need one that signs nothing else: {signers}")


def _certificates_of(overlay, workload, container, certificates):
    """Returns, by TLS flag, the Certificate whose Secret holds the path. Other Secrets are the user's."""
    secrets = {volume["name"]: volume.get("secret", {}).get("secretName")
               for volume in pod_of(workload)["spec"].get("volumes", [])}
    result = {}
    for flag, value in flags_of(container).items():
        if not re.fullmatch(r"((worker|scheduler)-)?ssl-.*", flag):
            continue
        path = pathlib.PurePath(value or "")
        for mount in container.get("volumeMounts", []):
            certificate = certificates.get(secrets.get(mount["name"]))
            if certificate is None or not path.is_relative_to(mount["mountPath"]):
                continue
            result[flag] = certificate
            if path.name != SECRET_KEYS.get(flag.rpartition("-")[2]):
                overlay.fault(workload, f"--{flag}: cert-manager's Secrets have no {path.name} for it")
            if "subPath" in mount:
                overlay.fault(workload, f"--{flag}: what is mounted by subPath is never renewed")
    return result


def _check_certificate(overlay, workload, container, flag, certificate):
    usage = "server auth" if flag == "ssl-certfile" else "client auth"
    if usage not in certificate["spec"].get("usages", []):
        overlay.fault(certificate, f"needs the usage {usage!r}")
    if usage == "client auth":
        return
    if program_of(container) == "quire_worker":
        dialled = {name.rpartition(":")[0] for each in overlay.workloads() for other in containers_of(each)
                   for name in (flags_of(other).get("workers") or "").split(",")} - {""}
    else:
        dialled = {f"{each['metadata']['name']}{domain}"
                   for each in _services_of(overlay, workload, container)
                   for domain in ("", f".{each['metadata'].get('namespace')}.svc")}
    for name in sorted(dialled - set(certificate["spec"].get("dnsNames", []))):
        overlay.fault(certificate, f"is not for {name!r}, which is dialled")


def known_metrics():
    return set(re.findall(r'MetricInfo \w+\{\s*"([^"]+)"', METRICS.read_text(encoding="utf-8")))


def check_metrics(overlay):
    known = known_metrics()
    for each in overlay.of("ScaledObject"):
        for trigger in each["spec"]["triggers"]:
            query = trigger["metadata"]["query"]
            for name in re.findall(r"\b(?:quire_|vllm:)\w+", query):
                if name not in known:
                    overlay.fault(each, f"{name} is no metric")
            namespace = each["metadata"].get("namespace")
            if f'namespace="{namespace}"' not in query:
                overlay.fault(each, f"the query is not of its namespace, {namespace}")
            if f'{INSTANCE_LABEL}="{each["spec"]["scaleTargetRef"]["name"]}"' not in query:
                overlay.fault(each, "the query is not of its overlay alone")


class Programs:
    """The built programs, which tell their flags and refuse wrong command lines."""

    def __init__(self, folder):
        self._folder = pathlib.Path(folder)
        self._known = {}
        self._refusals = {}
        self._pair = None

    def _certificates(self, folder):
        """Writes one self-signed certificate for all TLS flags, under the names that cert-manager's Secrets use."""
        if self._pair is None:
            subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt",
                            "ec_paramgen_curve:P-256", "-nodes", "-subj", "/CN=test", "-keyout",
                            f"{folder}/tls.key", "-out", f"{folder}/tls.crt"],
                           check=True, stdin=subprocess.DEVNULL, capture_output=True, timeout=60)
            self._pair = [pathlib.Path(folder, name).read_bytes() for name in ("tls.crt", "tls.key")]
        for name, data in zip(SECRET_KEYS.values(), [*self._pair, self._pair[0]]):
            pathlib.Path(folder, name).write_bytes(data)

    def known_flags(self, command):
        """Returns names as the help has them: "port", and for a switch that is on "no-x" beside "x"."""
        if command not in self._known:
            program, *rest = command.split()
            text = subprocess.run([self._folder / program, *rest, "--help"], check=True, text=True,
                                  stdin=subprocess.DEVNULL, capture_output=True, timeout=60).stdout
            flags = re.findall(r"(?m)^  --(\[no-\])?([a-z][a-z-]*)", text)
            self._known[command] = ({name for _, name in flags}
                                    | {f"no-{name}" for negative, name in flags if negative})
        return self._known[command]

    def refusal_of(self, command, arguments):
        """Returns the program's own refusal of a command line, or None. The program gets as far as its model,
        which is missing."""
        line = (command, *arguments)
        if line not in self._refusals:
            self._refusals[line] = self._try(command, arguments)
        return self._refusals[line]

    def _try(self, command, arguments):
        program, *rest = command.split()
        with tempfile.TemporaryDirectory(prefix="quire-manifests-") as folder:
            if any("FOLDER/" in each for each in arguments):
                self._certificates(folder)
                pathlib.Path(folder, "keys").write_text(f"{'0' * 64} tenant\n", encoding="utf-8")
                pathlib.Path(folder, "key").write_text(f"{'k' * 43}\n", encoding="utf-8")
            # A gateway serves a model without a tokenizer, but refuses a broken one.
            pathlib.Path(folder, "tokenizer.json").write_text("{", encoding="utf-8")
            done = subprocess.run(
                [self._folder / program, *rest, *(each.replace("FOLDER", folder) for each in arguments)],
                stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=False,
                env={"XDG_RUNTIME_DIR": folder})
        return None if done.returncode == BAD_MODEL else f"ends with {done.returncode}: {done.stderr}"


def tried_arguments(container):
    """Returns the manifest's arguments. Values that only a pod has are replaced: addresses, model, certificates,
    GPU."""
    variables = {"POD_IP": "127.0.0.1", "RANK": "0", "INSTANCE": "quire"}
    result = []
    for argument in container.get("args", []):
        name, _, value = argument.partition("=")
        value = re.sub(r"\$\((\w+)\)", lambda match: variables.get(match[1], match[0]), value)
        if "ssl-" in name:
            key = SECRET_KEYS.get(name.rpartition("-")[2])
            value = f"FOLDER/{key}" if key else value
        elif name.endswith("-file"):
            value = "FOLDER/key" if name == "--scheduler-api-key-file" else "FOLDER/keys"
        elif name in ("--port", "--http-port"):
            value = "0"
        elif name == "--listen":
            value = value.rpartition(":")[0] + ":0"
        elif name == "--model":
            value = "FOLDER"
        elif name == "--device":
            value = "cpu"
        elif name == "--gemm-cache":
            value = "none"
        result.append(f"{name}={value}" if value else name)
    return result


def check_command_lines(overlay, programs):
    for each in overlay.workloads():
        for container in filter(is_ours, containers_of(each)):
            command, flags = program_of(container), flags_of(container)
            _check_bound_ports(overlay, each, container, flags)
            for variable in re.findall(r"\$\((\w+)\)", " ".join(container.get("args", []))):
                if variable not in {entry["name"] for entry in container.get("env", [])}:
                    overlay.fault(each, f"$({variable}) is not set")
            if programs is None:
                continue
            # `serve` takes the flags of all programs, and one of its own for the number of ranks.
            unknown = set(flags) - programs.known_flags(command)
            for name in sorted(unknown):
                overlay.fault(each, f"--{name}: {command} has no such flag")
            if not unknown and (refusal := programs.refusal_of(command, tried_arguments(container))):
                overlay.fault(each, f"{command} {refusal}")


def _check_bound_ports(overlay, each, container, flags):
    bound = {flags[name].rpartition(":")[2] for name in ("port", "http-port", "listen")
             if flags.get(name)}
    named = {str(port["containerPort"]) for port in container.get("ports", [])}
    if bound != named:
        overlay.fault(each, f"it listens on {sorted(bound)}, its ports are {sorted(named)}")


def check_native_kinds(overlay, versions):
    import kubernetes_validate  # pylint: disable=import-outside-toplevel
    for each in overlay.objects:
        if CUSTOM.match(each["apiVersion"]):
            continue
        for version in versions:
            try:
                kubernetes_validate.validate(each, version, strict=True)
            except kubernetes_validate.ValidationError as error:
                overlay.fault(each, f"Kubernetes {version}: {error.message}")


def native_versions():
    """Returns the oldest version that we promise and the newest that the validator has; none without a validator."""
    try:
        import kubernetes_validate  # pylint: disable=import-outside-toplevel
    except ImportError:
        return []
    return ["1.30", kubernetes_validate.latest_version()]


def definitions(folder):
    """Returns schemas of custom kinds, by apiVersion and kind."""
    schemas = {}
    for path in sorted(pathlib.Path(folder).rglob("*")):
        if path.suffix not in (".yaml", ".yml", ".json"):
            continue
        for each in kustomize_subset.read(path):
            if isinstance(each, dict) and each.get("kind") == "CustomResourceDefinition":
                spec = each["spec"]
                for version in spec["versions"]:
                    name = f"{spec['group']}/{version['name']}", spec["names"]["kind"]
                    schemas[name] = _closed(version["schema"]["openAPIV3Schema"])
    return schemas


def _closed(schema):
    """Returns a schema for which unknown fields are faults. A cluster would drop them silently."""
    if isinstance(schema, list):
        return [_closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    result = {key: _closed(value) for key, value in schema.items() if key != "format"}
    if isinstance(schema.get("properties"), dict) and "additionalProperties" not in schema and \
            not schema.get("x-kubernetes-preserve-unknown-fields"):
        result["additionalProperties"] = False
    return result


def check_custom_kinds(overlay, schemas):
    import jsonschema  # pylint: disable=import-outside-toplevel
    for each in overlay.objects:
        if not CUSTOM.match(each["apiVersion"]):
            continue
        schema = schemas.get((each["apiVersion"], each["kind"]))
        if schema is None:
            overlay.fault(each, f"no definition of {each['apiVersion']} was given")
            continue
        # Metadata is the cluster's own, and open in a definition.
        schema = {**schema, "properties": {**schema["properties"], "metadata": {"type": "object"}}}
        for error in jsonschema.Draft7Validator(schema).iter_errors(each):
            where = ".".join(str(part) for part in error.absolute_path)
            overlay.fault(each, f"{where}: {error.message}")


def overlays():
    """Returns the overlays of k8s/."""
    return [Overlay(path.parent) for path in sorted((ROOT / "k8s/overlays").glob("*/kustomization.yaml"))]


def faults_of(folder, neighbours, programs=None, schemas=None, versions=()):
    overlay = Overlay(folder)
    check_objects(overlay)
    for check in (check_selectors, check_ports, check_names, check_probes, check_grace, check_volumes,
                  check_loading, check_security, check_nodes, check_ranks, check_rollouts, check_standbys,
                  check_threads, check_tls, check_metrics, check_gateways):
        check(overlay)
    check_inference_pools(overlay, neighbours, known_metrics())
    check_neighbours(overlay, neighbours)
    check_command_lines(overlay, programs)
    if versions:
        check_native_kinds(overlay, versions)
    if schemas is not None:
        check_custom_kinds(overlay, schemas)
    return overlay.faults


def main():
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", metavar="DIR")
    parser.add_argument("--crds", metavar="DIR")
    parser.add_argument("folders", nargs="+", metavar="FOLDER")
    args = parser.parse_args()
    failed = False
    try:
        programs = Programs(args.bin) if args.bin else None
        schemas = definitions(args.crds) if args.crds else None
        versions = native_versions()
        neighbours = overlays()
        print("native kinds: " + (" and ".join(map(str, versions)) if versions
                                  else "not validated, kubernetes-validate is not installed"))
        for folder in args.folders:
            faults = faults_of(folder, neighbours, programs, schemas, versions)
            for fault in faults:
                print(f"{folder}: {fault}")
            failed |= bool(faults)
            print(f"{folder}: {len(faults)} faults")
    except ManifestError as error:
        print(error, file=sys.stderr)
        return 1
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
