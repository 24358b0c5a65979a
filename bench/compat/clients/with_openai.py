"""The `openai` package."""

from __future__ import annotations

import json
from typing import Any

from checks import ANSWER, ASK_FOR_A_PET, QUESTION, URL, Pet, run, weather
from openai import AsyncOpenAI, pydantic_function_tool
from pydantic import BaseModel

client = AsyncOpenAI(base_url=URL, api_key="none", max_retries=0)


class Weather(BaseModel):
    """The weather of a city."""

    city: str


TOOLS = [pydantic_function_tool(Weather, name="weather")]


async def loop() -> None:
    """a tool loop"""
    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    while True:
        answer = await client.chat.completions.create(model="toy", messages=messages, tools=TOOLS)
        message = answer.choices[0].message
        messages.append(message)
        if answer.choices[0].finish_reason != "tool_calls":
            break
        for call in message.tool_calls:
            result = weather(**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    assert message.content == ANSWER, message.content


async def streamed_loop() -> None:
    """a tool loop, streamed"""
    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    for _ in range(2):
        asked = {"model": "toy", "messages": messages, "tools": TOOLS}
        async with client.chat.completions.stream(**asked, stream_options={"include_usage": True}) as stream:
            message = (await stream.get_final_completion()).choices[0].message
        messages.append(message)
        for call in message.tool_calls or ():
            result = weather(call.function.parsed_arguments.city)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    assert message.content == ANSWER, message.content


async def required() -> None:
    """a call that is required, and one by name"""
    for choice in ("required", {"type": "function", "function": {"name": "weather"}}):
        answer = await client.chat.completions.parse(
            model="toy",
            messages=[{"role": "user", "content": QUESTION}],
            tools=TOOLS,
            tool_choice=choice,
            parallel_tool_calls=False,
            max_tokens=2000,
        )
        (call,) = answer.choices[0].message.tool_calls
        assert isinstance(call.function.parsed_arguments, Weather)


async def typed() -> None:
    """a typed answer"""
    messages = [{"role": "user", "content": ASK_FOR_A_PET}]
    answer = await client.chat.completions.parse(model="toy", messages=messages, response_format=Pet)
    assert isinstance(answer.choices[0].message.parsed, Pet)


run("openai", loop, streamed_loop, required, typed)
