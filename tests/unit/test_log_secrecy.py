"""What fails says so in the log without what it failed on: that is somebody's text."""

from __future__ import annotations

import pytest

from midstream import protocol
from realtime.hub import hub, long_texts
from realtime.text.chat_template import ChatTemplate, TextError
from tests.fakes.checking_client import Reader
from tests.fakes.simulated_server import EngineSize, SimulatedServer

CANARY = "CANARY"


async def test_a_failure_that_quotes_the_text_is_logged_without_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(frame: protocol.Start, *_: object) -> None:
        raise ValueError(frame.prompt)

    monkeypatch.setattr(long_texts, "tokenize", fail)
    server = SimulatedServer(EngineSize(kv_tokens=4096, block=16, step_tokens=4096))
    reader = Reader(server)
    reader.send(protocol.Start(request_id="a", prompt=CANARY * hub.LONG_TEXT))
    await server.hub.wait_until_empty()
    (error,) = reader.errors
    assert error.code == "engine_error"
    assert CANARY not in error.message
    assert "failed to tokenize this frame's text: ValueError in" in caplog.text
    assert CANARY not in caplog.text


class PanicError(BaseException):
    """As a library of another language raises it."""


@pytest.mark.parametrize("where", ["tokenize", "act"])
async def test_whatever_fails_is_answered_and_so_is_what_waits_behind_it(
    where: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise PanicError(CANARY) if where == "tokenize" else ValueError(CANARY)

    server = SimulatedServer(EngineSize(kv_tokens=4096, block=16, step_tokens=4096))
    if where == "tokenize":
        monkeypatch.setattr(long_texts, "tokenize", fail)
    else:
        monkeypatch.setattr(server.hub, "_start", fail)
    reader = Reader(server)
    reader.send(protocol.Start(request_id="a", prompt=CANARY * hub.LONG_TEXT))
    reader.send(protocol.Pause(request_id="a"))
    await server.hub.wait_until_empty()
    assert [error.code for error in reader.errors] == ["engine_error", "unknown_request"]
    assert f"failed to {where}" in caplog.text
    assert CANARY not in caplog.text


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ raise_exception.__globals__['datetime'] }}",
        "{{ messages.append({}) }}",
        "{% for n in range(10 ** 9) %}{% endfor %}",
    ],
)
def test_a_chat_template_reaches_nothing_beyond_its_messages(source: str) -> None:
    messages = [{"role": "user", "content": CANARY}]
    with pytest.raises(TextError) as caught:
        ChatTemplate(source, {}).render(messages, add_generation_prompt=True)
    assert CANARY not in str(caught.value)
    assert messages == [{"role": "user", "content": CANARY}]
