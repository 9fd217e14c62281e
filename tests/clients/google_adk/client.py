import json
import os
from itertools import product
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # otherwise LiteLLM downloads its list of prices

import checks
from checks import calculator, called, check, main, same
from google.adk.agents import LlmAgent
from google.adk.agents.run_config import RunConfig, StreamingMode
from google.adk.events import Event
from google.adk.integrations.openai import OpenAILlm, OpenAIResponsesLlm
from google.adk.models import BaseLlm
from google.adk.models.lite_llm import LiteLlm
from google.adk.runners import InMemoryRunner
from google.genai import types
from person import Person


def models() -> list[BaseLlm]:
    """Returns new models. Their connections belong to the event loop of one check."""
    host: Any = {"model": checks.MODEL, "base_url": checks.URL, "api_key": checks.KEY}
    lite = LiteLlm(f"openai/{checks.MODEL}", api_base=checks.URL, api_key=checks.KEY, num_retries=0)
    return [lite, OpenAILlm(**host), OpenAIResponsesLlm(**host)]


class Chat:
    """A session with an agent."""

    def __init__(self, model: BaseLlm, **more: Any) -> None:
        self.runner = InMemoryRunner(LlmAgent(name="demo", model=model, **more))
        self.runner.auto_create_session = True

    async def events(self, text: str, mode: StreamingMode = StreamingMode.NONE) -> list[Event]:
        asked: Any = {"user_id": "user", "session_id": "session", "new_message": types.UserContent(text)}
        return [event async for event in self.runner.run_async(**asked, run_config=RunConfig(streaming_mode=mode))]

    async def answer(self, text: str) -> str:
        return written((await self.events(text))[-1])


def written(event: Event) -> str:
    return "".join(part.text or "" for part in (event.content and event.content.parts) or [])


@check("basic")
async def session() -> None:
    for model in models():
        chat = Chat(model)
        same(await chat.answer(checks.SUM), checks.SUM_ANSWER)
        same(await chat.answer(checks.MULTIPLICATION), checks.MULTIPLICATION_ANSWER)


@check("streaming")
async def sse() -> None:
    for model in models():
        complete = await Chat(model).answer(checks.TALE)
        events = await Chat(model).events(checks.TALE, StreamingMode.SSE)
        pieces = [written(event) for event in events if event.partial]
        same(["".join(pieces), written(events[-1])], [complete, complete])
        assert len(pieces) > 2, pieces
        usage = events[-1].usage_metadata
        assert usage and usage.candidates_token_count and usage.candidates_token_count > 10, usage


@check("structured")
async def output_schema() -> None:
    for model in models():
        same(json.loads(await Chat(model, output_schema=Person).answer(checks.RECORD)), checks.PERSON)


@check("tools")
async def there_and_back() -> None:
    for model, mode in product(models(), (StreamingMode.NONE, StreamingMode.SSE)):
        called.clear()
        events = await Chat(model, tools=[calculator]).events(checks.COMPUTE, mode)
        assert checks.COMPUTED in written(events[-1]), events
        same(len(called), 1)


main()
