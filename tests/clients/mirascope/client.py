from checks import KEY, MODEL, PERSON, RECORD, SUM, SUM_ANSWER, TALE, URL, check, main, same
from mirascope import llm
from person import Person

llm.register_provider("openai:completions", scope="openai/", api_key=KEY, base_url=URL)
model = llm.Model(f"openai/{MODEL}")


@check("basic")
def call() -> None:
    same(model.call(SUM).text(), SUM_ANSWER)


@check("streaming")
def stream() -> None:
    streamed = "".join(model.stream(TALE).text_stream())  # it ends each part with a newline
    same(streamed.removesuffix("\n"), model.call(TALE).text())


@check("structured")
def strict() -> None:
    same(model.call(RECORD, format=llm.format(Person, mode="strict")).parse(), Person(**PERSON))


main()
