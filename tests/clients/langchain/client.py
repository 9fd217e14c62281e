import checks
import langchain_typesafe as typesafe
from checks import calculated, check, main, same
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, decisions
from person import Person
from pydantic import create_model

model = ChatOpenAI(model=checks.MODEL, base_url=checks.URL, api_key=checks.KEY, max_retries=0, temperature=0)
calculator = tool(checks.calculator)


@check("basic")
def invoke() -> None:
    answer = model.invoke(checks.SUM)
    same(answer.content, checks.SUM_ANSWER)
    assert answer.usage_metadata and answer.usage_metadata["output_tokens"] > 5


@check("basic")
def chain_and_history() -> None:
    chain = ChatPromptTemplate.from_messages([("human", "Solve: {a} * {b}.")]) | model
    same(chain.invoke({"a": 7, "b": 8}).content, "7 x 8 = 56.")
    history = [HumanMessage(checks.SUM), model.invoke(checks.SUM), AIMessage("Good."), HumanMessage("Solve: 7 * 8.")]
    assert model.invoke(history).content


@check("basic")
async def batch() -> None:
    answers = await model.abatch([f"Solve: {i} + 30." for i in range(4)])
    same([answer.content for answer in answers], [f"{i} + 30 = {i + 30}." for i in range(4)])


@check("streaming")
def stream() -> None:
    pieces = list(model.stream(checks.TALE, stream_usage=True))
    message = model.invoke(checks.TALE)
    same("".join(str(piece.content) for piece in pieces), message.content)
    usage = [piece.usage_metadata for piece in pieces if piece.usage_metadata]
    assert message.usage_metadata
    same([counts["output_tokens"] for counts in usage], [message.usage_metadata["output_tokens"]])


@check("structured")
def json_schema() -> None:
    same(model.with_structured_output(Person, method="json_schema").invoke(checks.RECORD), Person(**checks.PERSON))


@check("structured")
def json_schema_as_a_dict() -> None:
    found = model.with_structured_output(
        {"title": "person", **checks.SCHEMA}, method="json_schema", strict=True
    ).invoke(checks.RECORD)
    same(found, checks.PERSON)


@check("structured")
def json_mode() -> None:
    same(model.with_structured_output(Person, method="json_mode").invoke(checks.RECORD), Person(**checks.PERSON))


@check("tools")
def bound() -> None:
    (call,) = model.bind_tools([calculator]).invoke(checks.COMPUTE).tool_calls
    same(calculator.invoke(call).content, checks.COMPUTED)


@check("tools")
def bound_streamed() -> None:
    asked = model.bind_tools([calculator], tool_choice="required", strict=True)
    pieces = list(asked.stream(checks.COMPUTE))
    message = pieces[0]
    for piece in pieces[1:]:
        message += piece
    same([call["name"] for call in message.tool_calls], ["calculator"])
    same(calculator.invoke(message.tool_calls[0]).content, checks.COMPUTED)


@check("tools")
def agent() -> None:
    messages = create_agent(model, tools=[calculator]).invoke({"messages": [HumanMessage(checks.COMPUTE)]})["messages"]
    same([message.type for message in messages], ["human", "ai", "tool", "ai"])
    same(messages[2].content, checks.COMPUTED)
    assert checks.COMPUTED in messages[3].content, messages


Calculator = create_model("calculator", __doc__="Calculate the value of an arithmetic expression.", expression=str)


@check("structured")
def function_calling() -> None:
    found = model.with_structured_output(Calculator, method="function_calling").invoke(checks.COMPUTE)
    same(calculated(found.expression), checks.COMPUTED)


OPENAI_QUESTIONS = {
    "urgent": decisions.Predicate(instructions="Is it urgent?"),
    "team": decisions.Choice(instructions="Which team?", choices={"billing": "payments", "technical": "bugs"}),
    "anger": decisions.Score(instructions="How angry?", levels=["calm", "annoyed", "angry"]),
}
TYPESAFE_QUESTIONS = {
    "urgent": typesafe.Noul(instructions="Is it urgent?"),
    "team": typesafe.Choice(instructions="Which team?", criteria={"billing": "payments", "technical": "bugs"}),
    "anger": typesafe.Score(instructions="How angry?", criteria=["calm", "annoyed", "angry"]),
}


@check("more")
async def openai_decisions() -> None:
    asking = decisions.OpenAIDecisions(model=checks.MODEL, base_url=checks.URL, api_key=checks.KEY, max_retries=0)
    asked = {"input": "Stripe has failed.", "questions": OPENAI_QUESTIONS}
    for found in (asking.invoke(asked), await asking.ainvoke(asked)):
        assert 0 < found.predicates["urgent"].probability < 1
        assert found.choices["team"].choice in ("billing", "technical")
        assert 0 <= found.scores["anger"].score <= 2


@check("more")
async def typesafe_classifier() -> None:
    asking = typesafe.TypeSafeClassifier(model=checks.MODEL, base_url=checks.SERVER, api_key=checks.KEY)
    asked = {"state": {"mails": [HumanMessage("Stripe has failed.")]}, "questions": TYPESAFE_QUESTIONS}
    for found in (asking.invoke(asked), await asking.ainvoke(asked)):
        assert 0 < found.nouls["urgent"].noul < 1
        assert found.choices["team"].choice in ("billing", "technical")
        assert 0 <= found.scores["anger"].score <= 2


main()
