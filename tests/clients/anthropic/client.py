from typing import Any

import anthropic
from checks import KEY, MODEL, SERVER, SUM, SUM_ANSWER, TALE, check, main, same

client = anthropic.Anthropic(base_url=SERVER, api_key=KEY, max_retries=0)


def said(text: str) -> Any:
    return {"model": MODEL, "max_tokens": 200, "messages": [{"role": "user", "content": text}]}


@check("basic")
def create() -> None:
    answer = client.messages.create(**said(SUM))
    same([block.text for block in answer.content if block.type == "text"], [SUM_ANSWER])
    same(answer.stop_reason, "end_turn")
    assert answer.usage.output_tokens > 5, answer


@check("basic")
def its_own_history() -> None:
    first = client.messages.create(**said(SUM))
    asked = said("Solve: 7 * 8.")
    asked["messages"] = [*said(SUM)["messages"], {"role": "assistant", "content": first.content}, *asked["messages"]]
    same(client.messages.create(**asked).content[0].text, "7 x 8 = 56.")


@check("streaming")
def stream() -> None:
    whole = client.messages.create(**said(TALE))
    with client.messages.stream(**said(TALE)) as stream:
        pieces = list(stream.text_stream)
        final = stream.get_final_message()
    same(["".join(pieces), final.content[0].text], [whole.content[0].text] * 2)
    same(final.usage.output_tokens, whole.usage.output_tokens)
    assert len(pieces) > 2, pieces


@check("more")
def errors() -> None:
    try:
        client.messages.create(**said(SUM) | {"model": "another"})
    except anthropic.NotFoundError:
        return
    raise AssertionError("an unknown model is not refused")


main()
