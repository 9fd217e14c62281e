from checks import KEY, MODEL, PERSON, RECORD, SUM, SUM_ANSWER, TALE, URL, check, main, same
from openai import AsyncOpenAI
from person import Person
from semantic_kernel import Kernel
from semantic_kernel.agents import ChatCompletionAgent
from semantic_kernel.connectors.ai.open_ai import OpenAIChatCompletion, OpenAIChatPromptExecutionSettings
from semantic_kernel.contents import ChatHistory


def service() -> OpenAIChatCompletion:
    client = AsyncOpenAI(base_url=URL, api_key=KEY, max_retries=0)
    return OpenAIChatCompletion(ai_model_id=MODEL, service_id="demo", async_client=client)


def user_message(text: str) -> ChatHistory:
    history = ChatHistory()
    history.add_user_message(text)
    return history


@check("basic")
async def chat() -> None:
    history, settings = user_message(SUM), OpenAIChatPromptExecutionSettings()
    answer = await service().get_chat_message_content(history, settings)
    same(str(answer), SUM_ANSWER)
    history.add_message(answer)
    history.add_user_message("Solve: 7 * 8.")
    same(str(await service().get_chat_message_content(history, settings)), "7 x 8 = 56.")


@check("basic")
async def prompt_template() -> None:
    kernel = Kernel()
    kernel.add_service(service())
    same(str(await kernel.invoke_prompt("Solve: {{$a}} + 30.", a="12")), SUM_ANSWER)


@check("basic")
async def agent() -> None:
    answer = await ChatCompletionAgent(service=service(), name="solver").get_response(messages=SUM)
    same(str(answer.message), SUM_ANSWER)


@check("streaming")
async def streamed() -> None:
    settings = OpenAIChatPromptExecutionSettings()
    content = str(await service().get_chat_message_content(user_message(TALE), settings))
    pieces = [str(part) async for part in service().get_streaming_chat_message_content(user_message(TALE), settings)]
    same("".join(pieces), content)
    assert len(pieces) > 2, pieces


@check("structured")
async def response_format() -> None:
    settings = OpenAIChatPromptExecutionSettings(response_format=Person)
    answer = await service().get_chat_message_content(user_message(RECORD), settings)
    same(Person.model_validate_json(str(answer)), Person(**PERSON))


main()
