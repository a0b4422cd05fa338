#!/usr/bin/python3
"""tests/tools/check_manifests.py: k8s/ has no fault, each kind of fault is found, and folders are built
as kubectl builds them."""
import copy
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
TESTDATA = pathlib.Path(__file__).resolve().parent / "testdata"
sys.path[:0] = [str(ROOT / "tests/tools"), str(ROOT / "k8s/components/monitoring")]

import check_manifests  # noqa: E402
import kustomize_subset  # noqa: E402
import make_rules  # noqa: E402
import manifest_overlay  # noqa: E402

FOLDERS = [*sorted(path.parent for path in (ROOT / "k8s/overlays").glob("*/kustomization.yaml")),
           ROOT / "k8s/inference-pool",
           *sorted(path.parent for path in TESTDATA.glob("*/kustomization.yaml"))]
PROGRAMS = check_manifests.Programs(os.environ["QUIRE_BIN"])
# The overlays of all folders, which may be in one namespace.
NEIGHBOURS = [manifest_overlay.Overlay(folder) for folder in FOLDERS]
SERVERS = {"gpu": "Deployment/quire-gpu", "tensor-parallel": "Deployment/quire-tensor-parallel"}
SERVER = "Deployment/quire-cpu"
SCHEDULER, WORKER = "Deployment/quire-scheduler", "Deployment/quire-worker-1"
GATEWAY, POOL = "Deployment/quire-cpu-api", "InferencePool/quire"
WORKER_SERVICE, SCHEDULERS = "Service/quire-worker-1", "Service/quire-schedulers"


def set_at(*path, value):
    """Returns a change that sets the value at a path of keys and indices."""
    def change(each):
        for key in path[:-1]:
            each = each[key]
        each[path[-1]] = value
    return change


def delete_at(*path):
    def change(each):
        for key in path[:-1]:
            each = each[key]
        del each[path[-1]]
    return change


def container(*path, **value):
    change = set_at if value else delete_at
    return change("spec", "template", "spec", "containers", 0, *path, **value)


def argument(old, new):
    def change(each):
        arguments = each["spec"]["template"]["spec"]["containers"][0]["args"]
        arguments[arguments.index(old)] = new
    return change


def workers(*names):
    """--workers with these, in place of the manifest's."""
    return container("args", 0, value="--workers=" + ",".join(f"{name}:50052" for name in names))


def become(other):
    def change(each):
        each.clear()
        each.update(copy.deepcopy(other))
    return change


POD = ("spec", "template", "spec")
LABEL, INSTANCE = "app.kubernetes.io/component", "app.kubernetes.io/instance"
SELECTED = ("spec", "selector", "matchLabels")
SERVER_BUDGET = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "a"},
                 "spec": {"maxUnavailable": 1, "selector": {"matchLabels": {LABEL: "server"}}}}
STRATEGY, SPREAD = ("spec", "strategy", "rollingUpdate"), (*POD, "topologySpreadConstraints")
HORIZONTAL = {"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "a"},
              "spec": {"scaleTargetRef": {"kind": "Deployment", "name": "quire-cpu"}}}
# Folder, object, change of the object, text of the fault.
FAULTS = [
    ("cpu", SERVER, set_at("spec", "selector", "matchLabels", LABEL, value="x"), "its pods are"),
    ("cpu", "Service/quire-cpu", set_at("spec", "selector", LABEL, value="x"), "selects no pod"),
    ("cpu", "Service/quire-cpu", set_at("spec", "ports", 0, "targetPort", value="x"), "port 'x' is none"),
    ("cpu", "PodDisruptionBudget/quire-cpu", set_at("spec", "selector", "matchLabels", LABEL, value="x"),
     "selects no pod"),
    ("cpu", "PodDisruptionBudget/quire-cpu", set_at("spec", "maxUnavailable", value=0), "no node can be"),
    ("cpu", "PodDisruptionBudget/quire-cpu", delete_at("spec", "unhealthyPodEvictionPolicy"), "keep a node"),
    ("multi-pod", "PodDisruptionBudget/quire-worker", delete_at("spec", "unhealthyPodEvictionPolicy"),
     "keep a node"),
    ("cpu", SERVER, delete_at("spec", "progressDeadlineSeconds"), "progressDeadlineSeconds: 600; .* 2100 s"),
    ("cpu", SERVER, container("startupProbe", "failureThreshold", value=300), "progressDeadlineSeconds"),
    ("multi-pod", WORKER, container("startupProbe", "failureThreshold", value=300), "600 s, a model may"),
    ("cpu", SERVER, container("startupProbe"), "has no startupProbe"),
    ("cpu", SERVER, container("startupProbe", "grpc", "service", value=""), "what loads or drains lives"),
    ("cpu", SERVER, container("readinessProbe", "grpc", "service", value="liveness"), "for readiness"),
    ("cpu", SERVER, container("args", 0, value="--ssl-certfile=/models/a"), "probes speak no TLS"),
    ("cpu-tls", SERVER, container("startupProbe", "httpGet", "path", value="/readyz"), "loads or drains"),
    ("cpu-tls", SERVER, container("readinessProbe", "httpGet", "path", value="/livez"), "for readiness"),
    ("cpu-tls", SERVER, container("livenessProbe", "httpGet", "path", value="/healthz"), "for liveness"),
    ("cpu-tls", SERVER, container("livenessProbe", "httpGet", "port", value="grpc"), "not that of --http-"),
    ("cpu-tls", SERVER, container("livenessProbe", "httpGet", "port", value=8001), "not that of --http-"),
    ("cpu-tls", SERVER, container("livenessProbe", "httpGet", "scheme", value="HTTP"), "speaks HTTPS"),
    ("multi-pod", SCHEDULER, container("livenessProbe", "httpGet", "scheme", value="HTTPS"), "speaks HTTP$"),
    ("cpu-tls", SERVER, argument("--http-host=0.0.0.0", "--http-host=127.0.0.1"), "no kubelet reaches"),
    ("cpu-tls", SERVER, container("volumeMounts", 3, "readOnly"), "of the wrong kind"),
    ("cpu", SERVER, argument("--threads=4", "--threads=8"), "--threads: 8 for each of 1 ranks"),
    ("cpu", SERVER, container("resources", "requests", "cpu", value="8"), "it requests 8 CPUs"),
    ("cpu", SERVER, argument("--threads=4", "--tensor-parallel-size=4"), "--threads: none for each of 4"),
    ("multi-pod", WORKER, argument("--threads=4", "--rank=0"), "--threads: none"),
    ("cpu", SERVER, container("readinessProbe", "grpc", "port", value=50052), "is not the container's"),
    ("cpu", SERVER, container("livenessProbe", "grpc", "service", value=""), "ask for liveness"),
    ("cpu", SERVER, container("livenessProbe", "timeoutSeconds", value=11), "longer than its period"),
    ("cpu", SERVER, set_at(*POD, "terminationGracePeriodSeconds", value=27), "drain and stop take 27 s"),
    ("cpu", SERVER, container("lifecycle", "preStop", "sleep", "seconds", value=13), "take 35 s"),
    ("cpu", SERVER, argument("--shutdown-timeout=15", "--shutdown-timeout=23"), "take 35 s"),
    ("cpu", SERVER, container("command", value=["quired"]), "none of our programs"),
    ("cpu", SERVER, container("volumeMounts", 0, "name", value="x"), "there is no such volume"),
    ("cpu", SERVER, container("volumeMounts", 0), "nobody mounts 'model'"),
    ("cpu", SERVER, container("volumeMounts", 0, "readOnly", value=False), "must be read-only"),
    ("cpu", SERVER, delete_at(*POD, "volumes", 1, "emptyDir", "sizeLimit"), "may fill its node"),
    ("cpu", SERVER, container("env", 0, "value", value="/var/quire"), "is in no volume"),
    ("cpu", SERVER, container("env", 0, "value", value="/models"), "of the wrong kind"),
    ("cpu", SERVER, set_at(*POD, "serviceAccountName", value="x"), "account is not there"),
    ("cpu", SERVER, set_at(*POD, "automountServiceAccountToken", value=True), "must be false"),
    ("cpu", "ServiceAccount/quire-cpu", delete_at("automountServiceAccountToken"), "must be false"),
    ("cpu", SERVER, delete_at(*POD, "securityContext", "runAsNonRoot"), "must run as a user"),
    ("cpu", SERVER, delete_at(*POD, "securityContext", "seccompProfile"), "seccomp"),
    ("cpu", SERVER, container("securityContext", "readOnlyRootFilesystem", value=False), "no privilege"),
    ("cpu", SERVER, container("securityContext", "capabilities", "drop", value=[]), "no privilege"),
    ("cpu", SERVER, container("image", value="quire:latest"), "has no tag"),
    ("cpu", SERVER, container("resources", "limits", "memory"), "no limit of memory"),
    ("cpu", SERVER, argument("--port=50051", "--port=50050"), "it listens on"),
    ("cpu", SERVER, argument("--model=/models", "--model=$(MODEL_DIR)"), r"\$\(MODEL_DIR\) is not set"),
    ("cpu-all", "PodMonitor/quire-cpu", set_at("spec", "podMetricsEndpoints", 0, "port", value="x"),
     "port 'x' is none"),
    ("cpu-all", "PodMonitor/quire-cpu", set_at("spec", "selector", "matchLabels", LABEL, value="x"),
     "selects no pod"),
    ("cpu-all", "NetworkPolicy/quire-cpu", set_at("spec", "ingress", 1, "ports", 0, "port", value="x"),
     "port 'x' is none"),
    ("cpu-all", "ScaledObject/quire-cpu", set_at("spec", "scaleTargetRef", "name", value="x"),
     "scales what is not there"),
    ("cpu-all", SERVER, set_at("spec", "replicas", value=1), "is scaled, and has replicas"),
    ("cpu", "PodDisruptionBudget/quire-cpu", become(HORIZONTAL), "is scaled, and has replicas"),
    ("cpu-all", "ScaledObject/quire-cpu", set_at(
        "spec", "triggers", 0, "metadata", "query",
        value='sum(vllm:num_waiting{namespace="quire"})'), "vllm:num_waiting is no metric"),
    ("cpu-all", "ScaledObject/quire-cpu", set_at("metadata", "namespace", value="x"), "of its namespace"),
    ("cpu-tls", "Service/quire-cpu", set_at("spec", "ports", 0, "appProtocol", value="kubernetes.io/h2c"),
     "says clear text"),
    ("tensor-parallel-certificates", SERVERS["tensor-parallel"], set_at(
        *POD, "volumes", -1, "secret", "secretName", value="quire"),
     "no program reads its Secret 'quire-tensor-parallel-tls'"),
    ("cpu-all", "Certificate/quire-cpu-tls", set_at("spec", "secretName", value="x"), "no program reads"),
    ("cpu-all", "Certificate/quire-cpu-tls", set_at("spec", "issuerRef", "name", value="x"), "Issuer 'x' is not"),
    ("cpu-all", "Certificate/quire-cpu-tls", set_at("spec", "dnsNames", value=["quire-cpu", "quire-cpu.x.svc"]),
     "not for 'quire-cpu.quire.svc'"),
    ("cpu-all", "Certificate/quire-cpu-tls", set_at("spec", "usages", value=["client auth"]), "'server auth'"),
    ("cpu-all", "Certificate/quire-authority", delete_at("spec", "isCA"), "no Certificate of an authority"),
    ("cpu-all", SERVER, argument("--ssl-keyfile=/tls/tls.key", "--ssl-keyfile=/tls/key.pem"),
     "Secrets have no key.pem"),
    ("cpu-all", SERVER, container("volumeMounts", 3, "subPath", value="tls.crt"), "never renewed"),
    ("multi-pod-all", WORKER, argument("--ssl-certfile=/worker-tls/tls.crt", "--rank=0"), "do not agree"),
    ("multi-pod-all", SCHEDULER, argument("--worker-ssl-certfile=/worker-tls/tls.crt", "--port=50051"),
     "do not agree"),
    ("multi-pod-all", "Certificate/quire-worker-tls", delete_at("spec", "dnsNames", 1),
     "not for 'quire-worker-1'"),
    ("multi-pod-all", "Certificate/quire-worker-client-tls", set_at("spec", "usages", value=["server auth"]),
     "'client auth'"),
    ("multi-pod-all", "Certificate/quire-worker-client-tls", set_at(
        "spec", "issuerRef", "name", value="quire-authority"), "signs nothing else"),
    # Numbers and names of ranks.
    ("multi-pod", SCHEDULER, workers("quire-worker-0"), "does not name it"),
    ("multi-pod", SCHEDULER, workers("quire-worker-0"), "size: 2, --workers has 1 ranks"),
    ("multi-pod", SCHEDULER, workers("quire-worker-0", "quire-worker-0"), "0:50052 stands twice"),
    ("multi-pod", SCHEDULER, workers("quire-worker-1", "quire-worker-0"), "--workers has it as rank 0"),
    ("multi-pod", SCHEDULER, workers("quire-worker-0", "quire-worker-1", "quire-worker-2"),
     "there is no Service 'quire-worker-2'"),
    ("multi-pod", SCHEDULER, container(
        "args", 0, value="--workers=quire-worker-0:50052,quire-worker-1:50053"),
     "another port than its pod"),
    ("multi-pod", WORKER, container("ports", 0, "containerPort", value=50053), "another port than its pod"),
    ("multi-pod", WORKER, set_at("spec", "replicas", value=2), "a rank has one worker"),
    ("multi-pod", WORKER, argument("--tensor-parallel-size=2", "--tensor-parallel-size=4"),
     "size: 4, --workers has 2"),
    ("four-workers", WORKER, argument("--tensor-parallel-size=4", "--threads=4"),
     "size: None, --workers has 4"),
    ("multi-pod", WORKER, set_at("spec", "template", "metadata", "labels", "quire-rank", value="0"),
     "its pods are"),
    ("multi-pod", WORKER, set_at("spec", "template", "metadata", "labels", "quire-rank", value="0"),
     "Service/quire-worker-0: leads to 2 workers"),
    ("multi-pod", WORKER, delete_at("spec", "selector", "matchLabels", "quire-rank"), "of another workload"),
    ("multi-pod", WORKER, argument("--rank=$(RANK)", "--rank=0"), "the rank 0, --workers has it as rank 1"),
    ("multi-pod", WORKER, container("env", 1, "valueFrom", "fieldRef", "fieldPath", value="metadata.name"),
     r"has the rank \$\(RANK\)"),
    ("multi-pod", WORKER_SERVICE, set_at("spec", "selector", "quire-rank", value="0"), "has it as rank 1"),
    ("multi-pod", WORKER_SERVICE, delete_at("spec", "selector", "quire-rank"), "leads to 2 workers"),
    ("multi-pod", WORKER_SERVICE, delete_at("spec", "publishNotReadyAddresses"), "found by name"),
    ("multi-pod", WORKER_SERVICE, delete_at("spec", "clusterIP"), "found by name"),
    ("multi-pod", WORKER, argument("--listen=$(POD_IP):50052", "--listen=$(POD_IP):50053"),
     "it listens on"),
    ("multi-pod", WORKER, set_at("spec", "template", "metadata", "labels", LABEL, value="server"),
     "its pods are"),
    ("multi-pod", WORKER, container("image", value="quire:0.2.0"), "image: quire:0.2.0, quire-worker-0 has"),
    ("multi-pod", WORKER, set_at(*POD, "volumes", 0, "persistentVolumeClaim", "claimName", value="other"),
     "model volume: .*other.*, quire-worker-0 has"),
    ("multi-pod", WORKER, argument("--model=/models", "--model=/dev/shm"), "model volume: .*Memory"),
    ("multi-pod", SCHEDULER, set_at("spec", "replicas", value=0), "0 pods serve"),
    ("cpu", SERVER, set_at("spec", "replicas", value=0), "0 pods serve"),
    # The loss of a node.
    ("multi-pod", WORKER, set_at("kind", value="StatefulSet"), "must be a Deployment"),
    ("multi-pod", SCHEDULER, set_at("kind", value="StatefulSet"), "must be a Deployment"),
    ("multi-pod", WORKER, delete_at(*POD, "tolerations"), "300 s on a node that is unreachable"),
    ("multi-pod", SCHEDULER, delete_at(*POD, "tolerations", 1), "300 s on a node that is not-ready"),
    ("gpu", SERVERS["gpu"], delete_at(*POD, "tolerations", 0), "300 s on a node that is unreachable"),
    ("cpu", SERVER, set_at(*POD, "tolerations", 0, "tolerationSeconds", value=31), "stays 31 s"),
    ("cpu", SERVER, delete_at(*POD, "tolerations", 0, "tolerationSeconds"), "stays inf s"),
    ("cpu", SERVER, set_at(*POD, "tolerations", 0, "effect", value="NoSchedule"), "stays 300 s"),
    ("cpu", SERVER, delete_at(*SPREAD), "may get all of its pods"),
    ("cpu", SERVER, set_at(*SPREAD, 0, "topologyKey", value="zone"), "may get all of its pods"),
    ("multi-pod", SCHEDULER, set_at(*SPREAD, 0, "labelSelector", "matchLabels", LABEL, value="x"),
     "may get all of its pods"),
    ("multi-pod", SCHEDULER, set_at(*SPREAD, 0, "whenUnsatisfiable", value="DoNotSchedule"),
     "without ScheduleAnyway"),
    # Rollouts, and schedulers that stand by.
    ("multi-pod", WORKER, set_at("spec", "strategy", value={"type": "Recreate"}), "only RollingUpdate"),
    ("multi-pod", WORKER, delete_at("spec", "strategy"), "of no use beside"),
    ("multi-pod", WORKER, set_at(*STRATEGY, "maxSurge", value=1), "of no use beside"),
    ("multi-pod", WORKER, set_at(*STRATEGY, "maxUnavailable", value="25%"), "would wait for a pod"),
    ("multi-pod", WORKER, delete_at("spec", "progressDeadlineSeconds"), "Seconds: 600; .* 1800 s"),
    ("multi-pod", SCHEDULER, set_at("spec", "strategy", value={"type": "Recreate"}), "only RollingUpdate"),
    ("multi-pod", SCHEDULER, set_at(*STRATEGY, "maxSurge", value="50%"), "of no use beside"),
    ("multi-pod", SCHEDULER, set_at(*STRATEGY, "maxUnavailable", value=1), "would wait for a pod"),
    ("multi-pod", SCHEDULER, set_at(*STRATEGY, "maxUnavailable", value="99%"), "would wait for a pod"),
    ("multi-pod", SCHEDULER, delete_at(*STRATEGY, "maxUnavailable"), "would wait for a pod"),
    ("multi-pod", SCHEDULER, set_at("spec", "progressDeadlineSeconds", value=2400), "2147483647 is none"),
    ("multi-pod", SCHEDULER, container("args", 1, value="--standby=false"), "from each other"),
    ("multi-pod", SCHEDULER, container("args", 1, value="--no-standby"), "from each other"),
    ("multi-pod", SCHEDULER, container("args", 1, value="--standby=No"), "from each other"),
    ("multi-pod", SCHEDULER, container("readinessProbe", "httpGet", "path", value="/readyz"),
     "by /admission"),
    ("multi-pod", SCHEDULER, container("readinessProbe", value={"grpc": {"port": 50051}}), "probes by HTTP"),
    ("multi-pod", SCHEDULER, container("livenessProbe", value={
        "grpc": {"port": 50051, "service": "liveness"}}), "probes by HTTP"),
    ("cpu-tls", SERVER, container("readinessProbe", "httpGet", "path", value="/admission"), "by /readyz"),
    ("multi-pod", "NetworkPolicy/quire-worker", become(SERVER_BUDGET), "a standby is never ready"),
    ("multi-pod", SCHEDULERS, delete_at("spec", "publishNotReadyAddresses"), "not find the standby"),
    ("multi-pod", "Service/quire-multi-pod", set_at("spec", "publishNotReadyAddresses", value=True), "lead clients to"),
    ("multi-pod-all", SCHEDULERS, set_at("spec", "ports", 0, "appProtocol", value="kubernetes.io/h2c"),
     "says clear text"),
    ("multi-pod-all", "Certificate/quire-multi-pod-tls", set_at(
        "spec", "dnsNames", value=["quire-multi-pod", "quire-multi-pod.quire.svc"]),
     "not for 'quire-schedulers.quire.svc'"),
    ("multi-pod", "NetworkPolicy/quire-worker", set_at(
        "spec", "ingress", 0, "from", 0, "podSelector", "matchLabels", LABEL, value="x"),
     "selects no pod"),
    ("multi-pod", "NetworkPolicy/quire-worker", set_at(
        "spec", "egress", 0, "to", 0, "podSelector", "matchLabels", LABEL, value="x"),
     "selects no pod"),
]
# Gateways, and pools of servers.
FAULTS += [
    ("cpu-all", GATEWAY, container("args", 0, value="--scheduler=quire-servers:50051"), "no Service 'quire-servers'"),
    ("cpu-all", GATEWAY, container("args", 0, value="--scheduler=$(INSTANCE):50051"), "must be headless"),
    ("cpu-all", GATEWAY, container("args", 0, value="--scheduler=quire-cpu-servers:50052"), "no port of its Service"),
    ("cpu-all", GATEWAY, container("args", 0, value="--scheduler=quire-cpu-api:8000"), "which is no server"),
    ("cpu-all", GATEWAY, set_at("spec", "replicas", value=1), "a lone gateway"),
    ("cpu-all", GATEWAY, set_at(*POD, "terminationGracePeriodSeconds", value=128), "drain and stop take 128 s"),
    ("cpu-all", GATEWAY, set_at(*POD, "volumes", 0, "persistentVolumeClaim", "claimName", value="other"),
     "another tokenizer"),
    ("cpu-all", GATEWAY, container("livenessProbe", "httpGet", "path", value="/readyz"), "loads or drains"),
    ("cpu-all", GATEWAY, container("readinessProbe", "httpGet", "port", value="api"), "not that of --http-port"),
    ("cpu-all", GATEWAY, argument("--scheduler-ssl-ca-certs=/tls/ca.crt", "--max-connections=9"),
     "--scheduler-ssl-ca-certs: it and quire-cpu"),
    ("cpu-all", GATEWAY, argument("--ssl-certfile=/tls/tls.crt", "--max-connections=9"),
     "--ssl-certfile: it and quire-cpu"),
    ("multi-pod-all", "Deployment/quire-multi-pod-api", argument(
        "--scheduler-api-key-file=/gateway-key/key", "--max-connections=9"), "--scheduler-api-key-file: it and"),
    ("cpu-all", GATEWAY, argument("--api-keys-file=/keys/api-keys", "--max-connections=9"),
     "--api-keys-file: it and quire-cpu"),
    ("cpu-all", "Service/quire-cpu-api", set_at("spec", "ports", 0, "appProtocol", value="http"), "says clear text"),
    ("cpu-all", "Certificate/quire-cpu-tls", delete_at("spec", "dnsNames", 8), "not for 'quire-cpu-api'"),
    ("cpu-all", "Certificate/quire-cpu-tls", delete_at("spec", "dnsNames", 14), "not for 'quire-cpu-servers.quire.svc'"),
    ("cpu-all", "PodMonitor/quire-cpu", delete_at("spec", "podMetricsEndpoints", 0, "scheme"), "its metrics by https"),
    ("cpu-all", "PodMonitor/quire-cpu", delete_at("spec", "podMetricsEndpoints", 0, "authorization"),
     "an operator's key"),
    ("cpu-all", "PodMonitor/quire-cpu-api", set_at("spec", "podMetricsEndpoints", 0, "scheme", value="https"),
     "its metrics by http;"),
    ("multi-pod-all", "Service/quire-multi-pod-servers", delete_at("spec", "publishNotReadyAddresses"),
     "not find the standby"),
    ("inference-pool", POOL, delete_at("spec", "selector", "matchLabels", INSTANCE), "the pods of one overlay"),
    ("inference-pool", POOL, set_at("spec", "selector", "matchLabels", INSTANCE, value="quire-x"), "of one overlay"),
    ("inference-pool", POOL, set_at("spec", "selector", "matchLabels", INSTANCE, value="quire-multi-pod"),
     "is not the API of quire-scheduler"),
    ("inference-pool", POOL, set_at("spec", "targetPorts", 0, "number", value=50051), "is not the API of quire-cpu"),
    ("inference-pool", POOL, set_at("spec", "endpointPickerRef", "port", "number", value=9003), "no Service for"),
    ("inference-pool", POOL, set_at("metadata", "name", value="x"), "--pool-name: quire, the pool is x"),
    ("inference-pool", "Deployment/quire-picker", container("ports", 0, "containerPort", value=9004),
     "the port of the pool's reference"),
    ("inference-pool", "ConfigMap/quire-picker", set_at("data", "config.yaml", value="kvUsageSpec: vllm:gpu_cache\n"),
     "vllm:gpu_cache is no metric"),
]
# Faults between two overlays in one namespace. The text names the other overlay.
FAULTS += [
    ("cpu", SERVER, delete_at("spec", "template", "metadata", "labels", INSTANCE), "must be the name of the"),
    ("multi-pod", WORKER, set_at("spec", "template", "metadata", "labels", INSTANCE, value="x"),
     "must be the name of the overlay"),
    ("cpu", "Service/quire-cpu", delete_at("spec", "selector", INSTANCE), "pods of gpu: quire-gpu"),
    ("cpu", "Service/quire-cpu", delete_at("spec", "selector", INSTANCE), "of multi-pod: quire-scheduler"),
    ("multi-pod", "Service/quire-multi-pod", delete_at("spec", "selector", INSTANCE), "of cpu: quire-cpu"),
    ("multi-pod", SCHEDULERS, delete_at("spec", "selector", INSTANCE), "pods of cpu: quire-cpu"),
    ("tensor-parallel", "PodDisruptionBudget/quire-tensor-parallel", delete_at(*SELECTED, INSTANCE),
     "of multi-pod: quire-scheduler"),
    ("gpu", SERVERS["gpu"], delete_at(*SELECTED, INSTANCE), "of tensor-parallel: quire-tensor-parallel"),
    ("multi-pod", SCHEDULER, delete_at(*SELECTED, INSTANCE), "pods of gpu: quire-gpu"),
    ("cpu", SERVER, delete_at(*SPREAD, 0, "labelSelector", "matchLabels", INSTANCE), "pods of gpu"),
    ("cpu-all", "NetworkPolicy/quire-cpu", delete_at("spec", "podSelector", "matchLabels", INSTANCE),
     "pods of gpu: quire-gpu"),
    ("cpu-all", "PodMonitor/quire-cpu", delete_at(*SELECTED, INSTANCE), "pods of gpu: quire-gpu"),
    ("multi-pod", "NetworkPolicy/quire-worker", delete_at(
        "spec", "ingress", 0, "from", 0, "podSelector", "matchLabels", INSTANCE), "pods of cpu: quire-cpu"),
    ("cpu", "Service/quire-cpu", set_at("metadata", "name", value="quire-gpu"), "gpu has an object of this"),
    ("cpu", "ServiceAccount/quire-cpu", set_at("metadata", "name", value="quire-multi-pod"),
     "multi-pod has an object of this name"),
    ("cpu-all", "Certificate/quire-cpu-tls", set_at("metadata", "name", value="quire-multi-pod-tls"),
     "multi-pod-all has an object of this name"),
    ("cpu-all", "PrometheusRule/quire", set_at("spec", "groups", value=[]), "multi-pod-all has an object"),
    ("cpu-all", "ScaledObject/quire-cpu", set_at(
        "spec", "triggers", 1, "metadata", "query",
        value='avg(vllm:kv_cache_usage_perc{job="quire",namespace="quire"})'), "not of its overlay alone"),
]
# Faults that only the programs can find.
FAULTS_OF_FLAGS = [
    ("cpu", SERVER, argument("--http-port=8000", "--metrics-port=8000"), "has no such flag"),
    ("cpu", SERVER, argument("--shutdown-timeout=15", "--shutdown-timeout=-1"), "ends with 2.*shutdown"),
    ("cpu", SERVER, argument("--allow-insecure-bind", "--no-allow-insecure-bind"), "no such flag"),
    ("tensor-parallel", SERVERS["tensor-parallel"], argument("--tensor-parallel-size=4", "--tensor-parallel-size=9"),
     "ends with 2.*from 1 to 8"),
    ("multi-pod", SCHEDULER, argument("--host=0.0.0.0", "--rank=0"), "has no such flag"),
    ("cpu-all", GATEWAY, argument("--host=0.0.0.0", "--rank=0"), "has no such flag"),
    ("cpu-all", GATEWAY, argument("--allow-insecure-bind", "--max-connections=9"), "ends with 2.*http-host"),
    ("cpu-all", GATEWAY, argument("--scheduler-ssl-ca-certs=/tls/ca.crt", "--max-connections=9"),
     "ends with 2.*scheduler-api-key-file"),
    ("cpu-all", SERVER, argument("--ssl-keyfile=/tls/tls.key", "--ssl-key=/tls/tls.key"), "no such flag"),
    ("cpu-all", SERVER, argument("--ssl-keyfile=/tls/tls.key", "--threads=4"), "ends with 2.*must be given together"),
    ("multi-pod-all", WORKER, argument("--ssl-ca-certs=/worker-tls/ca.crt", "--threads=4"),
     "ends with 2.*ssl-ca-certs"),
    ("multi-pod", WORKER, argument("--tensor-parallel-size=2", "--tensor-parallel-size=3"),
     "ends with 2.*tensor-parallel-size"),
]


def find(name):
    [folder] = [each for each in FOLDERS if each.name == name]
    return folder


class Changed:
    """Builds of a folder in which one object is another; built once each."""

    _built = {}

    def __init__(self, folder, name, change):
        if folder not in self._built:
            self._built[folder] = kustomize_subset.build(find(folder))
        self.objects = copy.deepcopy(self._built[folder])
        [each] = [each for each in self.objects if f"{each['kind']}/{each['metadata']['name']}" == name]
        change(each)

    def faults(self, **more):
        with unittest.mock.patch.object(manifest_overlay, "build", lambda _: self.objects):
            return check_manifests.faults_of("changed", NEIGHBOURS, **more)


def comparable(value, key=None):
    """Lists whose items have names are in any order."""
    if isinstance(value, dict):
        return {name: comparable(each, name) for name, each in value.items()}
    if isinstance(value, list):
        items = [comparable(each) for each in value]
        has_names = key in kustomize_subset.MERGE_KEYS or key == "ports"
        return sorted(items, key=lambda each: json.dumps(each, sort_keys=True)) if has_names else items
    return value


def replacement(source="source: {kind: Service, fieldPath: metadata.name}",
                targets="select: {kind: Service}, fieldPaths: [spec.x]"):
    return f"replacements: [{{{source}, targets: [{{{targets}}}]}}]\n"


def kubectl_builds():
    """Returns whether there is a kubectl whose kustomize has the features that we use: from 1.27 on."""
    if shutil.which("kubectl") is None:
        return False
    text = subprocess.run(["kubectl", "version", "--client"], capture_output=True, text=True,
                          stdin=subprocess.DEVNULL, check=False).stdout
    version = re.search(r"Kustomize Version: v(\d+)", text)
    return version is not None and int(version[1]) >= 5


class CheckManifestsTest(unittest.TestCase):

    def test_no_folder_has_a_fault_and_the_programs_take_their_flags(self):
        self.assertGreaterEqual(len(FOLDERS), 10)
        for folder in FOLDERS:
            with self.subTest(folder.name):
                self.assertEqual(check_manifests.faults_of(
                    folder, NEIGHBOURS, PROGRAMS, versions=check_manifests.native_versions()), [])

    def test_every_fault_is_found(self):
        for folder, name, change, expected in FAULTS:
            with self.subTest(f"{folder} {name}: {expected}"):
                faults = Changed(folder, name, change).faults()
                self.assertTrue(any(re.search(expected, each, re.S) for each in faults), faults)

    def test_flags_that_a_program_does_not_take_are_found(self):
        for folder, name, change, expected in FAULTS_OF_FLAGS:
            with self.subTest(f"{folder} {name}: {expected}"):
                faults = Changed(folder, name, change).faults(programs=PROGRAMS)
                self.assertTrue(any(re.search(expected, each, re.S) for each in faults), faults)

    @unittest.skipUnless(check_manifests.native_versions(), "kubernetes-validate is not installed")
    def test_what_a_cluster_would_not_take_is_found(self):
        change = container("readinessProbe", "periodSecond", value=5)
        faults = Changed("cpu", SERVER, change).faults(versions=check_manifests.native_versions())
        self.assertEqual(len(faults), 2, faults)
        self.assertIn("periodSecond", faults[0])

    def test_fields_that_a_definition_does_not_have_are_found(self):
        try:
            import jsonschema  # noqa: F401  pylint: disable=import-outside-toplevel,unused-import
        except ImportError:
            self.skipTest("jsonschema is not installed")
        with tempfile.TemporaryDirectory() as folder:
            schema = {"type": "object", "properties": {
                "apiVersion": {"type": "string"}, "kind": {"type": "string"}, "metadata": {},
                "spec": {"type": "object", "properties": {
                    "jobLabel": {"type": "string"}, "selector": {},
                    "podTargetLabels": {"type": "array"},
                    "podMetricsEndpoints": {"type": "array"}}}}}
            pathlib.Path(folder, "crd.yaml").write_text(yaml.safe_dump(
                {"kind": "CustomResourceDefinition", "spec": {
                    "group": "monitoring.coreos.com", "names": {"kind": "PodMonitor"},
                    "versions": [{"name": "v1", "schema": {"openAPIV3Schema": schema}}]}}))
            schemas = check_manifests.definitions(folder)
        faults = Changed("cpu-all", "PodMonitor/quire-cpu", lambda _: None).faults(schemas=schemas)
        self.assertEqual([each for each in faults if each.startswith("PodMonitor")], [])
        self.assertTrue(any(re.search("ScaledObject/quire-cpu: no definition", each) for each in faults))
        change = set_at("spec", "interval", value="15s")
        faults = Changed("cpu-all", "PodMonitor/quire-cpu", change).faults(schemas=schemas)
        self.assertTrue(any("interval" in each for each in faults), faults)

    def test_every_patch_of_a_component_finds_an_object_in_some_folder(self):
        # A component may lack an object in one overlay, so a misspelt target is no error of the build.
        objects = [each for folder in FOLDERS for each in kustomize_subset.build(folder)]
        for path in (ROOT / "k8s/components").glob("*/kustomization.yaml"):
            for patch in kustomize_subset.read(path)[0].get("patches", []):
                with self.subTest(f"{path.parent.name}: {patch['target']}"):
                    self.assertTrue(any(kustomize_subset.is_meant(each, patch["target"]) for each in objects))

    def test_every_rank_that_can_be_added_is_named_and_labelled_for_it(self):
        for path in (ROOT / "k8s/overlays/multi-pod/ranks").iterdir():
            with self.subTest(path.name):
                for each in kustomize_subset.build(path):
                    self.assertEqual(each["metadata"]["name"], f"quire-worker-{path.name}")
                    self.assertEqual(each["metadata"]["labels"]["quire-rank"], path.name)

    @unittest.skipUnless(kubectl_builds(), "no kubectl with kustomize 5")
    def test_folders_are_built_as_kubectl_builds_them(self):
        for folder in FOLDERS:
            with self.subTest(folder.name):
                text = subprocess.run(["kubectl", "kustomize", folder], check=True, text=True,
                                      stdin=subprocess.DEVNULL, capture_output=True).stdout
                theirs = {kustomize_subset.identity(each): comparable(each)
                          for each in yaml.safe_load_all(text)}
                ours = {kustomize_subset.identity(each): comparable(each)
                        for each in kustomize_subset.build(folder)}
                self.assertEqual(ours, theirs)

    def test_what_cannot_be_built_is_one_clear_error(self):
        head = "resources: [a.yaml]\n"
        good = "{apiVersion: v1, kind: Service, metadata: {name: a}, spec: {ports: [], x: 1}}\n"
        for plan, resource, expected in [
                (head + "generators: []\n", good, "generators: not supported here"),
                ("resources: [b.yaml]\n", good, "No such file"),
                (head, "{a: 1, a: 2}", "the key 'a' occurs twice"),
                (head, "{a: [}", "a.yaml"),
                (head, "{kind: Service}", "needs apiVersion"),
                (head + "labels: [{pairs: {}, includeTemplates: true}]\n", good, "only pairs"),
                (head + "labels: [{pairs: {}, includeSelectors: true}]\n",
                 "{apiVersion: v1, kind: Secret, metadata: {name: a}}", "not supported here for Secret"),
                (head + "nameSuffix: x\n", "{apiVersion: v1, kind: Secret, metadata: {name: a}}",
                 "not supported here for a Secret"),
                (head + "replacements: [{path: a}]\n", good, "a source of kind and fieldPath"),
                (head + replacement("source: {kind: Pod, fieldPath: a}"), good, "found 0 objects of kind Pod, not one"),
                (head + replacement("source: {kind: Service, fieldPath: spec.y}"), good, "spec.y: KeyError"),
                (head + replacement(targets="select: {kind: Service}, options: {create: true}"), good,
                 "a target may have only select"),
                (head + replacement(targets="select: {kind: Service, namespace: a}, fieldPaths: []"), good,
                 "kind, name and one label"),
                (head + replacement(targets="select: {kind: Service}, fieldPaths: [spec.ports.0]"), good,
                 "spec.ports.0: IndexError"),
                (head + "images: [{name: a, digest: b}]\n", good, "newTag are supported"),
                (head + "patches: [{patch: '{kind: Service, metadata: {name: b}}'}]\n", good,
                 "finds 0 objects"),
                (head + "patches: [{patch: '[{op: remove, path: /spec/x}]', target: {name: b}}]\n", good,
                 "finds no object"),
                (head + "patches: [{patch: '[{op: remove, path: /spec/x}]'}]\n", good, "needs a target"),
                (head + "patches: [{patch: '[]', target: {labelSelector: a}}]\n", good, "of kind and name"),
                (head + "patches: [{patch: '{kind: Service, metadata: {name: a}}', target: {name: a}}]\n",
                 good, "only for a list of operations"),
                (head + "patches: [{patch: '[{op: remove, path: /spec/y}]', target: {name: a}}]\n",
                 good, "remove /spec/y"),
                (head + "patches: [{patch: '[{op: test, path: /spec/x, value: 2}]', "
                 "target: {name: a}}]\n", good, "the value is 1")]:
            with self.subTest(expected), tempfile.TemporaryDirectory() as folder:
                pathlib.Path(folder, "kustomization.yaml").write_text(plan)
                pathlib.Path(folder, "a.yaml").write_text(resource)
                with self.assertRaisesRegex(kustomize_subset.ManifestError, expected):
                    kustomize_subset.build(folder)

    def test_the_rules_are_those_of_prometheus(self):
        made = make_rules.HERE / "rules.yaml"
        self.assertEqual(made.read_text(encoding="utf-8"), make_rules.rules_text(),
                         "run k8s/components/monitoring/make_rules.py")
        with open(make_rules.RULES, encoding="utf-8") as file:
            rules = yaml.safe_load(file)
        with open(made, encoding="utf-8") as file:
            self.assertEqual(yaml.safe_load(file)["spec"], rules)


if __name__ == "__main__":
    unittest.main(verbosity=2)
