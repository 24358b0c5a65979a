"""`openai-agents`, with its model for the chat door."""

from __future__ import annotations

import checks
from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from checks import ANSWER, ASK_FOR_A_PET, QUESTION, URL, Pet
from openai import AsyncOpenAI

set_tracing_disabled(True)
model = OpenAIChatCompletionsModel(
    "toy", openai_client=AsyncOpenAI(base_url=URL, api_key="none", max_retries=0)
)
agent = Agent("Assistant", instructions="Be kind.", model=model, tools=[function_tool(checks.weather)])


async def loop() -> None:
    """a tool loop"""
    result = await Runner.run(agent, QUESTION)
    assert result.final_output == ANSWER, result.final_output


async def streamed_loop() -> None:
    """a tool loop, streamed"""
    result = Runner.run_streamed(agent, QUESTION)
    kinds = {event.type async for event in result.stream_events()}
    assert "run_item_stream_event" in kinds, kinds
    assert result.final_output == ANSWER, result.final_output


async def required() -> None:
    """a call that is required"""
    settings = ModelSettings(tool_choice="required", parallel_tool_calls=False)
    result = await Runner.run(agent.clone(model_settings=settings), QUESTION)
    assert result.final_output == ANSWER, result.final_output


async def typed() -> None:
    """a typed answer"""
    result = await Runner.run(Agent("Assistant", model=model, output_type=Pet), ASK_FOR_A_PET)
    assert isinstance(result.final_output, Pet)


checks.run("openai-agents", loop, streamed_loop, required, typed)
