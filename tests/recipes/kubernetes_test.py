#!/usr/bin/env python3
"""kubernetes_test.py LOCKSTEP MANIFEST: runs the pods of a manifest here.

Each pod's command is run as it stands, with the environment that Kubernetes or
the training operator gives that pod. What a cluster would provide is replaced:
names of pods by the loopback address, the port by a free one, the folders of
volumes by temporary ones, and the arguments of training by a short run. All pods
must end well, and the run's digest must be that of one device.
"""

import os
import pathlib
import re
import secrets
import socket
import subprocess
import sys
import tempfile

import yaml

DEADLINE_S = 200
SHORT = ["--model", "mlp", "--data", "synthetic", "--shards", "2",
         "--batch-size", "32", "--max-steps", "6", "--no-eval"]


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def container_of(template):
    (container,) = template["spec"]["containers"]
    return container


def own_environment(container):
    return {entry["name"]: entry["value"]
            for entry in container.get("env", [])}


def pods_of_pytorchjob(job):
    """What Kubeflow's operator sets (pkg/controller.v1/pytorch/envvar.go)."""
    spec = job["spec"]
    kinds = [(kind, spec["pytorchReplicaSpecs"][kind])
             for kind in ("Master", "Worker")]
    count = sum(replicas["replicas"] for _, replicas in kinds)
    processes = spec["nprocPerNode"]
    assert isinstance(processes, str), "nprocPerNode is a string"
    master = f"{job['metadata']['name']}-master-0"
    rank = 0
    for _, replicas in kinds:
        for _ in range(replicas["replicas"]):
            container = container_of(replicas["template"])
            # The operator writes to this container alone.
            assert container["name"] == "pytorch", container["name"]
            yield container, {
                "MASTER_ADDR": master, "MASTER_PORT": "23456",
                "WORLD_SIZE": str(count * int(processes)), "RANK": str(rank),
                "PET_MASTER_ADDR": master, "PET_MASTER_PORT": "23456",
                "PET_NNODES": str(count), "PET_NPROC_PER_NODE": processes,
                "PET_NODE_RANK": str(rank), **own_environment(container)}
            rank += 1


def pods_of_job(job, documents):
    """What Kubernetes sets for a Job whose pods have numbers."""
    spec = job["spec"]
    assert spec["completionMode"] == "Indexed"
    assert spec["completions"] == spec["parallelism"], "all pods at once"
    template = spec["template"]
    name = job["metadata"]["name"]
    (service,) = [d for d in documents if d["kind"] == "Service"]
    # Names of pods exist only if the Service has none of its own address, the
    # pods are in its domain and it selects them.
    assert service["spec"]["clusterIP"] == "None"
    assert template["spec"]["subdomain"] == service["metadata"]["name"]
    selector = service["spec"]["selector"]
    assert selector.items() <= template["metadata"]["labels"].items()
    container = container_of(template)
    environment = own_environment(container)
    first = f"{name}-0.{service['metadata']['name']}"
    assert environment["PET_MASTER_ADDR"] == first, environment
    assert int(environment["PET_NNODES"]) == spec["completions"]
    for index in range(spec["completions"]):
        yield container, {"JOB_COMPLETION_INDEX": str(index), **environment}


def pods_of(manifest):
    documents = list(yaml.safe_load_all(manifest.read_text()))
    (job,) = [d for d in documents if d["kind"] in ("Job", "PyTorchJob")]
    if job["kind"] == "PyTorchJob":
        return list(pods_of_pytorchjob(job))
    return list(pods_of_job(job, documents))


def digest_in(text):
    return re.findall("parameter_sha256 ([0-9a-f]{64})", text)


def main(lockstep, manifest):
    pods = pods_of(manifest)
    assert len(pods) == 2, pods
    port = str(free_port())
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        secret = folder / "secret"
        secret.write_text(secrets.token_hex(32))
        secret.chmod(0o600)
        base = {"PATH": f"{lockstep.parent}:/usr/bin:/bin", "HOME": name}
        started = []
        for container, environment in pods:
            environment = {
                key: "127.0.0.1" if key.endswith("MASTER_ADDR") else
                port if key.endswith("MASTER_PORT") else value
                for key, value in environment.items()}
            mounts = {m["mountPath"] for m in container["volumeMounts"]}
            assert {"/etc/lockstep", "/runs", "/dev/shm"} <= mounts, mounts
            command = [word.replace("/etc/lockstep/secret", str(secret))
                       for word in container["command"]]
            out = container["args"][container["args"].index("--out-dir") + 1]
            assert out.startswith("/runs/"), out
            command += [*SHORT, "--out-dir", f"{folder}{out}"]
            print("pod:", environment)
            started.append(subprocess.Popen(
                command, env={**base, **environment}, text=True,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT))
        outputs = []
        try:
            for process in started:
                outputs.append(process.communicate(timeout=DEADLINE_S)[0])
        finally:
            for process in started:
                process.kill()
        for process, output in zip(started, outputs):
            print(output)
            if process.returncode != 0:
                sys.exit(f"[recipes] a pod ended with {process.returncode}")
        digests = [d for output in outputs for d in digest_in(output)]
        alone = subprocess.run(
            [str(lockstep), "train", "--strategy", "single", "--devices", "cpu",
             *SHORT], env=base, check=True, text=True, timeout=DEADLINE_S,
            stdout=subprocess.PIPE).stdout
        expected = digest_in(alone)
        print("pods:", digests, "one device:", expected)
        if not expected or set(digests) != set(expected):
            sys.exit("[recipes] the digests differ")
        if not os.path.isdir(f"{folder}/runs"):
            sys.exit("[recipes] no run in the volume")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]))
