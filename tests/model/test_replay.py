"""A record of the default model, replayed on servers that were started anew."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from msgspec.structs import replace

import midstream
from engine.model.default_model import DEFAULT_MODEL
from midstream.record_format import Record
from tests.server.server_process import Served

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

QUESTION = [{"role": "user", "content": "Tell me about a river that you like, and why."}]


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    """Another server than that of the record."""
    server = Served(model=DEFAULT_MODEL)
    yield server
    server.end()


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Record:
    """A stream at temperature 1 that was steered in every way."""
    file = tmp_path_factory.mktemp("records") / "steered.jsonl"
    server = Served(model=DEFAULT_MODEL)
    try:
        with midstream.sync.connect(server.http) as client, client.record(file):
            steer(client)
    finally:
        server.end()
    (record,) = midstream.read_records(file)
    return record


def steer(client: midstream.sync.Client) -> None:
    stream = client.start(
        messages=QUESTION, temperature=1.0, seed=3, max_tokens=80, window=8, ignore_eos=True
    )
    read_to(stream, 15)
    stream.adjust(temperature=0.7, top_p=0.9)
    read_to(stream, 25)
    stream.pause(kv="release")
    stream.inject(text=" But", at=22)
    stream.resume()
    read_to(stream, 40)
    stream.rewind(30)
    stream.adjust(seed=4, repetition_penalty=1.2)
    read_to(stream, 50)
    stream.inject(messages=[{"role": "user", "content": "Why?"}])
    while stream.next() is not None:
        pass


def read_to(stream: midstream.sync.Stream, index: int) -> None:
    while stream.consumed < index:
        stream.next()


def test_on_a_server_that_was_started_anew_the_same_comes_with_the_same_fingerprint(
    served: Served, record: Record
) -> None:
    with midstream.sync.connect(served.http) as client:
        for _ in range(2):
            replay = client.replay(record)
            assert (replay.difference, replay.same_fingerprint) == (None, True)
        assert replay.tokens >= 80


def test_a_fork_with_its_streams_seed_is_that_stream_and_goes_on_as_it_would_have(served: Served) -> None:
    """While it runs, in a crowd of other forks, and when it has ended."""
    with midstream.sync.connect(served.http) as client:
        stream = client.start(
            messages=QUESTION, temperature=1.0, top_p=0.95, seed=3, max_tokens=70, window=8, ignore_eos=True
        )
        read_to(stream, 30)
        same = client.fork(stream, at=29, seed=3)
        others = [client.fork(stream, at=17) for _ in range(3)]
        for one in (*others, same, stream):
            read_to(one, 70)
        after = client.fork(stream, at=50, seed=3)
        read_to(after, 70)
        assert same.text == after.text == stream.text
        assert len({one.text for one in (*others, stream)}) == 4


def test_another_seed_is_told_from_the_record_by_its_first_token_and_both_log_probabilities(
    served: Served, record: Record
) -> None:
    other = Record(replace(record.start, params=replace(record.start.params, seed=5)), record.lines)
    with midstream.sync.connect(served.http) as client:
        difference = client.replay(other).difference
    assert difference is not None
    assert difference.recorded is not None
    assert difference.replayed is not None
    assert difference.recorded.logprob is not None
    assert difference.replayed.logprob is not None
