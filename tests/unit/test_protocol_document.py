"""docs/protocol.md and midstream.protocol are one contract: what the types name, the document explains."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

from midstream import protocol
from realtime.stream.states import mermaid

DOCUMENT = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text()
PROSE = re.sub(r"```.*?```", "", DOCUMENT, flags=re.DOTALL)
NAMED = set(re.findall(r"[a-z_]+", " ".join(re.findall(r"`([^`]+)`", PROSE))))
KINDS = [*get_args(protocol.ClientFrame), *get_args(protocol.ServerEvent)]
PARTS = [
    protocol.Params,
    protocol.Grammar,
    protocol.Budget,
    protocol.Credit,
    protocol.Message,
    protocol.TokenLogprob,
    protocol.Usage,
    protocol.Timing,
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_frame_and_event_is_documented_with_all_its_fields(kind: type) -> None:
    names = {kind.__struct_config__.tag, *kind.__struct_fields__}  # type: ignore[attr-defined]
    assert names <= NAMED, names - NAMED


@pytest.mark.parametrize("kind", PARTS, ids=lambda kind: kind.__name__)
def test_so_is_what_they_are_made_of(kind: type) -> None:
    assert set(kind.__struct_fields__) <= NAMED  # type: ignore[attr-defined]


def test_every_error_stands_with_its_status() -> None:
    pairs = re.findall(r"\b(\d{3})`?(?: \|)?\s+`([a-z_]+)`", DOCUMENT)
    told = {(int(status), code) for status, code in pairs}
    assert {(status, code) for code, (status, _) in protocol.ERRORS.items()} <= told


def test_the_document_is_of_this_version() -> None:
    assert f"protocol, version {protocol.VERSION}" in DOCUMENT


def test_the_picture_of_a_streams_life_is_that_of_the_table() -> None:
    assert f"```mermaid\n{mermaid()}\n```" in DOCUMENT
