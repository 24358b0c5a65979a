"""The `openai` package for Python, as it is: what it asks is answered, and what it is told it understands."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel

from tests.server.keyed_server import Keyed
from tests.server.server_process import Served, streams

HELLO: list[Any] = [{"role": "user", "content": "Hello"}]
EXTRA = {"ignore_eos": True}
BAD_SCHEMA = {"type": "nonsense"}
BAD_FORMAT = {"type": "json_schema", "json_schema": {"name": "bad", "schema": BAD_SCHEMA}}


@pytest.fixture
async def client(server: Served) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=f"{server.http}/v1", api_key="none", max_retries=0) as client:
        yield client


async def test_a_chat_whole_with_all_that_can_be_asked(client: AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(
        model="toy",
        messages=[{"role": "developer", "content": "Be kind"}, {"role": "user", "content": "Hello"}],
        n=2,
        max_completion_tokens=8,
        temperature=0.7,
        top_p=0.9,
        seed=3,
        presence_penalty=0.1,
        frequency_penalty=0.1,
        logit_bias={"5": -100},
        logprobs=True,
        top_logprobs=2,
        user="somebody",
        store=False,
        extra_body=EXTRA | {"top_k": 50, "priority": -1},
    )
    assert [choice.index for choice in answer.choices] == [0, 1]
    for choice in answer.choices:
        assert choice.finish_reason == "length"
        assert choice.message.role == "assistant"
        assert choice.logprobs is not None
        assert choice.logprobs.content is not None
        assert len(choice.logprobs.content) == 8
        assert len(choice.logprobs.content[0].top_logprobs) == 2
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 16
    assert answer.usage.prompt_tokens_details is not None


async def test_a_chat_as_it_is_written_is_the_same(client: AsyncOpenAI) -> None:
    asked = {"model": "toy", "messages": HELLO, "max_tokens": 20, "seed": 1, "extra_body": EXTRA}
    whole = await client.chat.completions.create(**asked)  # type: ignore[call-overload]
    chunks = [
        chunk
        async for chunk in await client.chat.completions.create(  # type: ignore[call-overload]
            stream=True, stream_options={"include_usage": True}, **asked
        )
    ]
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-2].choices[0].finish_reason == "length"
    usage = chunks[-1].usage
    assert chunks[-1].choices == []
    assert (usage.prompt_tokens, usage.completion_tokens) == (whole.usage.prompt_tokens, 20)


async def test_the_packages_own_accumulation_of_a_stream(client: AsyncOpenAI) -> None:
    async with client.chat.completions.stream(
        model="toy",
        messages=[{"role": "user", "content": "Hello"}],
        n=2,
        stop=["the", "you", "a"],
        logprobs=True,
    ) as stream:
        deltas = [event.delta async for event in stream if event.type == "content.delta"]
        final = await stream.get_final_completion()
    contents = [choice.message.content or "" for choice in final.choices]
    assert len(contents) == 2
    assert sorted("".join(deltas)) == sorted("".join(contents))
    assert [choice.finish_reason for choice in final.choices] == ["stop", "stop"]


class Verdict(BaseModel):
    good: bool


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")  # the package's own, of its own field
async def test_a_typed_answer_can_be_sent_back(client: AsyncOpenAI) -> None:
    typed = await client.chat.completions.parse(model="toy", messages=HELLO, response_format=Verdict)
    message: Any = typed.choices[0].message
    assert isinstance(message.parsed, Verdict)
    again = await client.chat.completions.create(
        model="toy", messages=[*HELLO, message, *HELLO], max_tokens=2, extra_body=EXTRA
    )
    assert again.choices[0].finish_reason == "length"


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"response_format": BAD_FORMAT}, "response_format.json_schema.schema"),
        ({"extra_body": {"grammar": {"json_schema": BAD_SCHEMA}}}, "grammar.json_schema"),
        ({"logit_bias": {"99999": 1}}, "logit_bias"),
    ],
)
async def test_a_refusal_names_things_as_they_were_asked_for(
    client: AsyncOpenAI, asked: dict[str, Any], param: str
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        await client.chat.completions.create(model="toy", messages=HELLO, **asked)
    assert refused.value.param == param
    assert refused.value.message.partition(" - ")[2].startswith(f"`{param}` ")


async def test_completions_of_many_prompts(client: AsyncOpenAI) -> None:
    answer = await client.completions.create(
        model="toy", prompt=["Once", "Twice"], n=2, max_tokens=4, logprobs=2, extra_body=EXTRA
    )
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert answer.choices[0].logprobs is not None
    assert len(answer.choices[0].logprobs.tokens or []) == 4
    tokens = await client.completions.create(model="toy", prompt=[5, 6, 7], extra_body=EXTRA)
    assert tokens.usage is not None
    assert (tokens.usage.prompt_tokens, tokens.usage.completion_tokens) == (3, 16)
    asked = {"model": "toy", "prompt": "Once", "seed": 2, "extra_body": EXTRA}
    whole = (await client.completions.create(**asked)).choices[0].text  # type: ignore[call-overload]
    stream = await client.completions.create(stream=True, **asked)  # type: ignore[call-overload]
    chunks = [chunk.choices[0].text async for chunk in stream]
    assert "".join(chunks) == whole
    assert len(chunks) > 1, "its end comes by itself, however much goes before it in one"


async def test_a_stop_string_is_not_part_of_the_answer(client: AsyncOpenAI) -> None:
    asked = {"model": "toy", "prompt": "Once", "seed": 2, "max_tokens": 30, "extra_body": EXTRA}
    text = (await client.completions.create(**asked)).choices[0].text  # type: ignore[call-overload]
    word = text.split()[3]
    stopped = (await client.completions.create(stop=[word], **asked)).choices[0]  # type: ignore[call-overload]
    assert stopped.finish_reason == "stop"
    assert stopped.text == text[: text.index(word)]


async def test_models(client: AsyncOpenAI) -> None:
    assert [model.id async for model in client.models.list()] == ["toy"]
    assert (await client.models.retrieve("toy")).owned_by == "midstream"
    with pytest.raises(openai.NotFoundError):
        await client.models.retrieve("another")


def test_every_refusal_is_an_exception_of_the_packages_own(full: Keyed) -> None:
    def client(key: str) -> OpenAI:
        return OpenAI(base_url=f"{full.served.http}/v1", api_key=key, max_retries=0)

    def refused(client: OpenAI, **fields: Any) -> openai.APIStatusError:
        with pytest.raises(openai.APIStatusError) as caught:
            client.completions.create(**{"model": "toy", "prompt": "Once"} | fields)
        error = caught.value
        told.append((type(error), error.status_code, error.code))
        return error

    told: list[Any] = []
    with client(full.admin) as rich, client(full.poor) as poor, client("wrong") as stranger:
        assert refused(rich, suffix="end").param == "suffix"
        refused(rich, prompt=[1] * 9000)
        refused(stranger)
        refused(rich, model="gpt")
        rich.completions.create(model="toy", prompt="Once", extra_body={"request_id": "same"})
        refused(rich, prompt="Twice", extra_body={"request_id": "same"})
        poor.completions.create(model="toy", prompt="Once")
        assert int(refused(poor).response.headers["retry-after"]) > 0
        with rich.completions.create(
            model="toy", prompt="Once", stream=True, max_tokens=4000, extra_body=EXTRA
        ):
            assert refused(rich).response.headers["retry-after"] == "1"
    assert told == [
        (openai.BadRequestError, 400, "unsupported_parameter"),
        (openai.BadRequestError, 400, "context_length_exceeded"),
        (openai.AuthenticationError, 401, "invalid_api_key"),
        (openai.NotFoundError, 404, "model_not_found"),
        (openai.ConflictError, 409, "request_conflict"),
        (openai.RateLimitError, 429, "rate_limit_exceeded"),
        (openai.InternalServerError, 503, "overloaded"),
    ]


async def test_an_error_in_the_midst_of_a_stream_is_raised(client: AsyncOpenAI) -> None:
    stream = await client.completions.create(
        model="toy", prompt="Once", stream=True, max_tokens=4000, extra_body=EXTRA | {"request_id": "taken"}
    )
    await anext(stream)
    other = await client.completions.create(
        model="toy", prompt="Once", stream=True, max_tokens=4000, extra_body=EXTRA | {"request_id": "taken"}
    )
    with pytest.raises(openai.APIError) as taken:
        async for _ in stream:
            pass
    assert taken.value.code == "request_taken"
    await client.post("/streams/taken/control", cast_to=object, body={"type": "cancel"})
    await other.close()


async def test_closing_a_stream_ends_its_work(slow: Served) -> None:
    before = await slow.until_idle()
    async with AsyncOpenAI(base_url=f"{slow.http}/v1", api_key="none") as client:
        stream = await client.completions.create(
            model="toy", prompt="Once", stream=True, max_tokens=4000, extra_body=EXTRA
        )
        await anext(stream)
        await slow.until(lambda now: streams(now) == 1)
        await stream.close()
        after = await slow.until_idle()
    assert after["midstream_tokens_total"] < before["midstream_tokens_total"] + 4000


def test_it_works_without_asyncio_too(shared: Served) -> None:
    with OpenAI(base_url=f"{shared.http}/v1", api_key="none") as client:
        answer = client.completions.create(model="toy", prompt="Once", max_tokens=3, extra_body=EXTRA)
        assert answer.choices[0].finish_reason == "length"
