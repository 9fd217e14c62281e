from typing import Any

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.conditions import MaxMessageTermination
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_core.models import UserMessage
from autogen_ext.models.openai import OpenAIChatCompletionClient
from checks import KEY, MODEL, PERSON, RECORD, SUM, SUM_ANSWER, TALE, URL, check, main, same
from person import Person


def client(**more: Any) -> OpenAIChatCompletionClient:
    info: Any = {
        "vision": False, "function_calling": True, "json_output": True, "structured_output": True, "family": "unknown",
    }  # fmt: skip
    return OpenAIChatCompletionClient(model=MODEL, base_url=URL, api_key=KEY, model_info=info, max_retries=0, **more)


def user_message(text: str) -> list[Any]:
    return [UserMessage(content=text, source="user")]


@check("basic")
async def create() -> None:
    answer = await client().create(user_message(SUM))
    same([answer.content, answer.finish_reason], [SUM_ANSWER, "stop"])


@check("basic")
async def agent_with_names() -> None:
    """Checks messages of agents, which have the names of their senders."""
    answer = await AssistantAgent("solver", client(), system_message=None).run(task=SUM)
    same(answer.messages[-1].content, SUM_ANSWER)


@check("basic")
async def team() -> None:
    members = [AssistantAgent(name, client(), system_message=None) for name in ("one", "two")]
    answer = await RoundRobinGroupChat(members, termination_condition=MaxMessageTermination(3)).run(task=SUM)
    same([message.source for message in answer.messages], ["user", "one", "two"])


@check("streaming")
async def create_stream() -> None:
    message = await client().create(user_message(TALE))
    *pieces, last = [piece async for piece in client().create_stream(user_message(TALE), include_usage=True)]
    same(["".join(pieces), last.content], [message.content, message.content])
    same(last.usage.completion_tokens, message.usage.completion_tokens)


@check("structured")
async def json_output() -> None:
    answer = await client().create(user_message(RECORD), json_output=Person)
    same(Person.model_validate_json(answer.content), Person(**PERSON))


@check("structured")
async def output_content_type() -> None:
    agent = AssistantAgent("writer", client(), system_message=None, output_content_type=Person)
    same((await agent.run(task=RECORD)).messages[-1].content, Person(**PERSON))


main()
