#!/usr/bin/python3
"""The suite of cluster/ counts lost and different answers, gaps, and pods that do not serve. Needs no cluster."""
import argparse
import copy
import os
import pathlib
import sys
import tempfile
import threading
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/k8s/cluster"), str(ROOT / "deploy/clients/python"),
                os.environ["QUIRE_PYTHON_STUBS"]]

import load  # noqa: E402
import overlays  # noqa: E402
import report  # noqa: E402
import run  # noqa: E402
import steps_input  # noqa: E402
from cluster import Pod  # noqa: E402
from machine import Machine  # noqa: E402
from step import STEPS, CheckFailed, Scene  # noqa: E402

QUESTIONS = [load.make_question(i, 8) for i in range(4)]


def good_answer(question):
    return {i: [question.seed + i, 7, 8] for i in range(question.num_sequences)}


class FakeClient:
    """Answers well, except where break_answer(number of the answer, tokens) changes an answer."""
    num_resumed = 0

    def __init__(self, break_answer):
        self._break = break_answer
        self.num_asked = 0

    def ask(self, question):
        self.num_asked += 1
        for index, tokens in good_answer(question).items():
            yield index, self._break(self.num_asked, tokens)

    def dial(self):
        pass

    def close(self):
        pass


def tally_of(break_answer, num_answers=5):
    """Returns the tally of one client, which is stopped after num_answers answers."""
    enough = threading.Event()

    def count(number, tokens):
        if number > num_answers:
            enough.set()
        return break_answer(number, tokens)

    running = load.Load([FakeClient(count)], QUESTIONS, [good_answer(each) for each in QUESTIONS])
    running.start()
    assert enough.wait(30)
    running.stop()
    return running.tally(0.0)


class LoadTest(unittest.TestCase):

    def test_undisturbed_answers_are_right(self):
        tally = tally_of(lambda number, tokens: tokens)
        self.assertGreater(tally.num_right, 4)
        self.assertTrue(tally.is_clean)

    def test_another_token_is_different(self):
        tally = tally_of(lambda number, tokens: [*tokens[:-1], 9] if number == 2 else tokens)
        self.assertEqual((tally.num_different, tally.lost), (1, []))

    def test_a_missing_token_is_different(self):
        tally = tally_of(lambda number, tokens: tokens[:-1] if number == 2 else tokens)
        self.assertEqual(tally.num_different, 1)

    def test_an_error_is_a_lost_answer_with_its_reason(self):
        def fail(number, tokens):
            if number == 2:
                raise ConnectionError("nobody is there")
            return tokens

        tally = tally_of(fail)
        self.assertEqual(len(tally.lost), 1)
        self.assertIn("nobody is there", tally.lost[0])

    def test_an_answer_that_never_ends_is_lost(self):
        hangs = threading.Event()

        def hang(number, tokens):
            hangs.set()
            threading.Event().wait()

        running = load.Load([FakeClient(hang)], QUESTIONS, [good_answer(each) for each in QUESTIONS])
        running.start()
        self.assertTrue(hangs.wait(30))
        running.stop(seconds=0.1)
        self.assertEqual(running.tally(0.0).lost, ["never ended"])

    def test_a_question_is_the_same_each_time(self):
        self.assertEqual([load.make_question(i, 8) for i in range(4)], QUESTIONS)


class GapsTest(unittest.TestCase):

    def test_the_wait_for_the_first_token_is_a_gap(self):
        gaps = load.Gaps(100.0)
        gaps.token(103.0)
        gaps.token(104.0)
        self.assertEqual(gaps.longest_since(0.0), (3.0, 103.0))

    def test_what_ended_before_the_disturbance_does_not_count(self):
        gaps = load.Gaps(100.0)
        for now in (109.0, 110.0, 112.0):
            gaps.token(now)
        self.assertEqual(gaps.longest_since(109.5), (2.0, 112.0))

    def test_what_began_before_the_disturbance_counts_whole(self):
        gaps = load.Gaps(100.0)
        gaps.token(120.0)
        self.assertEqual(gaps.longest_since(119.0), (20.0, 120.0))

    def test_without_tokens_there_is_none(self):
        self.assertEqual(load.Gaps(100.0).longest_since(5.0), (0.0, 5.0))


class ReportTest(unittest.TestCase):

    def test_rows_add_up_and_keep_the_worst(self):
        row = report.Row("kill-node")
        row.add(load.Tally(num_right=5, num_resumed=1, longest_gap=(2.0, 9.0)), 30.0, ["first"], None)
        row.add(load.Tally(num_right=6, num_resumed=2, longest_gap=(1.0, 99.0)), 20.0, [], None)
        self.assertEqual(row.cells(), ("kill-node", 2, 11, 0, 0, 3, "2.0", "30", "first"))
        self.assertTrue(row.is_good)

    def test_lost_different_and_failed_are_not_good(self):
        for tally, failure in ((load.Tally(num_right=5, lost=["x"]), None),
                               (load.Tally(num_right=5, num_different=1), None),
                               (load.Tally(num_right=5), "no standby"),
                               (load.Tally(), None)):
            row = report.Row("x")
            row.add(tally, 0.0, [], failure)
            self.assertFalse(row.is_good)

    def test_a_cell_keeps_its_row_whole(self):
        self.assertEqual(report.line(["a|b\nc"]), "| a/b c |")

    def test_the_file_has_each_variant_and_the_sum(self):
        with tempfile.TemporaryDirectory() as folder:
            results = report.Report(os.path.join(folder, "x.md"), ["a machine"])
            for variant in ("cpu", "gpu"):
                row = report.Row("kill")
                row.add(load.Tally(num_right=5), 1.0, [], None)
                results.add(variant, row)
            text = pathlib.Path(folder, "x.md").read_text("utf-8")
        self.assertIn("## cpu", text)
        self.assertIn("## gpu", text)
        self.assertIn("10 answers were right.", text)
        self.assertTrue(results.is_good)


def pod(name, is_ready=True, is_running=True, component="server", num_restarts=0, last_message="", overlay="cpu"):
    labels = {"component": component, "app.kubernetes.io/component": component, overlays.INSTANCE: f"quire-{overlay}"}
    return Pod({"metadata": {"name": name, "uid": name, "labels": labels}, "spec": {},
                "status": {"conditions": [{"type": "Ready", "status": "True" if is_ready else "False"}],
                           "containerStatuses": [{
                               "restartCount": num_restarts,
                               "state": {"running" if is_running else "waiting": {}},
                               "lastState": {"terminated": {"reason": "Error", "message": last_message}}}]}})


def workload(name, replicas, **status):
    return {"metadata": {"name": name, "generation": 3},
            "spec": {"replicas": replicas, "selector": {"matchLabels": {"component": "server"}}},
            "status": {"observedGeneration": 3, "replicas": replicas, "updatedReplicas": replicas, **status}}


class ReadinessTest(unittest.TestCase):

    def test_all_servers_are_to_be_ready(self):
        self.assertIsNone(overlays.missing_of(workload("quire", 2), [pod("a"), pod("b")]))
        self.assertIn("1 of 2 serve", overlays.missing_of(workload("quire", 2), [pod("a"), pod("b", False)]))

    def test_one_of_two_schedulers_is_ready_and_both_run(self):
        one = workload("quire-scheduler", 2)
        self.assertIsNone(overlays.missing_of(one, [pod("a"), pod("b", is_ready=False)]))
        self.assertIsNotNone(overlays.missing_of(one, [pod("a"), pod("b")]), "two are ready")
        self.assertIsNotNone(overlays.missing_of(one, [pod("a"), pod("b", False, is_running=False)]))

    def test_a_rollout_is_not_ready(self):
        pods = [pod("a"), pod("b")]
        self.assertIn("rolls out", overlays.missing_of(workload("quire", 2, observedGeneration=2), pods))
        self.assertIn("rolls out", overlays.missing_of(workload("quire", 2, updatedReplicas=1), pods))

    def test_pods_of_others_do_not_count(self):
        self.assertIsNotNone(overlays.missing_of(workload("quire", 2), [pod("a"), pod("b", component="worker")]))


class FakeCluster:

    def __init__(self, pods, log):
        self._pods = pods
        self._log = log

    def pods(self, component=None):
        return [each for each in self._pods if component in (None, each.component)]

    def log(self, _, since):
        del since
        return self._log


def says(one_pod, log="", component=None, has_log=True):
    scene = Scene(FakeCluster([one_pod], log), None, None, None)
    return steps_input.says(scene, r"config\.json", component, has_log)


class BadInputTest(unittest.TestCase):

    def test_a_process_that_ended_says_it_in_log_and_status(self):
        crashed = pod("a", is_ready=False, is_running=False, num_restarts=2, last_message="no config.json")
        self.assertTrue(says(crashed, log="no config.json"))
        self.assertFalse(says(crashed, log="all is well"))
        for is_running in (False, True):
            without_reason = pod("a", is_ready=False, is_running=is_running, num_restarts=2)
            self.assertFalse(says(without_reason, log="no config.json"), "a crash loop without a reason in its status")

    def test_a_process_that_runs_on_says_it_in_its_log_and_is_not_ready(self):
        self.assertTrue(says(pod("a", is_ready=False), log="no config.json"))
        self.assertFalse(says(pod("a", is_ready=False), log="all is well"))
        self.assertFalse(says(pod("a"), log="no config.json"), "it looks ready")

    def test_what_never_ran_says_it_in_its_status(self):
        waiting = pod("a", is_ready=False, is_running=False, last_message="no config.json")
        self.assertTrue(says(waiting, has_log=False))
        self.assertFalse(says(pod("a", is_ready=False), log="no config.json", has_log=False))

    def test_another_component_does_not_say_it(self):
        self.assertTrue(says(pod("a", is_ready=False), log="no config.json", component="server"))
        self.assertFalse(says(pod("a", is_ready=False), log="no config.json", component="worker"))


class Neighbours:
    """A cluster with a server of each of two overlays. led_to: names of pods by Service; counted: pods of budgets."""

    def __init__(self, led_to, counted=1):
        self._led_to = led_to
        self._counted = counted

    @staticmethod
    def pods():
        return [pod("a", overlay="cpu"), pod("b", overlay="gpu")]

    def list(self, kind):
        if kind == "endpointslices":
            return [{"metadata": {"labels": {"kubernetes.io/service-name": service}},
                     "endpoints": [{"targetRef": {"name": name}, "conditions": {"ready": True}} for name in names]}
                    for service, names in self._led_to.items()]
        return [{"metadata": {"name": f"quire-{each}"}, "status": {"expectedPods": self._counted}}
                for each in ("cpu", "gpu")]


def check_apart(cluster):
    installs = []
    for name in ("cpu", "gpu"):
        install = overlays.Install(cluster, overlays.VARIANTS[name], None, ".")
        install.objects = [{"kind": "PodDisruptionBudget", "metadata": {"name": f"quire-{name}"}, "spec": {
            "selector": {"matchLabels": {"component": "server"}}}}]
        installs.append(install)
    steps_input.check_apart(Scene(cluster, None, None, None), installs)


class TwoOverlaysTest(unittest.TestCase):

    def test_each_leads_to_its_own_pods(self):
        check_apart(Neighbours({"quire-cpu": ["a"], "quire-gpu": ["b"]}))

    def test_a_service_that_leads_to_pods_of_another_is_found(self):
        with self.assertRaisesRegex(CheckFailed, "quire-gpu: its Service leads to .'a', 'b'., its pods are .'b'."):
            check_apart(Neighbours({"quire-cpu": ["a"], "quire-gpu": ["b", "a"]}))

    def test_a_service_that_leads_nowhere_is_found(self):
        with self.assertRaisesRegex(CheckFailed, "quire-cpu: its Service leads to no pod"):
            check_apart(Neighbours({"quire-gpu": ["b"]}))

    def test_a_budget_that_counts_pods_of_another_is_found(self):
        with self.assertRaisesRegex(CheckFailed, "quire-cpu counts 2 pods, the overlay has 1"):
            check_apart(Neighbours({"quire-cpu": ["a"], "quire-gpu": ["b"]}, counted=2))


class OverlaysTest(unittest.TestCase):

    def test_a_flag_is_replaced_added_and_taken_away(self):
        container = {"args": ["--a=1", "--b=2"]}
        overlays.set_flag(container, "a", "3")
        overlays.set_flag(container, "c", "4")
        overlays.set_flag(container, "b", None)
        self.assertEqual(container["args"], ["--a=3", "--c=4"])
        self.assertEqual(overlays.flag(container, "c"), "4")

    def test_what_asks_for_gpus_is_made_small(self):
        big = {"spec": {"replicas": 1, "template": {"spec": {"containers": [{
            "command": ["quire", "serve"], "args": ["--device=cuda", "--tensor-parallel-size=4", "--port=1"],
            "resources": {"limits": {"nvidia.com/gpu": "4"}}}]}}}}
        small = copy.deepcopy(big)
        overlays.make_small(small)
        container = overlays.container_of(small)
        self.assertEqual(container["resources"], overlays.RESOURCES)
        self.assertNotIn("--device=cuda", container["args"])
        self.assertEqual(overlays.flag(container, "tensor-parallel-size"), "2")
        self.assertEqual(overlays.flag(container, "port"), "1")


class ChoiceTest(unittest.TestCase):

    def choose(self, variant, commands, **options):
        chosen = argparse.Namespace(steps=None, second_image=None, **options)
        return {each.name for each in run.chosen_steps(chosen, overlays.VARIANTS[variant], Machine(commands))}

    def test_steps_without_their_commands_are_left_out(self):
        self.assertNotIn("kill-node-of-server", self.choose("cpu", {}))
        self.assertIn("kill-node-of-server", self.choose("cpu", {"kill_node": "x", "start_node": "y"}))

    def test_steps_of_other_overlays_are_left_out(self):
        self.assertNotIn("rank-twice", self.choose("cpu", {}))
        self.assertIn("rank-twice", self.choose("multi-pod", {}))

    def test_each_overlay_has_steps(self):
        for variant in overlays.VARIANTS:
            self.assertGreater(len(self.choose(variant, {})), 5, variant)

    def test_a_machine_runs_its_commands_and_tells_failures(self):
        machine = Machine({"kill_node": "true {node}", "start_node": "sh -c 'echo broken >&2; exit 3' {node}"})
        machine.kill_node("node2")
        with self.assertRaisesRegex(RuntimeError, "exit code 3: broken"):
            machine.start_node("node2")

    def test_every_step_has_a_name_of_its_own(self):
        self.assertTrue(all(name == each.name for name, each in STEPS.items()))
        self.assertGreater(len(STEPS), 30)


if __name__ == "__main__":
    unittest.main(verbosity=2)
