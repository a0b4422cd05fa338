"""Runs the pods of an overlay as processes of this machine, the way a cluster would: names and
addresses, probes, preStop, SIGTERM, SIGKILL after the grace, rollouts. All of it is read from the
manifests. A pod has an address of 127.0.0.0/8 to itself (own_names.py), new each time.

Not simulated: volumes except the model's, limits, security contexts, nodes.
"""
import asyncio
import http.client
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
from manifest_overlay import program_of

READY_SECONDS = 240  # bounds the loading of a small model on a busy machine
MODEL_MOUNT = "/models"
SERVICE_ADDRESS = "127.8.0.1"
FIELD_OF_LABEL = re.compile(r"metadata\.labels\['(.+)'\]")


class Pod:
    """One process. The cluster records an unexpected end as a fault."""

    def __init__(self, cluster, workload, number, address):
        self.address = address
        self.name = f"{workload['metadata']['name']}-{number}"
        self.labels = pod_of(workload)["metadata"]["labels"]
        [self.container] = containers_of(workload)
        self.is_ready = False
        self.is_terminating = False
        self._is_gone = False
        self._cluster = cluster
        self._grace = pod_of(workload)["spec"]["terminationGracePeriodSeconds"]
        self._folder = tempfile.TemporaryDirectory(prefix="quire-pod-")
        self._variables = {each["name"]: self._value_of(each) for each in self.container.get("env", [])}
        self._log = open(os.path.join(self._folder.name, "log"), "w+", encoding="utf-8")  # noqa: SIM115
        self._start()
        self._kubelet = threading.Thread(target=self._watch, daemon=True)
        self._kubelet.start()

    def _value_of(self, variable):
        field = variable.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
        if field == "status.podIP":
            return self.address
        return self.labels[FIELD_OF_LABEL.fullmatch(field)[1]] if field else variable["value"]

    def _start(self):
        program, *rest = self.container["command"]
        arguments = [self._for_this_machine(each) for each in self.container["args"]]
        self.process = subprocess.Popen(
            [os.path.join(os.environ["QUIRE_BIN"], program), *rest, *arguments,
             *self._cluster.flags_for(self.container["command"][-1])],
            stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log,
            env={**os.environ, "XDG_RUNTIME_DIR": self._folder.name})

    def _for_this_machine(self, argument):
        argument = re.sub(r"\$\((\w+)\)", lambda match: self._variables[match[1]], argument)
        # In a pod 0.0.0.0 is the pod's own address.
        return argument.replace("0.0.0.0", self.address).replace(MODEL_MOUNT, self._cluster.model)

    def _watch(self):
        """Runs the start-up probe until it succeeds once, then readiness and liveness, each with its period.
        While the pod ends, only readiness runs."""
        kinds, due = ["startupProbe"], {"startupProbe": 0.0}
        failures = {"startupProbe": 0, "readinessProbe": 0, "livenessProbe": 0}
        while not self._is_gone:
            time.sleep(0.05)
            if self.process.poll() is not None:
                self.is_ready = False
                if not self.is_terminating:
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
        """Returns whether the pod answers in time. Like the kubelet, each probe uses a new connection."""
        return self._probe_grpc(probe) if "grpc" in probe else self._probe_http(probe)

    def _probe_http(self, probe):
        connection = http.client.HTTPConnection(
            self.address, self.port(probe["httpGet"]["port"]), timeout=probe["timeoutSeconds"])
        try:
            connection.request("GET", probe["httpGet"]["path"])
            return 200 <= connection.getresponse().status < 400
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def _probe_grpc(self, probe):
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

    def delete(self):
        """Ends the pod and waits until it is gone. The grace begins before preStop."""
        self.is_terminating = True
        deadline = time.monotonic() + self._grace
        lifecycle = self.container.get("lifecycle", {})
        time.sleep(min(self._grace, lifecycle.get("preStop", {}).get("sleep", {}).get("seconds", 0)))
        self.process.send_signal(signal.SIGTERM)
        try:
            exit_code = self.process.wait(timeout=max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._cluster.fault(f"{self.name} outlived its grace of {self._grace} s:\n{self.log()}")
        else:
            if exit_code != 0:
                self._cluster.fault(f"{self.name} ended with {exit_code}:\n{self.log()}")
        self.close()

    def close(self):
        self.is_terminating = True
        self._is_gone = True
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
    """The one address of a Service. Each connection goes to one of its pods, or is closed if there is none."""

    def __init__(self, cluster, service, address):
        self._cluster = cluster
        self._spec = service["spec"]
        [self._port] = [port for port in self._spec["ports"] if port["name"] == "grpc"]
        self.target = f"{address}:{self._port['port']}"
        self._loop = asyncio.new_event_loop()
        self._server = self._loop.run_until_complete(
            asyncio.start_server(self._serve, address, self._port["port"]))
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def _pods(self):
        """Returns ready pods. If all of them end, returns those that still serve, as kube-proxy does."""
        ready = [pod for pod in self._cluster.selected(self._spec) if pod.is_ready]
        return [pod for pod in ready if not pod.is_terminating] or ready

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

    flags: more flags, by program, with which the pods run on a small machine."""

    def __init__(self, folder, names, model, flags):
        self.faults = []
        self.model = model
        self._objects = build(folder)
        self._names = names
        self._flags = flags
        self._num_pods = 0
        self._pods = {}  # by workload; pods that end are among them
        self._service = None
        try:
            for workload in self.workloads():
                self._pods[workload["metadata"]["name"]] = []
                for _ in range(workload["spec"]["replicas"]):
                    self._add_pod(workload)
            [service] = [each for each in self._services() if not is_headless(each)
                         and any(port["name"] == "grpc" for port in each["spec"]["ports"])]
            self._service = ClusterAddress(self, service, SERVICE_ADDRESS)
            for workload in self.workloads():
                self._wait_until_ready(workload)
        except BaseException:
            self.close()
            raise

    def workloads(self):
        """Returns the workloads, workers first."""
        found = [each for each in self._objects if pod_of(each) is not None]
        return sorted(found, key=lambda each: "worker" not in each["metadata"]["name"])

    def pods_of(self, name):
        """Returns the pods of a workload."""
        return list(self._pods[name])

    def _services(self):
        return [each for each in self._objects if each["kind"] == "Service"]

    def target(self, service):
        """Returns a Service's target for clients: its one address, or the name of a headless Service."""
        [found] = [each for each in self._services() if each["metadata"]["name"] == service]
        if not is_headless(found):
            return self._service.target
        return f"{service}:{found['spec']['ports'][0]['port']}"

    def pods(self):
        return [pod for pods in list(self._pods.values()) for pod in list(pods)]

    def selected(self, service_spec):
        return [pod for pod in self.pods() if service_spec["selector"].items() <= pod.labels.items()]

    def flags_for(self, program):
        return self._flags.get(program, [])

    def fault(self, text):
        self.faults.append(text)

    def roll_out(self, workload):
        """Replaces all pods, as a Deployment does. With maxSurge new pods get ready before old pods go. Without
        it maxUnavailable old pods go at once, and new pods start while those end."""
        rolling = workload["spec"]["strategy"]["rollingUpdate"]
        old = list(self._pods[workload["metadata"]["name"]])
        surge, unavailable = (number_of(rolling[key], len(old)) for key in ("maxSurge", "maxUnavailable"))
        while old:
            going, old = old[:surge or unavailable], old[surge or unavailable:]
            if surge:
                self._replace(workload, [], len(going))
                self._replace(workload, going, 0)
            else:
                self._replace(workload, going, len(going))

    def _replace(self, workload, going, num_new):
        ends = [threading.Thread(target=self._delete, args=(workload, pod)) for pod in going]
        for pod, end in zip(going, ends):
            pod.is_terminating = True
            end.start()
        for _ in range(num_new):
            self._add_pod(workload)
        try:
            self._wait_until_ready(workload)
        finally:
            for end in ends:
                end.join()

    def _delete(self, workload, pod):
        pod.delete()
        self._pods[workload["metadata"]["name"]].remove(pod)
        self._publish()

    def _add_pod(self, workload):
        self._num_pods += 1
        pod = Pod(self, workload, self._num_pods, f"127.9.0.{self._num_pods}")
        self._pods[workload["metadata"]["name"]].append(pod)
        self._publish()

    def _publish(self):
        """Publishes the addresses of headless Services: all pods, also pods that are not ready or end."""
        for service in self._services():
            if is_headless(service):
                assert service["spec"]["publishNotReadyAddresses"]
                self._names[service["metadata"]["name"]] = [
                    pod.address for pod in self.selected(service["spec"])]

    def _wait_until_ready(self, workload):
        """Waits for all pods of a workload. One ready scheduler is enough, since the others stand by."""
        deadline = time.monotonic() + READY_SECONDS
        is_scheduler = program_of(containers_of(workload)[0]) == "quire_scheduler"
        while True:
            pods = [pod for pod in self._pods[workload["metadata"]["name"]] if not pod.is_terminating]
            num_ready = sum(pod.is_ready for pod in pods)
            if num_ready >= (1 if is_scheduler else len(pods)):
                return
            if self.faults or time.monotonic() > deadline:
                raise AssertionError(f"{num_ready} of {len(pods)} pods are ready: {self.faults}\n"
                                     + "\n".join(f"{pod.name}:\n{pod.log()}" for pod in pods))
            time.sleep(0.05)

    def close(self):
        for pod in self.pods():
            pod.close()
        if self._service is not None:
            self._service.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def is_headless(service):
    return service["spec"].get("clusterIP") == "None"


def number_of(share, num_pods):
    """Returns a number of pods, which may be written as a percentage of all."""
    return num_pods * int(share[:-1]) // 100 if str(share).endswith("%") else int(share)
