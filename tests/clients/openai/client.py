import json
from typing import Any

import openai
from checks import (
    KEY,
    MODEL,
    MULTIPLICATION,
    MULTIPLICATION_ANSWER,
    PERSON,
    RECORD,
    SCHEMA,
    SUM,
    SUM_ANSWER,
    TALE,
    URL,
    check,
    main,
    same,
    user_message,
)
from person import Person

client = openai.OpenAI(base_url=URL, api_key=KEY, max_retries=0)


def ask(text: str, **more: Any) -> Any:
    """Returns the answer of a chat to one message of the user."""
    return client.chat.completions.create(model=MODEL, messages=user_message(text), **more)


@check("basic")
def chat() -> None:
    answer = ask(SUM)
    same(answer.choices[0].message.content, SUM_ANSWER)
    same(answer.choices[0].finish_reason, "stop")
    assert answer.usage is not None
    same(answer.usage.total_tokens, answer.usage.prompt_tokens + answer.usage.completion_tokens)


@check("basic")
def completion() -> None:
    answer = client.completions.create(model=MODEL, prompt=["a", "b"], max_tokens=8, extra_body={"ignore_eos": True})
    same([choice.index for choice in answer.choices], [0, 1])
    assert answer.usage is not None
    same(answer.usage.completion_tokens, 16)


@check("basic")
def several_choices() -> None:
    answer = ask(SUM, n=3, seed=1, temperature=0.2)
    same([choice.message.content for choice in answer.choices], [SUM_ANSWER] * 3)


@check("basic")
def its_own_history() -> None:
    history = [*user_message(SUM), ask(SUM).choices[0].message.model_dump(), *user_message(MULTIPLICATION)]
    answer = client.chat.completions.create(model=MODEL, messages=history)
    same(answer.choices[0].message.content, MULTIPLICATION_ANSWER)


@check("basic")
async def several_at_once() -> None:
    import asyncio

    async with openai.AsyncOpenAI(base_url=URL, api_key=KEY, max_retries=0) as together:
        asked = (
            together.chat.completions.create(model=MODEL, messages=user_message(f"Solve: {i} + 30.")) for i in range(12)
        )
        answers = await asyncio.gather(*asked)
    same([a.choices[0].message.content for a in answers], [f"{i} + 30 = {i + 30}." for i in range(12)])


@check("streaming")
def chat_streamed() -> None:
    complete, chunks = ask(TALE), list(ask(TALE, stream=True, stream_options={"include_usage": True}))
    pieces = [chunk.choices[0].delta.content for chunk in chunks if chunk.choices and chunk.choices[0].delta.content]
    same("".join(pieces), complete.choices[0].message.content)
    assert "Anna" in pieces[0] + pieces[1] and len(pieces) > 2, pieces
    assert chunks[-1].usage is not None and complete.usage is not None
    same(chunks[-1].usage.completion_tokens, complete.usage.completion_tokens)


@check("streaming")
def stream_helper() -> None:
    with client.chat.completions.stream(model=MODEL, messages=user_message(SUM)) as stream:
        text = "".join(event.delta for event in stream if event.type == "content.delta")
        final = stream.get_final_completion()
    same([text, final.choices[0].message.content], [SUM_ANSWER, SUM_ANSWER])


@check("streaming")
def completion_streamed() -> None:
    asked: dict[str, Any] = {"model": MODEL, "prompt": "Anna lived near", "max_tokens": 60}
    complete = client.completions.create(**asked).choices[0].text
    same("".join(c.choices[0].text for c in client.completions.create(**asked, stream=True) if c.choices), complete)


@check("streaming")
def stopped_early() -> None:
    with ask(TALE, stream=True) as stream:
        next(iter(stream))


@check("structured")
def parsed() -> None:
    answer = client.chat.completions.parse(model=MODEL, messages=user_message(RECORD), response_format=Person)
    same(answer.choices[0].message.parsed, Person(**PERSON))


@check("structured")
def parsed_from_a_stream() -> None:
    with client.chat.completions.stream(model=MODEL, messages=user_message(RECORD), response_format=Person) as stream:
        same(stream.get_final_completion().choices[0].message.parsed, Person(**PERSON))


@check("structured")
def json_object() -> None:
    answer = ask(RECORD, response_format={"type": "json_object"})
    same(Person.model_validate_json(answer.choices[0].message.content or ""), Person(**PERSON))


@check("structured")
def json_schema() -> None:
    response_format: Any = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA, "strict": True}}
    answer = ask(RECORD, response_format=response_format)
    same(Person.model_validate_json(answer.choices[0].message.content or ""), Person(**PERSON))


@check("structured")
def by_extra_body() -> None:
    for asked, fits in (
        ({"guided_choice": ["yes", "no"]}, {"yes", "no"}),
        ({"structured_outputs": {"regex": "[ab]"}}, {"a", "b"}),
    ):
        answer = ask(SUM, extra_body=asked)
        assert answer.choices[0].message.content in fits, answer


@check("basic")
def responses() -> None:
    answer = client.responses.create(model=MODEL, input=SUM)
    same([answer.output_text, answer.status], [SUM_ANSWER, "completed"])
    again = [{"role": "user", "content": SUM}, *answer.output, {"role": "user", "content": MULTIPLICATION}]
    same(client.responses.create(model=MODEL, input=again).output_text, MULTIPLICATION_ANSWER)


@check("streaming")
def responses_streamed() -> None:
    complete = client.responses.create(model=MODEL, input=TALE).output_text
    with client.responses.stream(model=MODEL, input=TALE) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        final = stream.get_final_response()
    same([text, final.output_text], [complete, complete])


@check("structured")
def responses_parsed() -> None:
    same(client.responses.parse(model=MODEL, input=RECORD, text_format=Person).output_parsed, Person(**PERSON))


ADD: Any = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds two numbers.",
        "parameters": {
            "type": "object",
            "properties": {name: {"type": "integer", "minimum": 0, "maximum": 99} for name in ("a", "b")},
            "required": ["a", "b"],
            "additionalProperties": False,
        },
    },
}
NAMED: Any = {"type": "function", "function": {"name": "add"}}


def fits(call: Any) -> None:
    """Checks that the function accepts the arguments, whose values depend on the model."""
    same(call.function.name, "add")
    arguments = json.loads(call.function.arguments)
    same({name: type(value) for name, value in arguments.items()}, {"a": int, "b": int})


@check("tools")
def required_and_named() -> None:
    for choice in ("required", NAMED):
        answer = ask(SUM, tools=[ADD], tool_choice=choice)
        for call in answer.choices[0].message.tool_calls or []:
            fits(call)
        assert answer.choices[0].message.tool_calls, answer


@check("tools")
def there_and_back() -> None:
    first = ask(SUM, tools=[ADD], tool_choice=NAMED).choices[0].message
    results = [{"role": "tool", "tool_call_id": call.id, "content": "42"} for call in first.tool_calls or []]
    assert results, first
    again = [*user_message(SUM), first.model_dump(), *results]
    answer = client.chat.completions.create(model=MODEL, messages=again, tools=[ADD], tool_choice="none")
    assert answer.choices[0].message.content


@check("tools")
def streamed_calls() -> None:
    asked: Any = {"model": MODEL, "messages": user_message(SUM), "tools": [ADD], "tool_choice": NAMED}
    complete = client.chat.completions.create(**asked).choices[0]
    with client.chat.completions.stream(**asked) as stream:
        final = stream.get_final_completion().choices[0]
    calls = [[(call.function.name, call.function.arguments) for call in choice.message.tool_calls or []]
             for choice in (complete, final)]  # fmt: skip
    same(*calls)
    same(final.finish_reason, complete.finish_reason)
    assert calls[0]


@check("more")
def models() -> None:
    same([model.id for model in client.models.list()], [MODEL])
    same(client.models.retrieve(MODEL).id, MODEL)


@check("more")
def errors() -> None:
    for response_format, asked in (
        (openai.NotFoundError, {"model": "another"}),
        (openai.BadRequestError, {"temperature": -1}),
        (openai.AuthenticationError, {"extra_headers": {"Authorization": "Bearer wrong"}}),
    ):
        try:
            client.chat.completions.create(**{"model": MODEL, "messages": user_message(SUM), **asked})
        except response_format as refused:
            assert refused.body, refused
        else:
            raise AssertionError(f"{asked} is not refused")


@check("more")
def raw_and_extra() -> None:
    raw = client.chat.completions.with_raw_response.create(
        model=MODEL,
        messages=user_message(SUM),
        user="someone",
        store=False,
        metadata={"a": "b"},
        reasoning_effort="low",
        extra_body={"decoding": {"mode": "quality"}, "nobody_knows_this": 1},
        extra_headers={"X-Request-Id": "mine"},
    )
    same(raw.parse().choices[0].message.content, SUM_ANSWER)
    same(raw.headers["x-unmask-ignored"], "nobody_knows_this")


DECISION: Any = {
    "model": MODEL,
    "input": [{"role": "user", "content": [{"type": "input_json", "data": {"mail": "Stripe has failed."}}]}],
    "questions": [
        {"type": "predicate", "instructions": "Is it urgent?", "name": "urgent"},
        {"type": "choice", "instructions": "Which team?", "choices": [{"value": True}, {"value": "true"}]},
        {"type": "score", "instructions": "How angry?", "levels": [{"label": "calm"}, {"label": "angry"}]},
    ],
}


def check_decision(decision: Any) -> None:
    urgent, team, anger = decision.answers
    same((urgent.type, urgent.name, team.name), ("predicate", "urgent", None))
    same([type(one.value) for one in team.probabilities], [bool, str])
    same([(one.value, one.label) for one in anger.probabilities], [(0, "calm"), (1, "angry")])
    same(decision.usage.output_tokens, 0)


@check("more")
def decisions() -> None:
    check_decision(client.decisions.create(**DECISION))


@check("more")
async def decisions_async() -> None:
    async with openai.AsyncOpenAI(base_url=URL, api_key=KEY, max_retries=0) as other:
        check_decision(await other.decisions.create(**DECISION, extra_body={"joint": True}))


main()
