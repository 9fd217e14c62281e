import openai
import outlines
from checks import KEY, MODEL, PERSON, RECORD, SCHEMA, SUM, SUM_ANSWER, TALE, URL, check, main, same
from outlines.types import CFG, JsonSchema, Regex
from person import Person

client = openai.OpenAI(base_url=URL, api_key=KEY, max_retries=0)
model = outlines.from_vllm(client, MODEL)
like_openai = outlines.from_openai(client, MODEL)


@check("basic")
def generate() -> None:
    same(model(SUM), SUM_ANSWER)
    same(like_openai(SUM), SUM_ANSWER)


@check("streaming")
def stream() -> None:
    same("".join(model.stream(TALE)), model(TALE))


@check("structured")
def pydantic_model() -> None:
    same(Person.model_validate_json(model(RECORD, Person)), Person(**PERSON))
    same(Person.model_validate_json(like_openai(RECORD, Person)), Person(**PERSON))


@check("structured")
def json_schema() -> None:
    same(Person.model_validate_json(model(RECORD, JsonSchema(SCHEMA))), Person(**PERSON))


@check("structured")
def regex() -> None:
    same(model(SUM, Regex(r"[0-9]+ \+ [0-9]+ = [0-9]+\.")), SUM_ANSWER)


@check("structured")
def choice() -> None:
    from typing import Literal

    assert model(SUM, Literal["yes", "no"]) in ("yes", "no")


@check("structured")
def grammar() -> None:
    same(model(SUM, CFG('start: /[0-9]+/ " + " /[0-9]+/ " = " /[0-9]+/ "."')), SUM_ANSWER)


@check("structured")
def streamed() -> None:
    same(Person.model_validate_json("".join(model.stream(RECORD, Person))), Person(**PERSON))


main()
