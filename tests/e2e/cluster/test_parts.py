"""What goes over the supervisor's socket."""

from __future__ import annotations

import json
import socket
import threading
from pathlib import Path

import pytest

from e2e.cluster.footprint import Footprint, difference
from e2e.cluster.kuberay import manifests
from e2e.cluster.parts import Part, PartState, SupervisorError, request, socket_address


def test_a_part_survives_the_wire() -> None:
    part = Part("etcd", ("etcd", "--x"), {"A": "b"}, "/tmp", 2.5, (3, 4))
    assert Part.from_wire(json.loads(json.dumps(part.to_wire()))) == part


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (PartState("p", 1, True), "running"),
        (PartState("p", 1, True, paused=True), "paused"),
        (PartState("p", 1, False, exit_status=2), "exited 2"),
        (PartState("p", 1, False, exit_status=-9), "killed by signal 9"),
    ],
)
def test_a_state_is_told_in_words(state: PartState, words: str) -> None:
    assert state.describe() == words


def answer_once(folder: Path, answer: bytes) -> threading.Thread:
    with socket_address(folder) as address:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(address)
        listener.listen()

    def serve() -> None:
        with listener, listener.accept()[0] as connection:
            connection.recv(4096)
            connection.sendall(answer)

    thread = threading.Thread(target=serve)
    thread.start()
    return thread


@pytest.mark.parametrize("depth", [1, 40])
def test_the_socket_works_however_deep_its_folder_lies(tmp_path: Path, depth: int) -> None:
    folder = tmp_path.joinpath(*["folder"] * depth)
    folder.mkdir(parents=True)
    thread = answer_once(folder, b'{"result": 5}\n')
    assert request(folder, 5.0, {"op": "x"}) == 5
    thread.join()


@pytest.mark.parametrize(
    ("answer", "words"), [(b'{"error": "ValueError: no part"}\n', "ValueError: no part"), (b"", "closed before it answered 'x'")]
)
def test_a_refusal_and_a_silent_end_are_errors(tmp_path: Path, answer: bytes, words: str) -> None:
    thread = answer_once(tmp_path, answer)
    with pytest.raises(SupervisorError, match=words):
        request(tmp_path, 5.0, {"op": "x"})
    thread.join()


def test_a_difference_names_what_is_new_and_what_is_gone() -> None:
    nothing: frozenset[str] = frozenset()
    before = Footprint(nothing, nothing, frozenset({"/a"}), nothing, nothing, nothing, nothing, nothing)
    after = Footprint(frozenset({"7 etcd"}), nothing, frozenset({"/b"}), nothing, nothing, nothing, nothing, nothing)
    assert difference(before, before) == []
    assert difference(before, after) == ["processes: new: 7 etcd", "mounts: new: /b", "mounts: gone: /a"]


def test_kuberays_own_role_is_bound_to_its_account(tmp_path: Path) -> None:
    bases = tmp_path / "config" / "crd" / "bases"
    bases.mkdir(parents=True)
    for name in ("rayclusters", "rayjobs", "rayservices", "raycronjobs"):
        (bases / f"ray.io_{name}.yaml").write_text(f"kind: {name}\n")
    (tmp_path / "config" / "rbac").mkdir()
    (tmp_path / "config" / "rbac" / "role.yaml").write_text("metadata: {name: some-role}\n")
    found = dict(manifests(tmp_path))
    binding = json.loads(found["/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/kuberay-operator"])
    assert binding["roleRef"]["name"] == "some-role"
    assert "/apis/rbac.authorization.k8s.io/v1/clusterroles/some-role" in found
