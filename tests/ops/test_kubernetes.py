"""The manifests of ops/kubernetes: by Kubernetes' own schemas, and beside what the server does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
from kubernetes_validate.utils import resources_from_file

from realtime.config import parse
from tests.ops import containerfile
from tests.ops.shutdown import longest_s

ROOT = Path(__file__).parents[2]
MANIFESTS = ROOT / "ops/kubernetes/midstream.yaml"
OPERATIONS = (ROOT / "docs/operations.md").read_text()
RESOURCES: dict[str, dict[str, Any]] = {each["kind"]: each for each in resources_from_file(str(MANIFESTS))}
POD: dict[str, Any] = RESOURCES["Deployment"]["spec"]["template"]
SPEC: dict[str, Any] = POD["spec"]
(CONTAINER,) = SPEC["containers"]
FINAL = containerfile.stages()[-1]


def environment() -> dict[str, str]:
    """What the server's process has, but for what only a cluster knows."""
    ours = {each["name"]: each["value"] for each in CONTAINER["env"] if "value" in each}
    return containerfile.environment(FINAL) | ours


def mounted() -> dict[str, dict[str, Any]]:
    """The volume at each path."""
    volumes = {each["name"]: each for each in SPEC["volumes"]}
    return {each["mountPath"]: volumes[each["name"]] | each for each in CONTAINER["volumeMounts"]}


@pytest.mark.parametrize("version", ["1.25", "1.30", "1.37"])
@pytest.mark.parametrize("kind", sorted(RESOURCES))
def test_kubernetes_knows_every_field(kind: str, version: str) -> None:
    assert kubernetes_validate.validate(RESOURCES[kind], version, strict=True) == version


def test_a_field_that_is_not_known_would_be_found() -> None:
    misspelt = RESOURCES["Service"] | {"spec": {"sessionAfinity": "ClientIP"}}
    with pytest.raises(kubernetes_validate.ValidationError, match="sessionAfinity"):
        kubernetes_validate.validate(misspelt, "1.37", strict=True)


def test_the_service_finds_the_pods() -> None:
    labels = POD["metadata"]["labels"].items()
    assert RESOURCES["Service"]["spec"]["selector"].items() <= labels
    assert RESOURCES["Deployment"]["spec"]["selector"]["matchLabels"].items() <= labels
    (port,) = CONTAINER["ports"]
    assert port["containerPort"] == parse([], environment()).port
    assert RESOURCES["Service"]["spec"]["ports"][0]["targetPort"] == port["name"]


def test_an_end_is_waited_for() -> None:
    before_s = float(CONTAINER["lifecycle"]["preStop"]["exec"]["command"][1])
    assert SPEC["terminationGracePeriodSeconds"] == before_s + longest_s(environment())


def test_a_pod_may_do_little() -> None:
    assert SPEC["securityContext"]["runAsNonRoot"]
    assert SPEC["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not SPEC["automountServiceAccountToken"]
    context = CONTAINER["securityContext"]
    assert context["capabilities"] == {"drop": ["ALL"]}
    assert context["readOnlyRootFilesystem"]
    assert not context["allowPrivilegeEscalation"]


def test_its_user_is_the_images_and_may_write_to_its_cache_and_nowhere_else() -> None:
    context = SPEC["securityContext"]
    assert f"{context['runAsUser']}:{context['runAsGroup']}" == containerfile.one(FINAL, "USER").text
    assert context["fsGroup"] == context["runAsGroup"]
    writable = {path for path, volume in mounted().items() if "emptyDir" in volume}
    assert writable == {containerfile.one(FINAL, "VOLUME").text, "/tmp"}
    assert all("sizeLimit" in mounted()[path]["emptyDir"] for path in writable)


def test_its_keys_are_a_secret_that_can_change_while_it_runs() -> None:
    file = Path(parse([], environment()).keys_file)
    keys = mounted()[str(file.parent)]
    assert keys["readOnly"]
    assert "subPath" not in keys, "which is never brought up to date"
    assert f"create secret generic {keys['secret']['secretName']} --from-file={file.name}" in OPERATIONS


def test_a_name_of_the_service_sets_no_option() -> None:
    """Kubernetes would set MIDSTREAM_PORT to `tcp://…` for a service that is called `midstream`."""
    with pytest.raises(SystemExit):
        parse([], environment() | {"MIDSTREAM_PORT": "tcp://10.0.0.1:80"})
    assert SPEC["enableServiceLinks"] is False


@pytest.mark.parametrize(
    ("probe", "path"), [("startup", "/healthz"), ("liveness", "/healthz"), ("readiness", "/readyz")]
)
def test_probes_ask_what_the_documents_name(probe: str, path: str) -> None:
    assert CONTAINER[f"{probe}Probe"]["httpGet"] == {"path": path, "port": "http"}
    assert f"`GET {path}`" in OPERATIONS


def test_the_processors_are_the_pods() -> None:
    (threads,) = (each for each in CONTAINER["env"] if each["name"] == "MIDSTREAM_THREADS")
    assert threads["valueFrom"] == {"resourceFieldRef": {"resource": "requests.cpu"}}
    assert parse([], environment() | {threads["name"]: CONTAINER["resources"]["requests"]["cpu"]}).threads
    assert "memory" in CONTAINER["resources"]["limits"], "from which the size of the KV cache follows"
