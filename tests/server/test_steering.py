"""Steering a stream while it runs: every answer says the index at which it took effect, and is true."""

from __future__ import annotations

import pytest

from tests.server.independent_client import Client, Stream
from tests.server.server_process import Served, streams

LONG = {"ignore_eos": True, "temperature": 0}


async def at(client: Client, request_id: str, index: int, **fields: object) -> Stream:
    """A stream that has exactly so many tokens out, and more when it is granted them."""
    params = {"params": LONG, "return_tokens": True, "credit": {"limit": index}} | fields
    stream = await client.start(request_id, **params)
    await stream.until_index(index)
    return stream


async def test_a_paused_stream_goes_on_where_it_stood(server: Served, client: Client) -> None:
    plain = await at(client, "plain", 60)
    stream = await client.start("paused", params=LONG, return_tokens=True, credit={"limit": 60})
    paused = await stream.ask("pause", "paused", ref="stop")
    assert (paused["reason"], paused["ref"]) == ("client", "stop")
    await server.until(lambda now: streams(now, "paused") == 1)
    await client.roundtrip()
    assert client.heard("paused") == []
    resumed = await stream.ask("resume", "resumed", ref="go")
    assert (resumed["index"], resumed["ref"]) == (paused["index"], "go")
    assert resumed["recomputed_tokens"] == 0
    await stream.until_index(60)
    assert stream.text == plain.text
    await stream.send("cancel")
    assert (await stream.rest())["timing"]["paused_ms"] > 0


async def test_a_released_cache_is_rebuilt_and_says_the_same(client: Client) -> None:
    plain = await at(client, "plain", 80)
    stream = await at(client, "released", 40)
    await stream.ask("pause", "paused", kv="release")
    resumed = await stream.ask("resume", "resumed")
    assert resumed["recomputed_tokens"] > 0
    await stream.send("credit", limit=80)
    await stream.until_index(80)
    assert stream.tokens == plain.tokens


async def test_pausing_and_resuming_again_is_answered_again(client: Client) -> None:
    stream = await at(client, "twice", 5)
    for kind, answer in (
        ("resume", "resumed"),
        ("pause", "paused"),
        ("pause", "paused"),
        ("resume", "resumed"),
    ):
        assert (await stream.ask(kind, answer))["index"] == 5


async def test_adjusted_says_the_first_token_of_the_new_parameters(client: Client) -> None:
    stream = await client.start("louder", params=LONG, return_tokens=True, credit={"limit": 200})
    await stream.until_index(5)
    adjusted = await stream.ask("adjust", "adjusted", params={"logit_bias": {"300": 100}}, ref="a")
    assert adjusted["ref"] == "a"
    assert adjusted["params"]["logit_bias"] in ({"300": 100}, {300: 100})
    assert adjusted["params"]["ignore_eos"] is True, "what was not named stays"
    index = adjusted["index"]
    await stream.send("credit", limit=index + 20)
    await stream.until_index(index + 20)
    assert set(stream.tokens[index:]) == {300}
    assert set(stream.tokens[:index]) != {300}


async def test_max_tokens_may_be_adjusted_to_end_it(client: Client) -> None:
    stream = await at(client, "enough", 10)
    await stream.ask("adjust", "adjusted", params={"max_tokens": 10})
    assert (await stream.rest())["finish_reason"] == "length"


@pytest.mark.parametrize(
    "content",
    [
        {"text": "But then"},
        {"tokens": [66, 117, 116]},
        {"messages": [{"role": "user", "content": "And then?"}]},
    ],
    ids=["text", "tokens", "messages"],
)
async def test_an_injection_is_context_and_no_output(client: Client, content: dict[str, object]) -> None:
    plain = await at(client, "plain", 30)
    stream = await at(client, "told", 10)
    injected = await stream.ask("inject", "injected", ref="i", **content)
    assert (injected["index"], injected["ref"]) == (10, "i")
    assert injected["count"] > 0
    await stream.send("credit", limit=30)
    await stream.until_index(30)
    assert stream.tokens[:10] == plain.tokens[:10]
    assert stream.tokens[10:] != plain.tokens[10:], "what follows was chosen in another context"
    await stream.send("cancel")
    usage = (await stream.rest())["usage"]
    assert (usage["completion_tokens"], usage["injected_tokens"]) == (30, injected["count"])


async def test_what_is_rewound_is_void_and_comes_again(client: Client) -> None:
    stream = await at(client, "again", 30)
    text, tokens = stream.text, stream.tokens
    rewound = await stream.ask("rewind", "rewound", to=12, ref="back")
    assert (rewound["index"], rewound["ref"]) == (12, "back")
    assert rewound["text_length"] == len(stream.text)
    assert text.startswith(stream.text)
    await stream.until_index(30)  # the old credit still stands
    assert (stream.text, stream.tokens) == (text, tokens)
    await stream.send("cancel")
    assert (await stream.rest())["usage"]["discarded_tokens"] == 18


async def test_the_length_of_a_rewound_text_counts_code_points(client: Client) -> None:
    likely = {str(0xF0): 55}  # the first of an emoji's four tokens, before any word
    stream = await at(client, "smile", 8, params=LONG | {"logit_bias": likely})
    assert stream.tokens == [0xF0, 0x9F, 0x99, 0x82] * 2
    assert stream.text == chr(0x1F642) * 2
    assert (await stream.ask("rewind", "rewound", to=6))["text_length"] == 1
    await stream.until_index(8)
    assert stream.text == chr(0x1F642) * 2


async def test_a_rewind_takes_back_the_injections_behind_it(client: Client) -> None:
    plain = await at(client, "plain", 20)
    stream = await at(client, "unsaid", 10)
    await stream.ask("inject", "injected", text="Never mind")
    await stream.ask("rewind", "rewound", to=5)
    await stream.send("credit", limit=20)
    await stream.until_index(20)
    assert stream.tokens == plain.tokens


async def test_at_steers_from_what_was_read(client: Client) -> None:
    stream = await at(client, "from here", 20)
    await stream.send("adjust", at=8, params={"logit_bias": {"300": 100}}, ref="both")
    rewound = await stream.until("rewound")
    assert rewound["index"] == 8
    adjusted = await stream.until("adjusted")
    assert (adjusted["index"], adjusted["ref"]) == (8, "both")
    assert "ref" not in rewound, "a frame is answered once"
    await stream.until_index(20)
    assert stream.tokens[8:] == [300] * 12
    await stream.send("inject", at=15, text="Stop")
    assert (await stream.until("rewound"))["index"] == 15
    assert (await stream.until("injected"))["index"] == 15


async def test_a_stream_that_is_cancelled_ends_once(client: Client) -> None:
    stream = await at(client, "enough", 7)
    await stream.send("cancel", ref="c")
    final = await stream.rest()
    assert (final["finish_reason"], final["index"], final["ref"]) == ("cancelled", 7, "c")
    await stream.send("cancel")
    await stream.send("credit", limit=100)
    await client.roundtrip()
    assert client.heard("enough") == [], (
        "a second cancel and a late grant are no mistakes, and change nothing"
    )


async def test_cancelling_mid_stream_ends_it_at_an_index(client: Client) -> None:
    stream = await client.start("rolling", params=LONG)
    await stream.until_index(5)
    await stream.send("cancel")
    await stream.send("cancel")
    final = await stream.rest()
    assert final["index"] == stream.index == final["usage"]["completion_tokens"]
