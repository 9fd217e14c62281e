import os
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # otherwise its list of prices is downloaded

import litellm
from checks import KEY, MODEL, PERSON, RECORD, SCHEMA, SUM, SUM_ANSWER, TALE, URL, check, main, same, user_message
from person import Person

ASKED: Any = {"model": f"openai/{MODEL}", "api_base": URL, "api_key": KEY, "num_retries": 0}


@check("basic")
def completion() -> None:
    answer = litellm.completion(**ASKED, messages=user_message(SUM))
    same(answer.choices[0].message.content, SUM_ANSWER)
    same(answer.choices[0].finish_reason, "stop")


@check("basic")
async def acompletion_of_vllm() -> None:
    asked = ASKED | {"model": f"hosted_vllm/{MODEL}"}
    same((await litellm.acompletion(**asked, messages=user_message(SUM))).choices[0].message.content, SUM_ANSWER)


@check("basic")
def its_own_history() -> None:
    first = litellm.completion(**ASKED, messages=user_message(SUM)).choices[0].message
    history = [*user_message(SUM), first.model_dump(), *user_message("Solve: 7 * 8.")]
    same(litellm.completion(**ASKED, messages=history).choices[0].message.content, "7 x 8 = 56.")


@check("streaming")
def stream() -> None:
    complete = litellm.completion(**ASKED, messages=user_message(TALE))
    chunks = list(
        litellm.completion(**ASKED, messages=user_message(TALE), stream=True, stream_options={"include_usage": True})
    )
    same("".join(c.choices[0].delta.content or "" for c in chunks if c.choices), complete.choices[0].message.content)
    usage = [chunk.usage for chunk in chunks if getattr(chunk, "usage", None)]
    same(usage[-1].completion_tokens, complete.usage.completion_tokens)


@check("streaming")
def text_completion() -> None:
    asked: Any = ASKED | {"model": f"text-completion-openai/{MODEL}", "prompt": "Anna lived near", "max_tokens": 40}
    complete = litellm.text_completion(**asked).choices[0].text
    pieces = [chunk.choices[0].text or "" for chunk in litellm.text_completion(**asked, stream=True) if chunk.choices]
    same("".join(pieces), complete)


@check("structured")
def pydantic_model() -> None:
    answer = litellm.completion(**ASKED, messages=user_message(RECORD), response_format=Person)
    same(Person.model_validate_json(answer.choices[0].message.content), Person(**PERSON))


@check("structured")
def json_schema() -> None:
    response_format = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA, "strict": True}}
    answer = litellm.completion(**ASKED, messages=user_message(RECORD), response_format=response_format)
    same(Person.model_validate_json(answer.choices[0].message.content), Person(**PERSON))


@check("more")
def errors() -> None:
    try:
        litellm.completion(**ASKED | {"model": "openai/another"}, messages=user_message(SUM))
    except litellm.NotFoundError:
        return
    raise AssertionError("an unknown model is not refused")


@check("more")
def router() -> None:
    where = {"litellm_params": ASKED}
    answer = litellm.Router([{"model_name": "demo", **where}]).completion("demo", user_message(SUM))
    same(answer.choices[0].message.content, SUM_ANSWER)


main()
