import os

os.environ["HAYSTACK_TELEMETRY_ENABLED"] = "False"

from checks import KEY, MODEL, PERSON, RECORD, SUM, SUM_ANSWER, TALE, URL, check, main, same
from haystack import Pipeline
from haystack.components.builders import ChatPromptBuilder
from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.utils import Secret
from person import Person


def generator(**more: object) -> OpenAIChatGenerator:
    return OpenAIChatGenerator(Secret.from_token(KEY), MODEL, api_base_url=URL, max_retries=0, **more)


@check("basic")
def run() -> None:
    (answer,) = generator().run([ChatMessage.from_user(SUM)])["replies"]
    same(answer.text, SUM_ANSWER)
    again = [ChatMessage.from_user(SUM), answer, ChatMessage.from_user("Solve: 7 * 8.")]
    same(generator().run(again)["replies"][0].text, "7 x 8 = 56.")


@check("basic")
def pipeline() -> None:
    made = Pipeline()
    made.add_component("prompt", ChatPromptBuilder([ChatMessage.from_user("Solve: {{a}} + 30.")], ["a"]))
    made.add_component("llm", generator())
    made.connect("prompt.prompt", "llm.messages")
    same(made.run({"prompt": {"a": "12"}})["llm"]["replies"][0].text, SUM_ANSWER)


@check("streaming")
def callback() -> None:
    pieces: list[str] = []
    asked = [ChatMessage.from_user(TALE)]
    made = generator(streaming_callback=lambda chunk: pieces.append(chunk.content))
    (reply,) = generator().run(asked)["replies"]
    (streamed,) = made.run(asked)["replies"]
    same(["".join(pieces), streamed.text], [reply.text, reply.text])


@check("structured")
def response_format() -> None:
    made = generator(generation_kwargs={"response_format": Person})
    (answer,) = made.run([ChatMessage.from_user(RECORD)])["replies"]
    same(Person.model_validate_json(answer.text), Person(**PERSON))


main()
