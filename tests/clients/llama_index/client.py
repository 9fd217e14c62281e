from checks import KEY, MODEL, PERSON, RECORD, SUM, SUM_ANSWER, TALE, URL, check, main, same
from llama_index.core.llms import ChatMessage
from llama_index.core.prompts import PromptTemplate
from llama_index.llms.openai_like import OpenAILike
from person import Person

llm = OpenAILike(
    model=MODEL,
    api_base=URL,
    api_key=KEY,
    is_chat_model=True,
    is_function_calling_model=False,
    should_use_structured_outputs=True,
    context_window=2048,
    max_retries=0,
    temperature=0,  # its default is 0.1
)


@check("basic")
def chat() -> None:
    answer = llm.chat([ChatMessage(role="user", content=SUM)])
    same(answer.message.content, SUM_ANSWER)
    again = llm.chat([ChatMessage(role="user", content=SUM), answer.message, ChatMessage("Solve: 7 * 8.")])
    same(again.message.content, "7 x 8 = 56.")


@check("basic")
async def complete() -> None:
    same(llm.complete(SUM).text, SUM_ANSWER)
    same((await llm.acomplete(SUM)).text, SUM_ANSWER)


@check("basic")
def completions_route() -> None:
    completion_model = OpenAILike(
        model=MODEL, api_base=URL, api_key=KEY, is_chat_model=False, context_window=2048, max_tokens=8
    )
    answer = completion_model.complete("Anna lived near", extra_body={"ignore_eos": True})
    same(answer.raw.usage.completion_tokens, 8)


@check("streaming")
def stream_chat() -> None:
    completion = llm.complete(TALE).text
    pieces = list(llm.stream_chat([ChatMessage(role="user", content=TALE)]))
    same("".join(piece.delta or "" for piece in pieces), completion)
    same(pieces[-1].message.content, completion)


@check("structured")
def structured_predict() -> None:
    same(llm.structured_predict(Person, PromptTemplate("{asked}"), asked=RECORD), Person(**PERSON))


@check("structured")
def as_structured_llm() -> None:
    answer = llm.as_structured_llm(Person).chat([ChatMessage(role="user", content=RECORD)])
    same(answer.raw, Person(**PERSON))


main()
