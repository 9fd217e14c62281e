from typing import Any

from checks import KEY, MODEL, PERSON, RECORD, SCHEMA, SUM, SUM_ANSWER, TALE, URL, check, main, same
from person import Person
from smolagents import OpenAIModel

model = OpenAIModel(MODEL, api_base=URL, api_key=KEY)


def user_message(text: str) -> list[Any]:
    return [{"role": "user", "content": [{"type": "text", "text": text}]}]


@check("basic")
def generate() -> None:
    answer = model.generate(user_message(SUM))
    same(answer.content, SUM_ANSWER)
    assert answer.token_usage.output_tokens > 5


@check("streaming")
def stream() -> None:
    pieces = [delta.content or "" for delta in model.generate_stream(user_message(TALE))]
    same("".join(pieces), model.generate(user_message(TALE)).content)


@check("structured")
def response_format() -> None:
    schema_format = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}}
    answer = model.generate(user_message(RECORD), response_format=schema_format)
    same(Person.model_validate_json(answer.content), Person(**PERSON))


main()
