from typing import Any

import anthropic
from checks import KEY, MODEL, SERVER, SUM, SUM_ANSWER, TALE, check, main, same

client = anthropic.Anthropic(base_url=SERVER, api_key=KEY, max_retries=0)


def user_message(text: str) -> Any:
    return {"model": MODEL, "max_tokens": 200, "messages": [{"role": "user", "content": text}]}


@check("basic")
def create() -> None:
    answer = client.messages.create(**user_message(SUM))
    same([block.text for block in answer.content if block.type == "text"], [SUM_ANSWER])
    same(answer.stop_reason, "end_turn")
    assert answer.usage.output_tokens > 5, answer


@check("basic")
def its_own_history() -> None:
    first = client.messages.create(**user_message(SUM))
    asked = user_message("Solve: 7 * 8.")
    asked["messages"] = [
        *user_message(SUM)["messages"],
        {"role": "assistant", "content": first.content},
        *asked["messages"],
    ]
    same(client.messages.create(**asked).content[0].text, "7 x 8 = 56.")


@check("streaming")
def stream() -> None:
    message = client.messages.create(**user_message(TALE))
    with client.messages.stream(**user_message(TALE)) as stream:
        pieces = list(stream.text_stream)
        final = stream.get_final_message()
    same(["".join(pieces), final.content[0].text], [message.content[0].text] * 2)
    same(final.usage.output_tokens, message.usage.output_tokens)
    assert len(pieces) > 2, pieces


@check("more")
def errors() -> None:
    try:
        client.messages.create(**user_message(SUM) | {"model": "another"})
    except anthropic.NotFoundError:
        return
    raise AssertionError("an unknown model is not refused")


main()
