"""A stream from `start` to `final`: what every parameter of a start does to what is told of it."""

from __future__ import annotations

import pytest

from tests.server.independent_client import Client, Stream, client_of
from tests.server.server_process import Served

LONG = {"ignore_eos": True, "temperature": 0}
EMOJI = chr(0x1F642)


def token_events(stream: Stream) -> list[dict]:  # type: ignore[type-arg]
    return [event for event in stream.events if event["type"] == "token"]


async def test_a_whole_exchange(client: Client) -> None:
    stream = await client.start(
        "whole",
        messages=[{"role": "user", "content": "Hello"}],
        params={"max_tokens": 12, "ignore_eos": True},
        ref="r1",
    )
    started = stream.events[0]
    assert (started["ref"], started["model"], started["request_id"]) == ("r1", "toy", "whole")
    assert set(started["params"]) == {
        *("temperature", "top_p", "top_k", "min_p", "max_tokens", "stop", "seed", "repetition_penalty"),
        *("presence_penalty", "frequency_penalty", "logit_bias", "logprobs", "ignore_eos", "min_tokens"),
        *("grammar", "reasoning_tokens", "guards"),
    }
    assert started["params"]["max_tokens"] == 12
    final = await stream.rest()
    prompt = started["prompt_tokens"]
    assert final["usage"] == {
        "prompt_tokens": prompt,
        "completion_tokens": 12,
        "total_tokens": prompt + 12,
        "cached_tokens": final["usage"]["cached_tokens"],
        "injected_tokens": 0,
        "discarded_tokens": 0,
        "forced_tokens": 0,
        "reasoning_tokens": 0,
        "inherited_tokens": 0,
    }
    assert set(final["timing"]) == {"queue_ms", "ttft_ms", "total_ms", "paused_ms", "tokens_per_s"}
    assert 0 <= final["timing"]["queue_ms"] <= final["timing"]["ttft_ms"] <= final["timing"]["total_ms"]
    assert (final["index"], final["finish_reason"]) == (12, "length")
    assert sum(event["count"] for event in token_events(stream)) == 12
    assert stream.text


async def test_a_prompt_may_be_tokens(client: Client) -> None:
    texts = []
    for name, prompt in (("as text", "Hello"), ("as tokens", list(b"Hello"))):
        stream = await client.start(name, prompt=prompt, params=LONG | {"max_tokens": 20})
        await stream.rest()
        texts.append((stream.text, stream.events[0]["prompt_tokens"]))
    assert texts[0] == texts[1]


async def test_without_a_seed_one_is_told_and_replays_the_stream(client: Client) -> None:
    params = {"max_tokens": 30, "temperature": 1.5}
    first = await client.start("first", params=params)
    await first.rest()
    seed = first.events[0]["params"]["seed"]
    again = await client.start("again", params=params | {"seed": seed})
    await again.rest()
    other = await client.start("other", params=params | {"seed": seed + 1})
    await other.rest()
    assert again.text == first.text != other.text


async def test_an_end_token_ends_it(client: Client) -> None:
    stream = await client.start("eos", params={"temperature": 0, "logit_bias": {"463": 100}})
    final = await stream.rest()
    assert (final["finish_reason"], final["stop_reason"], stream.text) == ("stop", "eos", "")


async def test_min_tokens_keep_the_end_token_away(client: Client) -> None:
    params = {"temperature": 0, "logit_bias": {"463": 100}, "min_tokens": 7}
    stream = await client.start("least", params=params)
    assert (await stream.rest())["usage"]["completion_tokens"] == 8


async def test_an_interval_groups_tokens_and_the_last_event_has_the_rest(client: Client) -> None:
    stream = await client.start(
        "grouped", stream_interval=8, params=LONG | {"max_tokens": 50}, return_tokens=True
    )
    await stream.rest()
    counts = [event["count"] for event in token_events(stream) if event["count"]]
    assert all(count % 8 == 0 for count in counts[:-1])
    assert counts[-1] % 8 == 2
    assert sum(counts) == 50
    assert all(len(event["tokens"]) == event["count"] for event in token_events(stream))


async def test_deltas_are_whole_characters_whatever_the_tokens_are(client: Client) -> None:
    stream = await client.start("emoji", params=LONG | {"max_tokens": 600}, return_tokens=True)
    await stream.rest()
    assert stream.tokens.count(0xF0) > 0, "the toy says emoji, four tokens each"
    assert "\ufffd" not in "".join(event["delta"] for event in token_events(stream)).rstrip("\ufffd")
    assert stream.text.count(EMOJI) == stream.tokens.count(0x82)


async def test_held_back_bytes_come_in_an_event_of_no_tokens_before_the_final(client: Client) -> None:
    likely = {str(0xF0): 55}  # the first of an emoji's four tokens, before any word
    stream = await client.start("cut", params=LONG | {"logit_bias": likely}, credit={"limit": 1})
    await stream.until_index(1)
    await stream.send("cancel")
    await stream.rest()
    told = [(event["index"], event["count"], event["delta"]) for event in token_events(stream)]
    assert told == [(0, 1, ""), (1, 0, "\ufffd")]


async def test_log_probabilities_stand_beside_their_tokens(client: Client) -> None:
    stream = await client.start("sure", params=LONG | {"max_tokens": 5, "logprobs": 3}, return_tokens=True)
    await stream.rest()
    told = [entry for event in token_events(stream) for entry in event["logprobs"]]
    assert [entry["token"] for entry in told] == stream.tokens
    for entry in told:
        assert len(entry["top"]) == 3
        assert entry["top"][0] == [entry["token"], entry["logprob"]], "greedy takes the most likely"
        assert entry["logprob"] <= 0


async def test_no_part_of_a_stop_string_is_sent(client: Client) -> None:
    plain = await client.start("plain", params=LONG | {"max_tokens": 40})
    await plain.rest()
    stop = plain.text[60:71]  # begins and ends wherever it may among the tokens
    stream = await client.start("stopped", params=LONG | {"max_tokens": 40, "stop": ["never said", stop]})
    final = await stream.rest()
    assert (final["finish_reason"], final["stop_reason"]) == ("stop", stop)
    assert stream.text == plain.text[: plain.text.index(stop)]


async def test_a_timeout_ends_it_as_its_length(client: Client) -> None:
    stream = await client.start("late", timeout_ms=1, credit={"limit": 3}, params=LONG)
    final = await stream.rest()
    assert (final["finish_reason"], final["stop_reason"]) == ("length", "timeout")


@pytest.mark.parametrize("priority", [-8, 0, 8])
async def test_priorities_are_taken(client: Client, priority: int) -> None:
    stream = await client.start("ranked", priority=priority, params=LONG | {"max_tokens": 3})
    assert (await stream.rest())["index"] == 3


async def test_unknown_fields_are_ignored(client: Client) -> None:
    stream = await client.start(
        "new", colour="blue", params=LONG | {"max_tokens": 3, "mood": 1}, credit={"limit": 9, "x": {}}
    )
    assert "mood" not in stream.events[0]["params"]
    assert (await stream.rest())["index"] == 3


async def test_a_finished_id_may_be_used_again(client: Client) -> None:
    for _ in range(2):
        stream = await client.start("phoenix", params=LONG | {"max_tokens": 3})
        assert (await stream.rest())["index"] == 3


async def test_a_prompt_that_was_seen_is_taken_from_the_cache(server: Served) -> None:
    prompt = list(range(100, 170))
    cached = []
    for name in ("cold", "warm"):
        async with client_of(server.url) as client:
            stream = await client.start(name, prompt=prompt, params=LONG | {"max_tokens": 3})
            cached.append((await stream.rest())["usage"]["cached_tokens"])
    assert cached == [0, 64], "whole blocks of 16"
