"""The objects of one folder with a kustomization.yaml, their selections, and the faults found in them."""
import pathlib

from kustomize_subset import build, containers_of, pod_of


class Overlay:
    """The objects of one folder, and the faults that were found."""

    def __init__(self, folder):
        self.name = pathlib.Path(folder).name
        self.objects = build(folder)
        self.faults = []

    def of(self, *kinds):
        return [each for each in self.objects if each["kind"] in kinds]

    def workloads(self):
        return [each for each in self.objects if pod_of(each) is not None]

    def workloads_of(self, program):
        """Workloads that run this program, each with its container."""
        return [(each, container) for each in self.workloads() for container in containers_of(each)
                if program_of(container) == program]

    def selected(self, selector):
        """Workloads whose pods have these labels. An empty selector is all pods."""
        wanted = selector.get("matchLabels", {}) if "matchLabels" in selector or not selector else selector
        return [each for each in self.workloads()
                if wanted.items() <= pod_of(each)["metadata"]["labels"].items()]

    def services_of(self, workload):
        return [each for each in self.of("Service") if workload in self.selected(each["spec"]["selector"])]

    def fault(self, each, text):
        self.faults.append(f"{each['kind']}/{each['metadata']['name']}: {text}")


def ports_of(workload):
    """Number by name, over all containers."""
    return {port["name"]: port["containerPort"] for container in containers_of(workload)
            for port in container.get("ports", [])}


def program_of(container):
    """Returns the program that the container runs: "quire serve", "quire_gateway", "quire_scheduler" or
    "quire_worker"."""
    return " ".join(container.get("command", [])).removeprefix("quire supervise ")


def is_ours(container):
    """Returns whether the container runs one of Quire's programs. Others have images of other repositories."""
    return "/" not in container["image"] or "command" in container


def flags_of(container):
    """Values by flag, as written. A flag without a value has None."""
    flags = {}
    for argument in container.get("args", []):
        name, equals, value = argument.partition("=")
        flags[name.removeprefix("--")] = value if equals else None
    return flags
