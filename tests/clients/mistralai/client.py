"""Fill-in-the-middle and chat of Mistral's client. The demo reads the suffix before the prompt that it continues."""

import asyncio
from typing import Any

from checks import KEY, MODEL, SERVER, SUM, SUM_ANSWER, TALE, check, main, same, user_message
from mistralai.client import Mistral
from mistralai.client.errors import SDKError

client = Mistral(api_key=KEY, server_url=SERVER)
COUNT = "Count: 1, 2, 3, 4, 5, 6, 7,"
HOLE: dict[str, Any] = {"model": MODEL, "prompt": COUNT, "suffix": "\n", "max_tokens": 12, "temperature": 0}


def streamed(stream: Any) -> str:
    """Returns the text of a stream of chunks."""
    return "".join(event.data.choices[0].delta.content for event in stream)


@check("basic")
def fill_in_the_middle() -> None:
    answer = client.fim.complete(**HOLE, random_seed=7, metadata={"editor": "test"})
    (choice,) = answer.choices
    same((choice.message.content, choice.finish_reason), ("8, 9.", "stop"))
    same(answer.usage.total_tokens, answer.usage.prompt_tokens + answer.usage.completion_tokens)
    longer = client.fim.complete(**{**HOLE, "suffix": "12 + 30 = 42.\n" * 4})
    assert longer.usage.prompt_tokens > answer.usage.prompt_tokens


@check("basic")
def stop() -> None:
    choice = client.fim.complete(**HOLE, stop=["9", "nothing"]).choices[0]
    same((choice.message.content, choice.finish_reason), ("8, ", "stop"))
    limited = client.fim.complete(**{**HOLE, "max_tokens": 2}).choices[0]
    same(limited.finish_reason, "length")


@check("basic")
def without_suffix() -> None:
    answer = client.fim.complete(model=MODEL, prompt="What is 7 x 8? 7 x 8 = ", max_tokens=12)
    assert answer.choices[0].message.content


@check("basic")
def chat() -> None:
    answer = client.chat.complete(model=MODEL, messages=user_message(SUM))
    same(answer.choices[0].message.content, SUM_ANSWER)


@check("streaming")
def fill_in_the_middle_streamed() -> None:
    same(streamed(client.fim.stream(**HOLE)), client.fim.complete(**HOLE).choices[0].message.content)
    *_, last = client.fim.stream(**HOLE)
    assert last.data.usage.completion_tokens > 0
    assert last.data.choices[0].finish_reason in ("stop", "length")


@check("streaming")
def chat_streamed() -> None:
    asked = {"model": MODEL, "messages": user_message(TALE)}
    chunks = [event.data.choices[0].delta.content for event in client.chat.stream(**asked) if event.data.choices]
    same("".join(chunk or "" for chunk in chunks), client.chat.complete(**asked).choices[0].message.content)


@check("more")
async def several_at_once() -> None:
    answers = await asyncio.gather(*(client.fim.complete_async(**HOLE) for _ in range(4)))
    same(len({answer.choices[0].message.content for answer in answers}), 1)
    events = [event async for event in await client.fim.stream_async(**HOLE)]
    same(streamed(events), answers[0].choices[0].message.content)


@check("more")
def errors() -> None:
    for more, status in (({"model": "nothing"}, 404), ({"max_tokens": 0}, 400)):
        try:
            client.fim.complete(**{**HOLE, **more})
        except SDKError as error:
            same(error.status_code, status)
        else:
            raise AssertionError(more)


main()
