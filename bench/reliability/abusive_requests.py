"""Abusive requests over HTTP: valid ones and refused ones, made as dear to the server as they may be.

It knows what the API allows, and nothing of who sends it or what that costs.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from bench.reliability.abusive_frames import CALLING, FOUND, KINDS, guarded_start, schema

MOST_CHOICES, MOST_MESSAGES, BODY_BYTES = 128, 4_096, 1 << 20


class AbusiveRequest(NamedTuple):
    method: str
    path: str
    body: bytes = b""

    def encoded(self, host: str) -> bytes:
        head = f"{self.method} {self.path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n"
        return f"{head}Content-Length: {len(self.body)}\r\n\r\n".encode() + self.body


def _texts(**asked: Any) -> AbusiveRequest:
    return AbusiveRequest("POST", "/v1/completions", json.dumps(asked).encode())


def _chats(messages: list[dict[str, str]], **asked: Any) -> AbusiveRequest:
    return AbusiveRequest(
        "POST", "/v1/chat/completions", json.dumps({"messages": messages, **asked}).encode()
    )


LONG: dict[str, Any] = {"max_tokens": 4_000, "ignore_eos": True}
REQUESTS: dict[str, AbusiveRequest] = {
    "many prompts": _texts(prompt=["a" * 1_900] * MOST_CHOICES, max_tokens=1),
    "many choices": _texts(prompt="a", n=MOST_CHOICES, max_tokens=1),
    "many long choices": _texts(prompt="a", n=MOST_CHOICES, **LONG),
    "log probabilities, whole": _chats(
        [{"role": "user", "content": "a"}], logprobs=True, top_logprobs=20, **LONG
    ),
    "log probabilities, streamed": _texts(prompt="a", logprobs=20, stream=True, **LONG),
    "many messages": _chats([{"role": "user", "content": "a" * 200}] * MOST_MESSAGES),
    "a field that is wrong behind many that are right": _chats(
        [{"role": "user", "content": "a" * 150}] * (MOST_MESSAGES - 1) + [{"role": "nobody", "content": ""}]
    ),
    "empty lists": AbusiveRequest(
        "POST", "/v1/completions", b'{"prompt":[' + b"[]," * (BODY_BYTES // 3 - 10) + b"[]]}"
    ),
    "what is no JSON in the end": AbusiveRequest(
        "POST", "/v1/completions", b'{"prompt":[' + b"1," * (BODY_BYTES // 2 - 10)
    ),
    "tools": _chats([{"role": "user", "content": "a"}], **LONG, tools=CALLING["tools"]),
    "a schema": _chats(
        [{"role": "user", "content": "a"}],
        **LONG,
        response_format={"type": "json_schema", "json_schema": {"name": "a", "schema": schema(0)}},
    ),
    "guards, streamed": _texts(prompt="a", stream=True, **guarded_start(FOUND)["params"]),
    "a frame for nobody": AbusiveRequest(
        "POST", "/v1/streams/nobody/control", json.dumps(KINDS["adjust the stops"]).encode()
    ),
    "a model's loading": AbusiveRequest("POST", "/v1/models/toy", b'{"do": "load"}'),
    "the models": AbusiveRequest("GET", "/v1/models"),
    "the list of streams": AbusiveRequest("GET", "/v1/streams?limit=1000"),
}
