"""Checks that servers of several overlays live in one namespace: what one overlay applies or deletes is none
of another's, and nothing of it selects another's pods. Part of check_manifests.py.
"""
import kustomize_subset
from kustomize_subset import pod_of

# The overlay's name: on all its pods, in all its selectors.
INSTANCE = "app.kubernetes.io/instance"


def check_neighbours(overlay, neighbours):
    """Checks an overlay beside its neighbours, the overlays that may be in the namespace. A neighbour of the same
    name is another version of the overlay, and is skipped."""
    names = _names(overlay)
    if len(names) != 1 or None in names:
        overlay.faults.append(f"pods: the label {INSTANCE} must be the name of the overlay on all pods (found {names})")
    for other in neighbours:
        if not names & _names(other):
            _check_names(overlay, other)
            _check_selectors(overlay, other)


def _names(overlay):
    return {pod_of(each)["metadata"]["labels"].get(INSTANCE) for each in overlay.workloads()}


def _check_names(overlay, other):
    theirs = {kustomize_subset.identity(each): each for each in other.objects}
    for each in overlay.objects:
        found = theirs.get(kustomize_subset.identity(each))
        if found is not None and not (_is_of_namespace(each) and each == found):
            overlay.fault(each, f"{other.name} has an object of this name and kind, too")


def _is_of_namespace(each):
    """Rules and authorities are for all servers of a namespace."""
    return each["kind"] in ("PrometheusRule", "Issuer") or each.get("spec", {}).get("isCA", False)


def _check_selectors(overlay, other):
    for each in overlay.objects:
        for selector in _selectors(each):
            for workload in other.selected(selector):
                overlay.fault(each, f"its selector matches pods of {other.name}: {workload['metadata']['name']}")


def _selectors(each):
    """Yields the selectors that must select pods of the overlay alone. An empty peer of a policy means all pods of
    the namespace, and is left out."""
    spec = each.get("spec", {})
    if each["kind"] == "NetworkPolicy":
        yield spec["podSelector"]
        for rule in spec.get("ingress", []) + spec.get("egress", []):
            for peer in rule.get("from", []) + rule.get("to", []):
                if peer.get("podSelector"):
                    yield peer["podSelector"]
    elif "selector" in spec and each["kind"] != "InferencePool":  # check_gateways.py checks its selector
        yield spec["selector"]
    if pod_of(each) is not None:
        for spread in pod_of(each)["spec"].get("topologySpreadConstraints", []):
            yield spread["labelSelector"]
