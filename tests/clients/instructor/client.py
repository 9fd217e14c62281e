from typing import Any

import instructor
import openai
from checks import COMPUTE, COMPUTED, KEY, MODEL, PERSON, RECORD, SUM, SUM_ANSWER, URL, calculated, check, main, same
from person import Person
from pydantic import create_model

ASKED: Any = {"model": MODEL, "messages": [{"role": "user", "content": RECORD}], "max_retries": 0}


Calculator = create_model("calculator", __doc__="Calculate the value of an arithmetic expression.", expression=str)


def made(mode: instructor.Mode) -> instructor.Instructor:
    return instructor.from_openai(openai.OpenAI(base_url=URL, api_key=KEY, max_retries=0), mode=mode)


@check("basic")
def without_a_model() -> None:
    asked: Any = {"model": MODEL, "messages": [{"role": "user", "content": SUM}]}
    answer = made(instructor.Mode.JSON_SCHEMA).chat.completions.create(response_model=None, **asked)
    same(answer.choices[0].message.content, SUM_ANSWER)


@check("structured")
def json_schema() -> None:
    found = made(instructor.Mode.JSON_SCHEMA).chat.completions.create(response_model=Person, **ASKED)
    same(found.model_dump(), PERSON)


@check("structured")
def with_its_completion() -> None:
    found, raw = made(instructor.Mode.JSON_SCHEMA).chat.completions.create_with_completion(
        response_model=Person, **ASKED
    )
    same(found.model_dump(), PERSON)
    assert raw.usage is not None and raw.usage.completion_tokens > 10


@check("streaming")
def partial() -> None:
    parts = list(made(instructor.Mode.JSON_SCHEMA).chat.completions.create_partial(response_model=Person, **ASKED))
    same(parts[-1].model_dump(), PERSON)
    assert len(parts) > 1, parts


@check("tools")
def tools() -> None:
    for mode in (instructor.Mode.TOOLS, instructor.Mode.TOOLS_STRICT):
        asked: Any = {"model": MODEL, "messages": [{"role": "user", "content": COMPUTE}], "max_retries": 0}
        found = made(mode).chat.completions.create(response_model=Calculator, **asked)
        same(calculated(found.expression), COMPUTED)


main()
