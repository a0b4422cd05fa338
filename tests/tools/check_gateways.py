"""Checks that gateways reach the servers of their overlay, and that pools of the Gateway API's Inference Extension
are of pods that they can use. Part of check_manifests.py.
"""
import re

from kustomize_subset import containers_of, pod_of
from check_groups import LABEL_FIELD, model_volume_of
from manifest_overlay import flags_of, is_ours, ports_of, program_of

SERVERS = ("quire serve", "quire_scheduler")


def check_gateways(overlay):
    for gateway, container in overlay.workloads_of("quire_gateway"):
        for address in _schedulers(gateway, container):
            for server in _servers_behind(overlay, gateway, address):
                for its_container in filter(is_ours, containers_of(server)):
                    _check_link(overlay, gateway, container, server, its_container)
        if gateway["spec"].get("replicas", 1) < 2:
            overlay.fault(gateway, "replicas: the streams of a lone gateway end with its node, and no other serves")
    for monitor in overlay.of("PodMonitor"):
        _check_scheme(overlay, monitor)


def _schedulers(gateway, container):
    """Returns the addresses of --scheduler, with variables that labels of the pod set."""
    text = flags_of(container).get("scheduler") or ""
    labels = pod_of(gateway)["metadata"]["labels"]
    for variable in container.get("env", []):
        field = variable.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath", "")
        if label := LABEL_FIELD.fullmatch(field):
            text = text.replace(f"$({variable['name']})", labels.get(label[1], ""))
    return text.split(",")


def _servers_behind(overlay, gateway, address):
    """Returns the workloads of the servers to which an address of --scheduler leads."""
    host, _, port = address.rpartition(":")
    service = next((each for each in overlay.of("Service") if each["metadata"]["name"] == host), None)
    if service is None:
        overlay.fault(gateway, f"--scheduler: there is no Service {host!r}")
        return []
    if service["spec"].get("clusterIP") != "None":
        overlay.fault(service, "must be headless: a gateway tries the address of each server")
    if port not in {str(each["port"]) for each in service["spec"]["ports"]}:
        overlay.fault(gateway, f"--scheduler: {address} is no port of its Service")
    servers = overlay.selected(service["spec"]["selector"])
    for each in servers:
        if not any(program_of(container) in SERVERS for container in containers_of(each)):
            overlay.fault(gateway, f"--scheduler: {address} leads to {each['metadata']['name']}, which is no server")
    return servers


def _check_link(overlay, gateway, container, server, its_container):
    """Checks that a gateway and a server agree on TLS, keys and model."""
    own, its = flags_of(container), flags_of(its_container)
    name = server["metadata"]["name"]
    for flag, its_flag in (("scheduler-ssl-ca-certs", "ssl-certfile"), ("ssl-certfile", "ssl-certfile"),
                           ("scheduler-api-key-file", "api-keys-file"), ("api-keys-file", "api-keys-file")):
        if (flag in own) != (its_flag in its):
            overlay.fault(gateway, f"--{flag}: it and {name} (--{its_flag}) do not agree; the component gateway "
                                   "must be named before tls, certificates and api-keys")
    mine, other = model_volume_of(gateway, container), model_volume_of(server, its_container)
    if mine != other:
        overlay.fault(gateway, f"model volume: {mine}, {name} has {other}: a gateway refuses another tokenizer")


def _check_scheme(overlay, monitor):
    """Checks that Prometheus speaks TLS with servers whose metrics are on a port with TLS, and has a key for them."""
    for workload in overlay.selected(monitor["spec"]["selector"]):
        for container in containers_of(workload):
            flags, is_server = flags_of(container), program_of(container) == "quire serve"
            for endpoint in monitor["spec"]["podMetricsEndpoints"]:
                scheme = "https" if is_server and "ssl-certfile" in flags else "http"
                if endpoint.get("scheme", "http") != scheme:
                    overlay.fault(monitor, f"scheme: {workload['metadata']['name']} has its metrics by {scheme}; the "
                                           "component monitoring must be named before tls and certificates")
                if is_server and "api-keys-file" in flags and "authorization" not in endpoint:
                    overlay.fault(monitor, "authorization: the metrics need an operator's key; the component "
                                           "monitoring must be named before api-keys")


def check_inference_pools(overlay, neighbours, known_metrics):
    """neighbours: overlays that may be in the namespace, among them the one whose pods the pool has."""
    for pool in overlay.of("InferencePool"):
        spec = pool["spec"]
        members = [(each, workload) for each in neighbours for workload in each.selected(spec["selector"])]
        # Several folders may be variants of one overlay.
        if len({workload["metadata"]["name"] for _, workload in members}) != 1:
            overlay.fault(pool, f"must select the pods of one overlay: {spec['selector']}")
        for _, workload in members:
            for container in containers_of(workload):
                ports = [str(port["number"]) for port in spec["targetPorts"]]
                if program_of(container) != "quire serve" or ports != [flags_of(container).get("http-port")]:
                    overlay.fault(pool, f"targetPorts: {ports} is not the API of {workload['metadata']['name']}")
        _check_picker(overlay, pool, spec["endpointPickerRef"])
    for config in overlay.of("ConfigMap"):
        for name in re.findall(r"Spec: (\S+)", "\n".join(config["data"].values())):
            if name not in known_metrics:
                overlay.fault(config, f"{name} is no metric")


def _check_picker(overlay, pool, reference):
    service = next((each for each in overlay.of("Service") if each["metadata"]["name"] == reference["name"]), None)
    if service is None or reference["port"]["number"] not in {each["port"] for each in service["spec"]["ports"]}:
        overlay.fault(pool, f"there is no Service for {reference}")
        return
    for picker in overlay.selected(service["spec"]["selector"]):
        for container in containers_of(picker):
            flags = flags_of(container)
            if flags.get("pool-name") != pool["metadata"]["name"]:
                overlay.fault(picker, f"--pool-name: {flags.get('pool-name')}, the pool is {pool['metadata']['name']}")
            if reference["port"]["number"] not in ports_of(picker).values():
                overlay.fault(picker, "does not have the port of the pool's reference")
