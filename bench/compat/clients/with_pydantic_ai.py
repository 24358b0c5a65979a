"""`pydantic-ai`, with its model for the chat door."""

from __future__ import annotations

from checks import ANSWER, ASK_FOR_A_PET, QUESTION, URL, Pet, run, weather
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

model = OpenAIChatModel("toy", provider=OpenAIProvider(base_url=URL, api_key="none"))
agent = Agent(model, tools=[weather])


async def loop() -> None:
    """a tool loop"""
    result = await agent.run(QUESTION)
    assert result.output == ANSWER, result.output


async def streamed_loop() -> None:
    """a tool loop, streamed"""
    async with agent.run_stream(QUESTION) as result:
        assert await result.get_output() == ANSWER


async def typed_by_a_call() -> None:
    """a typed answer by a call that is required"""
    result = await Agent(model, output_type=Pet).run(ASK_FOR_A_PET, model_settings={"max_tokens": 2000})
    assert isinstance(result.output, Pet)


async def typed() -> None:
    """a typed answer by a schema"""
    result = await Agent(model, output_type=NativeOutput(Pet)).run(ASK_FOR_A_PET)
    assert isinstance(result.output, Pet)


run("pydantic-ai-slim", loop, streamed_loop, typed_by_a_call, typed)
