"""The manifest of ops/kubernetes for KubeRay: by KubeRay's own schema, its pods by Kubernetes', and beside
what the documents say."""

from __future__ import annotations

import json
import re
from copy import deepcopy
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
from jsonschema import Draft202012Validator, ValidationError
from kubernetes_validate.utils import resources_from_file

from tests.ops import containerfile

ROOT = Path(__file__).parents[2]
MANIFEST = ROOT / "ops/kubernetes/ray.yaml"
(CLUSTER,) = resources_from_file(str(MANIFEST))
SCHEMA: dict[str, Any] = json.loads(Path(__file__).with_name("raycluster.schema.json").read_text())
OPERATIONS = (ROOT / "docs/operations.md").read_text()
HEAD: dict[str, Any] = CLUSTER["spec"]["headGroupSpec"]
(WORKERS,) = CLUSTER["spec"]["workerGroupSpecs"]


def strict(schema: object) -> object:
    """Knows no other fields than it names, but for metadata and pods."""
    if isinstance(schema, list):
        return [strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {"additionalProperties": False} if "properties" in schema else {}
    return closed | {name: strict(each) for name, each in schema.items()}


def validate(cluster: dict[str, Any]) -> None:
    Draft202012Validator(strict(SCHEMA)).validate(cluster)


def test_kuberay_knows_every_field() -> None:
    validate(CLUSTER)


def test_fault_tolerance_is_as_the_comment_has_it(tmp_path: Path) -> None:
    tolerant = tmp_path / "ray.yaml"
    tolerant.write_text(re.sub(r"(?m)^  # (?=gcsFault| )", "  ", MANIFEST.read_text()))
    (cluster,) = resources_from_file(str(tolerant))
    assert cluster["spec"]["gcsFaultToleranceOptions"]["redisAddress"]
    validate(cluster)


def test_a_field_that_is_not_known_would_be_found() -> None:
    misspelt = deepcopy(CLUSTER)
    misspelt["spec"]["workerGroupSpecs"][0]["minReplica"] = 3
    with pytest.raises(ValidationError, match="minReplica"):
        validate(misspelt)


@pytest.mark.parametrize("version", ["1.25", "1.30", "1.37"])
@pytest.mark.parametrize("group", [HEAD, WORKERS], ids=["head", "workers"])
def test_kubernetes_knows_every_field_of_its_pods(group: dict[str, Any], version: str) -> None:
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "any"}, "spec": group["template"]["spec"]}
    assert kubernetes_validate.validate(pod, version, strict=True) == version


@pytest.mark.parametrize("group", [HEAD, WORKERS], ids=["head", "workers"])
def test_a_machine_that_stands_still_is_missed_as_soon_as_the_documents_say(group: dict[str, Any]) -> None:
    (container,) = group["template"]["spec"]["containers"]
    for each in container["env"]:
        assert f"{each['name']}={each['value']}" in OPERATIONS


@pytest.mark.parametrize("group", [HEAD, WORKERS], ids=["head", "workers"])
def test_a_machine_may_do_little(group: dict[str, Any]) -> None:
    pod = group["template"]["spec"]
    assert not pod["automountServiceAccountToken"]
    context = pod["securityContext"]
    user = containerfile.one(containerfile.stages()[-1], "USER").text
    assert f"{context['runAsUser']}:{context['runAsGroup']}" == user
    assert context["runAsNonRoot"]
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}
    (container,) = pod["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
    }


def test_its_ray_is_ours() -> None:
    assert f"\nray=={CLUSTER['spec']['rayVersion']}\n" in (ROOT / "requirements.lock").read_text()


def test_probes_ask_where_ray_listens() -> None:
    (worker,) = WORKERS["template"]["spec"]["containers"]
    (port,) = worker["ports"]
    assert str(port["containerPort"]) == WORKERS["rayStartParams"]["node-manager-port"]
    for group in (HEAD, WORKERS):
        (container,) = group["template"]["spec"]["containers"]
        names = {each["name"] for each in container["ports"]}
        assert {
            container[f"{probe}Probe"]["tcpSocket"]["port"] for probe in ("liveness", "readiness")
        } <= names


def test_the_documents_build_its_image_and_fill_its_secret() -> None:
    commands = OPERATIONS.partition("## Machines of Ray's on Kubernetes")[2].split("```")[1]
    (container,) = HEAD["template"]["spec"]["containers"]
    assert f"-t {container['image']} " in commands
    assert "--build-arg EXTRAS=grpc,otel,ray " in commands
    assert "EXTRAS=grpc,otel" in [each.text for each in containerfile.of(containerfile.stages()[0], "ARG")]
    (volume,) = HEAD["template"]["spec"]["volumes"]
    assert f"create secret generic {volume['secret']['secretName']} " in commands
    (mount,) = container["volumeMounts"]
    for file in ("models.toml", "token"):
        assert f"--from-file={file}" in commands
        assert f"{mount['mountPath']}/{file}" in commands
