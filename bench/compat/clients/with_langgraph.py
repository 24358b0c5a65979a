"""`langchain-openai`, and agents of `langgraph`."""

from __future__ import annotations

import checks
from checks import ANSWER, ASK_FOR_A_PET, QUESTION, URL, Pet
from langchain.agents import create_agent
from langchain_openai import ChatOpenAI

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


checks.run("langchain-openai", loop, streamed_loop, required, typed)
