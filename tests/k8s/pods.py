"""Runs the pods of an overlay as processes of this machine, the way a cluster would: names and
addresses, probes, preStop, SIGTERM, SIGKILL after the grace, one pod after the other. All of it is read
from the manifests. A pod has an address of 127.0.0.0/8 to itself (own_names.py), new each time.

What is not there: volumes but the model's, limits, security contexts, nodes.
"""
import asyncio
import os
import random
import re
import signal
import subprocess
import tempfile
import threading
import time

import grpc
from proto.grpc.health.v1 import health_pb2

from kustomize_subset import build, containers_of, pod_of

READY_SECONDS = 240  # what a busy machine may take to load a small model
MODEL_MOUNT = "/models"


class Pod:
    """One process, started again when it ends, as a kubelet does it."""

    def __init__(self, cluster, workload, index, address):
        self.address = address
        self.name = f"{workload['metadata']['name']}-{index}"
        self.labels = pod_of(workload)["metadata"]["labels"]
        [self.container] = containers_of(workload)
        self.is_ready = False
        self.is_terminating = False
        self.num_starts = 0
        self.exit_code = None
        self._cluster = cluster
        self._grace = pod_of(workload)["spec"]["terminationGracePeriodSeconds"]
        self._folder = tempfile.TemporaryDirectory(prefix="quire-pod-")
        self._variables = {"POD_IP": address, "RANK": str(index)}
        self._log = open(os.path.join(self._folder.name, "log"), "w+", encoding="utf-8")  # noqa: SIM115
        self._start()
        self._kubelet = threading.Thread(target=self._watch, daemon=True)
        self._kubelet.start()

    def _start(self):
        program, *rest = self.container["command"]
        arguments = [self._for_this_machine(each) for each in self.container["args"]]
        self.num_starts += 1
        self.process = subprocess.Popen(
            [os.path.join(os.environ["QUIRE_BIN"], program), *rest, *arguments,
             *self._cluster.flags_for(program)],
            stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log,
            env={**os.environ, "XDG_RUNTIME_DIR": self._folder.name})

    def _for_this_machine(self, argument):
        argument = re.sub(r"\$\((\w+)\)", lambda match: self._variables[match[1]], argument)
        # In a pod 0.0.0.0 is the pod's own address.
        return argument.replace("0.0.0.0", self.address).replace(MODEL_MOUNT, self._cluster.model)

    def _watch(self):
        """Startup until it succeeds once, then readiness and liveness, each with its period."""
        kinds, due = ["startupProbe"], {"startupProbe": 0.0}
        failures = {"startupProbe": 0, "readinessProbe": 0, "livenessProbe": 0}
        while not self.is_terminating:
            time.sleep(0.05)
            if self.process.poll() is not None and not self.is_terminating:
                self._cluster.fault(f"{self.name} ended with {self.process.returncode}:\n{self.log()}")
                return
            for kind in [kind for kind in kinds if time.monotonic() >= due[kind]]:
                probe = self.container[kind]
                due[kind] = time.monotonic() + probe["periodSeconds"]
                succeeded = self._probe(probe)
                failures[kind] = 0 if succeeded else failures[kind] + 1
                has_failed = failures[kind] >= probe["failureThreshold"]
                if kind == "readinessProbe":
                    self.is_ready = succeeded or (self.is_ready and not has_failed)
                elif has_failed and not self.is_terminating:
                    self._cluster.fault(f"{self.name}: {kind} would have it killed:\n{self.log()}")
                    return
                elif kind == "startupProbe" and succeeded:
                    kinds = ["readinessProbe", "livenessProbe"]
                    due.update(dict.fromkeys(kinds, 0.0))

    def _probe(self, probe):
        """As the kubelet: a new connection each time, and an answer in time."""
        target = f"{self.address}:{probe['grpc']['port']}"
        with grpc.insecure_channel(target, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
            check = channel.unary_unary(
                "/grpc.health.v1.Health/Check",
                request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
                response_deserializer=health_pb2.HealthCheckResponse.FromString)
            request = health_pb2.HealthCheckRequest(service=probe["grpc"].get("service", ""))
            try:
                status = check(request, timeout=probe["timeoutSeconds"]).status
            except grpc.RpcError:
                return False
        return status == health_pb2.HealthCheckResponse.SERVING

    def port(self, name):
        return next(port["containerPort"] for port in self.container["ports"] if port["name"] == name)

    def wait_until_ready(self):
        deadline = time.monotonic() + READY_SECONDS
        while not self.is_ready:
            if self._cluster.faults or time.monotonic() > deadline:
                raise AssertionError(f"{self.name} is not ready: {self._cluster.faults}\n{self.log()}")
            time.sleep(0.05)

    def delete(self):
        """Returns when it is gone. The grace begins before preStop."""
        self.is_terminating = True
        deadline = time.monotonic() + self._grace
        lifecycle = self.container.get("lifecycle", {})
        time.sleep(min(self._grace, lifecycle.get("preStop", {}).get("sleep", {}).get("seconds", 0)))
        self.process.send_signal(signal.SIGTERM)
        try:
            self.exit_code = self.process.wait(timeout=max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._cluster.fault(f"{self.name} outlived its grace of {self._grace} s:\n{self.log()}")
        else:
            if self.exit_code != 0:
                self._cluster.fault(f"{self.name} ended with {self.exit_code}:\n{self.log()}")
        self.close()

    def close(self):
        self.is_terminating = True
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self._kubelet.join()
        self._log.close()
        self._folder.cleanup()

    def log(self):
        with open(self._log.name, encoding="utf-8", errors="replace") as file:
            return file.read()[-4000:]


class ClusterAddress:
    """The one address of a Service: each connection goes to a pod that may have it, or is closed."""

    def __init__(self, cluster, service, address):
        self._cluster = cluster
        self._spec = service["spec"]
        [self._port] = self._spec["ports"]
        self.target = f"{address}:{self._port['port']}"
        self._loop = asyncio.new_event_loop()
        self._server = self._loop.run_until_complete(
            asyncio.start_server(self._serve, address, self._port["port"]))
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def _pods(self):
        return [pod for pod in self._cluster.pods()
                if self._spec["selector"].items() <= pod.labels.items() and (
                    self._spec.get("publishNotReadyAddresses")
                    or (pod.is_ready and not pod.is_terminating))]

    async def _serve(self, reader, writer):
        try:
            pods = self._pods()
            if pods:
                pod = random.choice(pods)
                peer = await asyncio.open_connection(pod.address, pod.port(self._port["targetPort"]))
                await asyncio.gather(self._copy(reader, peer[1]), self._copy(peer[0], writer))
        except OSError:
            pass
        finally:
            writer.close()

    async def _copy(self, reader, writer):
        try:
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()

    def close(self):
        async def stop():
            self._server.close()
            tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(stop(), self._loop).result(timeout=60)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class Cluster:
    """All pods of a folder. `with Cluster(folder, names, model, flags) as cluster:`

    flags: more of them, by program: what makes it run on a small machine."""

    def __init__(self, folder, names, model, flags):
        self.faults = []
        self.model = model
        self._objects = build(folder)
        self._names = names
        self._flags = flags
        self._num_addresses = 0
        self._pods = {}  # by workload, in order
        self._service = None
        try:
            for workload in self.workloads():
                self._pods[workload["metadata"]["name"]] = [
                    self._new_pod(workload, index) for index in range(workload["spec"]["replicas"])]
            [service] = [each for each in self._objects if each["kind"] == "Service"
                         and each["spec"].get("clusterIP") != "None"]
            self._service = ClusterAddress(self, service, self._new_address())
            for pod in self.pods():
                pod.wait_until_ready()
        except BaseException:
            self.close()
            raise

    def workloads(self):
        """Workers first."""
        found = [each for each in self._objects if pod_of(each) is not None]
        return sorted(found, key=lambda each: "worker" not in each["metadata"]["name"])

    @property
    def target(self):
        return self._service.target

    def pods(self):
        return [pod for pods in list(self._pods.values()) for pod in list(pods)]

    def flags_for(self, program):
        return self._flags.get(program, [])

    def fault(self, text):
        self.faults.append(text)

    def roll_out(self, workload):
        """A new pod in place of each: as a StatefulSet from the last to the first, as a Deployment the
        new one first where it may have one more."""
        pods = self._pods[workload["metadata"]["name"]]
        is_deployment = workload["kind"] == "Deployment"
        surge = is_deployment and workload["spec"]["strategy"]["rollingUpdate"]["maxSurge"]
        for index in reversed(range(len(pods))):
            old = pods[index]
            if surge:
                pods.append(self._new_pod(workload, index))
                pods[-1].wait_until_ready()
                old.delete()
                pods[index] = pods.pop()
            else:
                old.delete()
                pods[index] = self._new_pod(workload, index)
                pods[index].wait_until_ready()

    def _new_pod(self, workload, index):
        pod = Pod(self, workload, index, self._new_address())
        if workload["kind"] == "StatefulSet":
            self._names[f"{pod.name}.{workload['spec']['serviceName']}"] = pod.address
        return pod

    def _new_address(self):
        self._num_addresses += 1
        return f"127.9.0.{self._num_addresses}"

    def close(self):
        for pod in self.pods():
            pod.close()
        if self._service is not None:
            self._service.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
