"""What `/openapi.json` says of the HTTP doors is what they do: requests are made from it, and answered so."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from openapi_spec_validator import OpenAPIV31SpecValidator
from schemathesis import Case, GenerationMode, Response
from schemathesis.checks import CHECKS, load_all_checks
from schemathesis.core.failures import FailureGroup

from midstream import protocol
from realtime.http.openapi.document import document
from tests.server.keyed_server import Keyed
from tests.server.server_process import PATIENCE_S, Served
from tests.unit.test_access import DECISIONS

EXAMPLES = 20
BOUNDED = ("--context", "128", "--shutdown-grace-s", "0")  # whatever is asked for, it is soon over

load_all_checks()
# The document cannot say all that a request may be refused for, nor what nulls and fields are forgiven.
NOT_SAID: Any = CHECKS.get_by_names(["positive_data_acceptance", "negative_data_rejection"])


def operations(said: dict[str, Any]) -> dict[str, Any]:
    every_event = schemathesis.Config.from_dict({"max-stream-events": 1000})
    schema = schemathesis.openapi.from_dict(said, config=every_event)
    found: Any = [result.ok() for result in schema.get_all_operations()]  # type: ignore[union-attr]
    return {operation.definition.raw["operationId"]: operation for operation in found}


DOCUMENT = document(protocol.VERSION)
OPERATIONS = operations(DOCUMENT)
ASKED_FOR = [name for name, asked in OPERATIONS.items() if [*asked.iter_parameters(), *asked.body]]


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Keyed]:
    keyed = Keyed(tmp_path_factory.mktemp("keys"), *BOUNDED)
    try:
        yield keyed
        keyed.served.tell()
        assert keyed.served.ended() == 0, keyed.served.log()
        assert "Traceback" not in keyed.served.log()
    finally:
        keyed.served.end()


def answered(keyed: Keyed, case: Case[Any], key: str | None = None) -> Response:
    """What is answered, once it was held against the document."""
    headers = {"Authorization": f"Bearer {key or keyed.admin}"}
    return case.call_and_validate(
        keyed.served.http, headers=headers, excluded_checks=NOT_SAID, timeout=PATIENCE_S
    )


def events(response: Response) -> list[dict[str, Any]]:
    lines = [line.removeprefix("data: ") for line in response.text.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


# -- the document ----------------------------------------------------------------------------------


def test_the_document_that_is_served_is_valid(shared: Served) -> None:
    status, text = shared.get("/openapi.json")
    assert (status, json.loads(text)) == (200, DOCUMENT)
    assert list(OpenAPIV31SpecValidator(DOCUMENT).iter_errors()) == []


def test_a_document_that_is_not_valid_is_found_out() -> None:
    broken = {"openapi": "3.1.0", "info": {"title": "no version"}, "paths": {}}
    assert "version" in str(list(OpenAPIV31SpecValidator(broken).iter_errors()))


def test_every_door_over_http_is_in_it() -> None:
    doors = {re.sub(r":\w+}", "}", path) for path in DECISIONS}
    assert doors - {"/v1/realtime", "/sdk/{path}", "/{path}"} == DOCUMENT["paths"].keys()


# What no request brings about: a task has died, much waits, no engine has come yet.
IN_TROUBLE = {
    **dict.fromkeys(["health", "model", "changeModel", "client_secret"], "503"),
    **dict.fromkeys(["streams", "metrics"], "429"),
}


@pytest.mark.parametrize(("name", "status"), IN_TROUBLE.items())
def test_what_a_server_in_trouble_answers_is_in_it(name: str, status: str) -> None:
    assert status in OPERATIONS[name].definition.raw["responses"]


# -- requests that are made from it ----------------------------------------------------------------


def statuses(keyed: Keyed, name: str, mode: GenerationMode) -> set[int]:
    """Of the answers to requests that are made from the document."""
    seen = set()

    @settings(
        max_examples=EXAMPLES,
        derandomize=True,
        database=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )
    @given(case=OPERATIONS[name].as_strategy(mode))
    def ask(case: Case[Any]) -> None:
        seen.add(answered(keyed, case).status_code)

    ask()
    return seen


@pytest.mark.parametrize("name", OPERATIONS)
def test_what_the_document_allows_is_answered_as_it_says(keyed: Keyed, name: str) -> None:
    assert statuses(keyed, name, GenerationMode.POSITIVE)


@pytest.mark.parametrize("name", ASKED_FOR)
def test_what_the_document_does_not_allow_is_refused_as_it_says(keyed: Keyed, name: str) -> None:
    assert statuses(keyed, name, GenerationMode.NEGATIVE) & {400, 401, 404, 405}


# -- requests that have something to tell ----------------------------------------------------------

ASKED: dict[str, dict[str, Any]] = {
    "chat": {"messages": [{"role": "user", "content": "Hello"}], "logprobs": True, "top_logprobs": 2},
    "complete": {"prompt": ["Hello", "Goodbye"], "logprobs": 2},
}
SHORT = {"max_tokens": 8, "n": 2}
STREAM = {"stream": True, "stream_options": {"include_usage": True}}


@pytest.mark.parametrize("name", ASKED)
@pytest.mark.parametrize("stream", [{}, STREAM])
def test_an_answer_is_whole_or_in_chunks(keyed: Keyed, name: str, stream: dict[str, Any]) -> None:
    response = answered(keyed, OPERATIONS[name].Case(body=ASKED[name] | SHORT | stream))
    told = events(response) if stream else [response.json()]
    assert any(choice["logprobs"] for said in told for choice in said["choices"])
    assert told[-1]["usage"]["completion_tokens"] > 0


def test_a_stream_is_followed_to_its_end_and_steered(keyed: Keyed) -> None:
    path = {"request_id": "a b/é"}
    body = {"prompt": "Hello", "max_tokens": 8} | path
    answered(keyed, OPERATIONS["complete"].Case(body=body))
    told = events(answered(keyed, OPERATIONS["follow"].Case(path_parameters=path)))
    assert [event["type"] for event in told] == ["snapshot", "final", "attached"]
    last = {"Last-Event-ID": str(told[1]["seq"])}
    assert answered(keyed, OPERATIONS["follow"].Case(path_parameters=path, headers=last)).status_code == 204
    late = OPERATIONS["control"].Case(path_parameters=path, body={"type": "pause"})
    assert answered(keyed, late).status_code == 409


def test_who_may_not_and_who_must_wait_is_told_so(keyed: Keyed) -> None:
    assert answered(keyed, OPERATIONS["metrics"].Case(), keyed.poor).status_code == 403
    ask = OPERATIONS["chat"].Case(body=ASKED["chat"] | {"max_tokens": 8})
    assert answered(keyed, ask, keyed.poor).status_code == 200
    assert answered(keyed, ask, keyed.poor).status_code == 429


# -- and what would be found out -------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["Completion", "TextChoice"])
def test_an_answer_that_is_not_as_the_document_says_is_found_out(keyed: Keyed, kind: str) -> None:
    wrong = document(protocol.VERSION)
    wrong["components"]["schemas"][kind]["required"].append("nonsense")
    case = operations(wrong)["complete"].Case(body=ASKED["complete"] | SHORT)
    with pytest.raises(FailureGroup, match="nonsense"):
        answered(keyed, case)
