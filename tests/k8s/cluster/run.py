#!/usr/bin/python3
"""Disturbs Quire on a real Kubernetes cluster as operators and machines do, and compares every answer meanwhile.

README.md beside this file lists the requirements and shows a command line. Exit code 1: an answer was lost or
different, or a step did not show what it claims.
"""
import argparse
import datetime
import os
import pathlib
import sys
import time
import traceback

ROOT = pathlib.Path(__file__).resolve().parents[3]
STUBS = os.environ.get("QUIRE_PYTHON_STUBS", str(ROOT / "build/cpu-release/python"))
sys.path[:0] = [str(ROOT / "deploy/clients/python"), STUBS]

import load  # noqa: E402
import report  # noqa: E402
import steps_input  # noqa: E402,F401  (each of these adds its steps)
import steps_network  # noqa: E402,F401
import steps_node  # noqa: E402,F401
import steps_operator  # noqa: E402,F401
import steps_process  # noqa: E402,F401
from cluster import Cluster, temporary_folder  # noqa: E402
from machine import COMMANDS, Machine  # noqa: E402
from overlays import VARIANTS, Install  # noqa: E402
from step import STEPS, Scene  # noqa: E402

AFTERMATH_SECONDS = 5  # the load runs on for so long after the installation is ready again


def parse_arguments(args):
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    add = parser.add_argument
    add("--kubeconfig", default=os.environ.get("KUBECONFIG"))
    add("--namespace", default="quire", help="created and deleted by the suite; it must not exist yet")
    add("--image", required=True, help="NAME:TAG of an image that every node has or can pull")
    add("--second-image", help="NAME:TAG of the same programs, for the step new-image")
    add("--model-volume", required=True, help="FILE.yaml with the claim quire-model and its PersistentVolume")
    add("--crds", help="a folder of CustomResourceDefinitions: cert-manager, Prometheus Operator, KEDA")
    add("--overlays", default=",".join(VARIANTS), help=f"comma-separated; default: all of {', '.join(VARIANTS)}")
    add("--steps", help=f"comma-separated; default: all that suit the overlay, of {', '.join(STEPS)}")
    add("--repeat", type=int, default=1, help="how often each step is done")
    add("--streams", type=int, default=12, help="concurrent streams of the Python client")
    add("--processes", type=int, default=4, help="concurrent streams of the C++ client")
    add("--http-streams", type=int, default=4, help="concurrent streams of clients of OpenAI's API")
    add("--tokens", type=int, default=500, help="output tokens of each answer")
    add("--quire", default=str(ROOT / "build/cpu-release/bin/quire"), help="path of the program quire")
    add("--victim-node", help="node to drain, kill and cut off; default: the last one by name")
    add("--control-plane", help="address of the API server as the victim node sees it")
    add("--out", default=str(ROOT / f"k8s/results/{datetime.date.today()}.md"))
    add("--keep", action="store_true", help="do not delete the last installation")
    for name, text in COMMANDS.items():
        add("--" + name.replace("_", "-"), help=text)
    options = parser.parse_args(args)
    unknown = [each for each in (options.steps or "").split(",") if each and each not in STEPS]
    if unknown:
        parser.error(f"--steps: unknown step: {', '.join(unknown)}")
    return options


def chosen_steps(options, variant, machine):
    names = options.steps.split(",") if options.steps else list(STEPS)
    found = [STEPS[each] for each in names if STEPS[each].suits(variant) and machine.has(*STEPS[each].needs)]
    return [each for each in found if each.name != "new-image" or options.second_image]


class Suite:
    """Runs steps on one installation. Asks for the expected answers first, while nothing disturbs the installation."""

    def __init__(self, cluster, install, machine, options):
        self._cluster = cluster
        self._install = install
        self._machine = machine
        self._options = options
        self._questions = [load.make_question(i, options.tokens) for i in range(load.NUM_QUESTIONS)]
        client = load.PythonClient(install.server())
        self._expected = [load.answer_of(client, each) for each in self._questions]
        client.close()

    def run(self, step):
        """Returns the row of all runs. Prints a row for each run."""
        row = report.Row(step.name)
        for _ in range(self._options.repeat):
            outcome = self._run_once(step)
            row.add(*outcome)
            run = report.Row(step.name)
            run.add(*outcome)
            print(report.line(run.cells()), flush=True)
        return row

    def _run_once(self, step):
        scene = Scene(self._cluster, self._install, self._machine, self._options)
        failure = None
        try:
            if step.prepare is not None:
                step.prepare(scene)
            scene.load = self._start_load(step)
            step.run(scene)
            time.sleep(AFTERMATH_SECONDS)
        except Exception as error:  # noqa: BLE001  (the row reports the failure, and the next step runs)
            traceback.print_exc()
            failure = f"{type(error).__name__}: {error}"
        tally = load.Tally()
        if scene.load is not None:
            scene.load.stop()
            tally = scene.load.tally(scene.first_begin or scene.begin)
        if step.longest_gap_s is not None and tally.longest_gap[0] > step.longest_gap_s:
            failure = failure or f"a gap of {tally.longest_gap[0]:.1f} s, longer than {step.longest_gap_s} s"
        for each in tally.lost:
            print(f"  lost: {each}", flush=True)
        return tally, scene.ready_seconds, scene.notes, failure

    def _start_load(self, step):
        server = self._install.server(step.service)
        clients = [load.PythonClient(server) for _ in range(self._options.streams)]
        clients += [load.CommandClient(server, self._options.quire) for _ in range(self._options.processes)]
        clients += [load.HttpClient(server) for _ in range(self._options.http_streams)]
        started = load.Load(clients, self._questions, self._expected)
        started.start()
        started.wait_until_flowing()
        return started


def recover(install):
    """Restores the installation after a failed step. Returns False if the installation is not ready afterwards."""
    try:
        install.restore()
        install.wait_ready(time.monotonic())
        return True
    except Exception:  # noqa: BLE001  (the caller makes a new installation)
        traceback.print_exc()
        return False


def run_variant(cluster, name, machine, options, results):
    variant = VARIANTS[name]
    steps = chosen_steps(options, variant, machine)
    while steps:
        with temporary_folder() as folder:
            install = Install(cluster, variant, options, folder)
            try:
                print(f"{name}: installing", flush=True)
                install.create()
                suite = Suite(cluster, install, machine, options)
                while steps:
                    step = steps.pop(0)
                    print(f"{name}: {step.name}", flush=True)
                    row = suite.run(step)
                    results.add(name, row)
                    if not row.is_good and not recover(install):
                        break  # the outer loop makes a new installation for the remaining steps
            finally:
                if steps or not options.keep:
                    install.delete()


def heading(cluster, options):
    server = cluster.kubectl("version").strip().replace("\n", ", ")
    nodes = ", ".join(cluster.node_names())
    return [report.machine_text() + ".", f"{server}; nodes {nodes}; image {options.image}.",
            f"{options.streams} streams of the Python client, {options.processes} of the C++ client and "
            f"{options.http_streams} of OpenAI's API at a time, "
            f"{options.tokens} tokens each."]


def main():
    options = parse_arguments(sys.argv[1:])
    cluster = Cluster(options.kubeconfig, options.namespace)
    machine = Machine({name: getattr(options, name) for name in COMMANDS})
    options.victim_node = options.victim_node or cluster.node_names()[-1]
    results = report.Report(options.out, heading(cluster, options))
    if options.crds:
        cluster.kubectl("apply", "--server-side", "--recursive", f"--filename={options.crds}", seconds=180)
    for name in options.overlays.split(","):
        run_variant(cluster, name, machine, options, results)
    print(results.text())
    sys.exit(0 if results.is_good and results.rows else 1)


if __name__ == "__main__":
    main()
