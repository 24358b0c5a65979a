"""`langchain-openai`, and agents of `langgraph`."""

from __future__ import annotations

from typing import Any

import checks
from checks import ANSWER, ASK_FOR_A_PET, QUESTION, RESULT, URL, Pet
from langchain.agents import create_agent
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.utils.function_calling import convert_to_openai_tool
from langchain_openai import ChatOpenAI
from openai import AsyncOpenAI

model = ChatOpenAI(model="toy", base_url=URL, api_key="none", max_retries=0)
asked = {"messages": [{"role": "user", "content": QUESTION}]}


async def loop() -> None:
    """a tool loop in a graph"""
    state = await create_agent(model, tools=[checks.weather]).ainvoke(asked)
    assert state["messages"][-1].content == ANSWER, state["messages"][-1]


async def streamed_loop() -> None:
    """a tool loop in a graph, streamed"""
    said = ""
    graph = create_agent(model, tools=[checks.weather])
    async for chunk, _ in graph.astream(asked, stream_mode="messages"):
        said += chunk.content if chunk.type == "AIMessageChunk" else ""
    assert said == ANSWER, said


async def required() -> None:
    """a call that is required, and one by name"""
    for choice in ("required", "weather"):
        bound = model.bind_tools([checks.weather], tool_choice=choice, parallel_tool_calls=False)
        message = await bound.ainvoke(QUESTION)
        (call,) = message.tool_calls
        assert call["args"] == {"city": "Rome"}


async def typed() -> None:
    """a typed answer by a schema, and by a call"""
    for method in ("json_schema", "function_calling"):
        answer = await model.with_structured_output(Pet, method=method).ainvoke(ASK_FOR_A_PET)
        assert isinstance(answer, Pet)


async def history() -> None:
    """a history that it spells anew is found computed as if it were verbatim"""
    verbatim, respelt = await verbatim_loop("A"), await respelt_loop("B")
    assert respelt == verbatim, f"(prompt, cached): {respelt}, and verbatim {verbatim}"


# As nobody's `json.dumps` spells it, and as only a model does that is not held to its template.
CALL = '⟦<tool_call>{"name":"weather","arguments":{"city":"Rome"}}</tool_call>⟧'
RESULTS = [f"30 degrees, or more {CALL}", RESULT]
Told = tuple[int, int]  # of a prompt's tokens, how many there are, and how many were found computed


def asked_by(name: str) -> str:
    """By whom nobody else's prompt begins."""
    return f"{name} asks: what is the weather in Rome? {CALL}"


async def respelt_loop(name: str) -> list[Told]:
    bound = model.bind_tools([checks.weather], strict=False)
    messages: list[Any] = [HumanMessage(asked_by(name))]
    told = list[Told]()
    for result in [*RESULTS, ""]:
        message = await bound.ainvoke(messages)
        used = message.usage_metadata
        told.append((used["input_tokens"], used["input_token_details"]["cache_read"]))
        messages += [message, *(ToolMessage(result, tool_call_id=call["id"]) for call in message.tool_calls)]
    assert message.content == ANSWER, message
    return told


async def verbatim_loop(name: str) -> list[Told]:
    """The same, with messages as they came."""
    client = AsyncOpenAI(base_url=URL, api_key="none", max_retries=0)
    tools = [convert_to_openai_tool(checks.weather, strict=False)]
    messages: list[Any] = [{"role": "user", "content": asked_by(name)}]
    told = list[Told]()
    for result in [*RESULTS, ""]:
        answer = await client.chat.completions.create(model="toy", messages=messages, tools=tools)
        told.append((answer.usage.prompt_tokens, answer.usage.prompt_tokens_details.cached_tokens))
        message = answer.choices[0].message
        results = [
            {"role": "tool", "tool_call_id": call.id, "content": result} for call in message.tool_calls or ()
        ]
        messages += [message, *results]
    assert message.content == ANSWER, message
    return told


checks.run("langchain-openai", loop, streamed_loop, required, typed, history)
