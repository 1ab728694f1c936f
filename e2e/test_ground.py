"""The test ground itself: what jobs rely on, each seen once on real pods before any test of the product is believed."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from kubernetes.stream import stream

from e2e.cluster.cluster import Cluster
from e2e.cluster.pause import PAUSE_IMAGE
from e2e.kit import objects
from e2e.kit.api import Api
from e2e.kit.log_scan import LogScan
from e2e.kit.waiting import eventually, pod_is_ready, steady

SERVE = """
import http.server, os
os.chdir("/data")
with open("index.html", "w") as file:
    file.write(f"written by {os.getuid()}")
print("serving", flush=True)
http.server.ThreadingHTTPServer(("", 8000), http.server.SimpleHTTPRequestHandler).serve_forever()
"""
CALL = """
import json, socket, ssl, urllib.request
account = "/var/run/secrets/kubernetes.io/serviceaccount/"
def get(url, **options):
    request = urllib.request.Request(url, headers={"Authorization": "Bearer " + open(account + "token").read()})
    return urllib.request.urlopen(request, timeout=10, **options).read().decode()
def addresses(name):
    return sorted({entry[4][0] for entry in socket.getaddrinfo(name, 80, proto=socket.IPPROTO_TCP)})
def missing(name):
    try:
        return addresses(name)
    except socket.gaierror as error:
        return error.errno == socket.EAI_NONAME
print(json.dumps({
    "service": get("http://web"),
    "headless": get("http://web-pods:8000"),
    "full name": get(f"http://web.{open(account + 'namespace').read()}.svc.cluster.local"),
    "api server": json.loads(get("https://kubernetes.default.svc/version", context=ssl.create_default_context(cafile=account + "ca.crt"))),
    "service addresses": addresses("web"), "pod addresses": addresses("web-pods"), "unknown": missing("nothing.example.com"),
}))
"""
RESOLVE = """
import sys, dnslib
reply = dnslib.DNSRecord.parse(dnslib.DNSRecord.question(sys.argv[1]).send("10.200.0.1", 53, timeout=5))
print(" ".join(str(record.rdata) for record in reply.rr))
"""
HOST_SETTINGS = ("vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops", "net/netfilter/nf_conntrack_max")


def ready(api: Api, name: str) -> dict[str, Any] | None:
    pod = api.get("Pod", name)
    return pod if pod is not None and pod_is_ready(pod) else None


def run_in(api: Api, pod: str, argv: Sequence[str]) -> str:
    """`kubectl exec`."""
    call = api.core.connect_get_namespaced_pod_exec
    # Unprocessed, or the library would turn JSON into Python's own notation.
    channel = stream(call, pod, api.namespace, command=list(argv), stdout=True, stderr=True, stdin=False, tty=False, _preload_content=False)
    channel.run_forever(timeout=60)
    # In this order: reading all output also drops the exit code.
    exit_code, output = channel.returncode, str(channel.read_all())
    assert exit_code == 0, output
    return output


@pytest.fixture
def web(api: Api, image: str) -> dict[str, Any]:
    """A pod that serves its volume, behind a Service with an address and one without."""
    api.create(objects.claim("data"))
    volume = {"name": "data", "persistentVolumeClaim": {"claimName": "data"}}
    container = {"volumeMounts": [{"name": "data", "mountPath": "/data"}]}
    api.create(objects.pod("web", image, ["python3", "-c", SERVE], labels={"app": "web"}, volumes=[volume], container=container))
    service = objects.service("web", {"app": "web"}, 80)
    service["spec"]["ports"][0]["targetPort"] = 8000
    api.create(service)
    api.create(objects.service("web-pods", {"app": "web"}, 8000, headless=True))
    return eventually("pod web to be ready", lambda: ready(api, "web"), seconds=300, api=api)


def test_a_plain_user_writes_a_volume_and_reaches_services_and_the_api_server(api: Api, image: str, web: dict[str, Any]) -> None:
    api.create(objects.pod("client", image, ["sleep", "600"]))
    eventually("pod client to be ready", lambda: ready(api, "client"), seconds=60, api=api)
    eventually("web to have endpoints", lambda: "serving" in api.logs("web"), seconds=30, api=api)

    answers = json.loads(run_in(api, "client", ["python3", "-c", CALL]))

    assert answers["api server"].pop("gitVersion").startswith("v1.")
    cluster_address = (api.get("Service", "web") or {})["spec"]["clusterIP"]
    expected = {"service addresses": [cluster_address], "pod addresses": [web["status"]["podIP"]], "unknown": True}
    assert answers | expected == answers
    assert {answers[way] for way in ("service", "headless", "full name")} == {"written by 1000"}
    # A pod behind a Service reaches itself through it. By the longer name: the short one is also the pod's host name.
    itself = f"import urllib.request; print(urllib.request.urlopen('http://web.{api.namespace}', timeout=10).read().decode())"
    assert run_in(api, "web", ["python3", "-c", itself]).strip() == "written by 1000"


def test_memory_limit_ends_the_container_and_says_so(api: Api, image: str) -> None:
    container = {"resources": {"limits": {"memory": "64Mi"}}}
    api.create(objects.pod("greedy", image, ["python3", "-c", "bytearray(2**28)"], restartPolicy="Never", container=container))

    def ended() -> dict[str, Any] | None:
        statuses = ((api.get("Pod", "greedy") or {}).get("status") or {}).get("containerStatuses") or [{}]
        found: dict[str, Any] | None = statuses[0].get("state", {}).get("terminated")
        return found

    state = eventually("container to end", ended, seconds=300, api=api)
    assert (state["reason"], state["exitCode"]) == ("OOMKilled", 137)


def test_pods_live_through_a_restart_of_the_kubelet(api: Api, cluster: Cluster, web: dict[str, Any]) -> None:
    started = web["status"]["containerStatuses"][0]["containerID"]
    with cluster.stopped("kubelet"):
        assert cluster.exec([sys.executable, "-c", f"import socket; socket.create_connection(('{web['status']['podIP']}', 8000), 5)"])
    eventually("exec to work again", lambda: execs(api, "web"), seconds=60, api=api)
    statuses = (api.get("Pod", "web") or {})["status"]["containerStatuses"]
    assert [(status["containerID"], status["restartCount"]) for status in statuses] == [(started, 0)]


def execs(api: Api, pod: str) -> bool:
    try:
        return run_in(api, pod, ["echo", "here"]).strip() == "here"
    except Exception as error:
        # The kubelet's port is closed until it is up; the library has no type of its own for a failed handshake.
        print(f"exec into {pod}: {error}")
        return False


def test_names_are_answered_while_the_api_server_is_away_and_followed_when_it_is_back(
    api: Api, cluster: Cluster, web: dict[str, Any], log_scan: LogScan
) -> None:
    # An API server that has just started refuses everyone until it has read the roles.
    log_scan.allowed.append(
        "connection refused|connection reset|unexpected EOF|http2: client connection lost|Failed to watch.*is forbidden"
    )

    def resolve(service: str) -> str:
        name = f"{service}.{api.namespace}.svc.cluster.local"
        return cluster.exec([sys.executable, "-c", RESOLVE, name]).stdout.strip()

    eventually("the headless service to have its pod", lambda: resolve("web-pods") == web["status"]["podIP"], seconds=30, api=api)
    with cluster.stopped("kube-apiserver", kill=True):
        assert resolve("web-pods") == web["status"]["podIP"]
    late = api.create(objects.service("late", {"app": "web"}, 80))
    eventually("a later service to have a name", lambda: resolve("late") == late["spec"]["clusterIP"], seconds=30, api=api)


def test_fake_gpus_are_counted_by_the_scheduler(api: Api, cluster: Cluster) -> None:
    cluster.set_capacity({"nvidia.com/gpu": "2", "rdma/hca_shared_devices_a": "1"})
    try:
        resources = {"limits": {"nvidia.com/gpu": "2", "rdma/hca_shared_devices_a": "1"}}
        for name in ("first", "second"):
            api.create(objects.pod(name, PAUSE_IMAGE, ["/busybox", "sleep", "600"], container={"resources": resources}))
        eventually("the first pod to be ready", lambda: ready(api, "first"), seconds=60, api=api)

        def refusal() -> str:
            conditions = ((api.get("Pod", "second") or {}).get("status") or {}).get("conditions") or []
            return " ".join(condition.get("message", "") for condition in conditions)

        eventually("the second pod to be refused", lambda: "Insufficient nvidia.com/gpu" in refusal(), seconds=30, last=refusal, api=api)

        def kept() -> bool:
            allocatable = (api.get("Node", "node1") or {})["status"]["allocatable"]
            return (allocatable.get("nvidia.com/gpu"), allocatable.get("rdma/hca_shared_devices_a")) == ("2", "1")

        # A kubelet that starts sets resources without a device plug-in to zero.
        cluster.restart("kubelet")
        eventually("the capacity to be written again", kept, seconds=30, api=api)
        steady("the capacity", kept, seconds=3)
    finally:
        cluster.set_capacity({"nvidia.com/gpu": "0", "rdma/hca_shared_devices_a": "0"})


def test_node_without_kubelet_becomes_not_ready_and_ready_again(admin: Api, cluster: Cluster) -> None:
    def node_is(status: str) -> bool:
        conditions = (admin.get("Node", "node2") or {}).get("status", {}).get("conditions") or []
        return any(condition["type"] == "Ready" and condition["status"] == status for condition in conditions)

    def taints() -> list[str]:
        return [taint["key"] for taint in (admin.get("Node", "node2") or {})["spec"].get("taints") or []]

    cluster.add_node("node2", {"nvidia.com/gpu": "8"})
    try:
        assert node_is("True")
        cluster.set_node_state("node2", "not-ready")
        eventually("node2 to be not ready", lambda: node_is("False"), seconds=30)
        eventually("pods to be kept off it", lambda: "node.kubernetes.io/not-ready" in taints(), seconds=30, last=taints)
        cluster.set_node_state("node2", "ready")
        eventually("node2 to be ready and free", lambda: node_is("True") and not taints(), seconds=30, last=taints)
    finally:
        admin.delete("Node", "node2")


def test_claims_are_refused_with_a_reason_and_volumes_end_as_their_class_says(api: Api, cluster: Cluster) -> None:
    block = objects.claim("block", storage_class="local-immediate")
    block["spec"]["volumeMode"] = "Block"
    api.create(block)
    api.create(objects.claim("shared", storage_class="local-immediate", modes=["ReadWriteMany"]))
    api.create(objects.claim("kept", storage_class="local-retain"))
    mount = [{"name": "kept", "mountPath": "/kept"}]
    volumes = [{"name": "kept", "persistentVolumeClaim": {"claimName": "kept"}}]
    command = ["/busybox", "sh", "-c", "echo result > /kept/file && /busybox sleep 600"]
    api.create(objects.pod("writer", PAUSE_IMAGE, command, volumes=volumes, container={"volumeMounts": mount}))

    def reasons() -> list[str]:
        return [event["message"] for event in api.list("Event") if event["reason"] == "ProvisioningFailed"]

    eventually("the block claim to be refused", lambda: any("volumeMode: Block" in text for text in reasons()), seconds=30, api=api)
    eventually("pod writer to be ready", lambda: ready(api, "writer"), seconds=60, api=api)

    def folder(claim: str) -> Path:
        name = (api.get("PersistentVolumeClaim", claim) or {})["spec"].get("volumeName", "")
        return Path((api.get("PersistentVolume", name) or {})["spec"]["hostPath"]["path"])

    eventually(
        "claim shared to be bound", lambda: (api.get("PersistentVolumeClaim", "shared") or {})["status"]["phase"] == "Bound", seconds=30
    )
    shared, kept = folder("shared"), folder("kept")
    kept_volume = (api.get("PersistentVolumeClaim", "kept") or {})["spec"]["volumeName"]
    assert shared.is_dir()
    api.delete("Pod", "writer")
    for claim in ("shared", "kept"):
        api.delete("PersistentVolumeClaim", claim)
    eventually("the deleted volume's files to go", lambda: not shared.exists(), seconds=30, api=api)
    eventually(
        "the kept volume to be released",
        lambda: (api.get("PersistentVolume", kept_volume) or {})["status"]["phase"] == "Released",
        seconds=60,
    )
    assert (kept / "file").read_text() == "result\n"
    api.delete("PersistentVolume", kept_volume)


FIXED_PLACES = ("/var/lib/kubelet", "/var/lib/cni")


def host_facts(cluster_name: str) -> dict[str, object]:
    """What this cluster could change on the machine; other programs may mount what they like meanwhile."""
    mounts = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    ours = (*FIXED_PLACES, "/var/log", "/run", "/proc/sys")
    return {
        "settings": [Path("/proc/sys", name).read_text() for name in HOST_SETTINGS if Path("/proc/sys", name).exists()],
        "mounts": sorted(place for place in mounts if f"/{cluster_name}/" in place or place.startswith(ours)),
        "interfaces": sorted(os.listdir("/sys/class/net")),
        "cgroups": [str(path) for path in Path("/sys/fs/cgroup").glob(f"*/rlhf-e2e-{cluster_name}")],
        "fixed folders": [sorted(os.listdir(place)) for place in FIXED_PLACES if os.path.isdir(place)],
    }


@pytest.fixture
def second(cluster: Cluster) -> Iterator[str]:
    """The name for another cluster, beside the session's."""
    name = f"ground-{secrets.token_hex(3)}"
    yield name
    Cluster.remove(name, home=cluster.home)
    shutil.rmtree(cluster.home.cluster(name), ignore_errors=True)


def test_a_cluster_leaves_nothing_on_the_machine_even_when_it_is_killed(cluster: Cluster, second: str) -> None:
    for place in FIXED_PLACES:
        Path(place).mkdir(exist_ok=True)
    before = host_facts(second)

    def up_with_a_pod() -> Cluster:
        other = Cluster.up(second, "full", home=cluster.home)
        api = Api(other.admin_kubeconfig)
        eventually("default service account", lambda: api.get("ServiceAccount", "default"), seconds=30)
        assert not api.list("Pod")
        api.create(objects.pod("sleeper", PAUSE_IMAGE, ["/busybox", "sleep", "600"]))
        eventually("pod sleeper to be ready", lambda: ready(api, "sleeper"), seconds=60, api=api)
        return other

    other = up_with_a_pod()
    os.kill(other.sandbox.init.pid, signal.SIGKILL)
    deadline = time.monotonic() + 10
    while other.sandbox.alive and time.monotonic() < deadline:
        time.sleep(0.05)
    after = host_facts(second)
    # Empty cgroup folders are all that may stay, until the next start.
    assert after | {"cgroups": []} == before

    other = up_with_a_pod()
    containers = other.exec(["ctr", "--namespace", "k8s.io", "containers", "ls", "-q"]).stdout.split()
    assert len(containers) == 2, "the new pod's sandbox and container, and none of the killed cluster's"
    other.down()
    assert host_facts(second) == before
