"""Models of ``/v1/decisions`` and ``/v1/systemone``: requests, answers, and conversion to questions about a chat."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Discriminator, Field, Tag, model_validator
from pydantic_core import PydanticCustomError
from typing_extensions import TypedDict

from runtime.decisions.questions import MAX_QUESTIONS, Question, as_text, make_question
from runtime.request.validation import refuse
from runtime.server.serving import chat
from runtime.server.serving.generation import ModelName, TemplateArguments
from runtime.server.serving.request_body import (
    AnyOfUnion,
    MessageList,
    RequestModel,
    TextOrParts,
    UnsupportedField,
    api_field,
    ignored_field,
    optional,
    union_tag,
)

MAX_JSON_DEPTH = 32  # levels of the value of an input_json part
MAX_JSON_VALUES = 10_000
MAX_JSON_BYTES = 256 * 1024  # of its compact form
_NO_IMAGES = "is not supported: images cannot be read; leave it out"
_REQUIRED_FIELDS = {
    "message": ("role", "content"),
    "function_call": ("name", "call_id"),
    "function_call_output": ("call_id", "output"),
    "custom_tool_call": ("name", "call_id", "input"),
    "custom_tool_call_output": ("call_id", "output"),
}
EXAMPLE_QUESTIONS = [{"type": "predicate", "instructions": "Is the customer angry?"}]
EXAMPLE_MAP = {"angry": {"type": "noul", "instructions": "Is the customer angry?"}}


def _check_json(data: Any) -> str:
    """Returns the compact JSON of a value of an input_json part, within its limits."""
    if not isinstance(data, dict) and not (isinstance(data, list) and all(isinstance(one, dict) for one in data)):
        raise PydanticCustomError("json_type", "data must be an object, or an array of objects")
    left, count = [(data, 1)], 0
    while left:
        value, depth = left.pop()
        count += 1
        if depth > MAX_JSON_DEPTH or count > MAX_JSON_VALUES:
            limits = {"depth": MAX_JSON_DEPTH, "values": MAX_JSON_VALUES}
            raise PydanticCustomError("json_size", "data has more than {depth} levels or {values} values", limits)
        if isinstance(value, dict | list):
            left += [(each, depth + 1) for each in (value.values() if isinstance(value, dict) else value)]
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    if len(text.encode("utf-8", "surrogatepass")) > MAX_JSON_BYTES:
        raise PydanticCustomError("json_size", "data has more than {size} bytes of JSON", {"size": MAX_JSON_BYTES})
    return text


class DecisionPart(chat.Part):
    """A part of a message or of instructions: a text, or JSON in `data`."""

    type: str = api_field("`input_text`, `input_json`, `output_text` or `refusal`; images are rejected", "input_text")
    data: Any = optional("of an `input_json` part: an object, or an array of objects", None)
    prompt_cache_breakpoint: Any = ignored_field(None)

    text_types: ClassVar[frozenset[str]] = chat.TEXT_TYPES | {"input_json"}

    @model_validator(mode="before")
    @classmethod
    def _write_json(cls, value: Any) -> Any:
        if isinstance(value, dict) and value.get("type") == "input_json":
            return {**value, "text": _check_json(value.get("data"))}
        return value


def _content_text(content: str | Sequence[DecisionPart] | None) -> str:
    """Returns the text of a message or of instructions, whose parts are separated by newlines."""
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(part.as_text() for part in content)


class DecisionItem(RequestModel):
    """A message, a call of a tool, or what one returned."""

    type: str | None = optional(f"message (the default), {', '.join(list(_REQUIRED_FIELDS)[1:])}", "message")
    role: Literal["user", "developer", "system", "assistant"] | None = optional("of a message: its author", "user")
    content: TextOrParts[DecisionPart] | None = optional("of a message: text, or a list of parts", "Help me now!")
    id: str | None = ignored_field("msg_1")
    status: str | None = ignored_field("completed")
    phase: str | None = ignored_field("final_answer")
    namespace: str | None = ignored_field("files")
    call_id: str | None = optional("id of the call, in calls and results", "call_1")
    name: str | None = optional("of a call: name of the function", "calculator")
    arguments: str | None = optional("of a function call: arguments as JSON text", '{"expression": "12 + 30"}')
    input: str | None = optional("of a custom tool call: its input", "ls")
    output: TextOrParts[DecisionPart] | None = optional("of a result: text, or a list of parts", "42")

    @property
    def kind(self) -> str:
        return self.type or "message"

    @model_validator(mode="after")
    def _is_known(self) -> DecisionItem:
        chat.check_kind(self, self.kind, _REQUIRED_FIELDS, "items")
        return self

    def add_to(self, conversation: chat.Conversation, path: str) -> None:
        match self.kind:
            case "message" if self.role == "assistant":
                conversation.assistant(path, text=_content_text(self.content), begins=True)
            case "message":
                conversation.add(path, role=self.role, content=_content_text(self.content))
            case "function_call" | "custom_tool_call":
                arguments = self.arguments if self.kind == "function_call" else {"input": self.input}
                function = chat.Function(name=self.name or "", arguments=arguments)
                conversation.assistant(path, call=chat.Call(id=self.call_id, type="function", function=function))
            case _:
                conversation.add(path, role="tool", content=_content_text(self.output), tool_call_id=self.call_id)


class _Named(RequestModel):
    instructions: TextOrParts[DecisionPart] = api_field("the question: text, or a list of parts", "Is it angry?")
    name: str | None = optional("returned with the answer", "angry")

    @property
    def text(self) -> str:
        return _content_text(self.instructions)


class PredicateQuestion(_Named):
    """How probable it is that a statement is true."""

    type: Literal["predicate"] = api_field("type of the question", "predicate")

    def to_question(self, path: str) -> Question:
        return _predicate(path, self.text, "", "", self.name)


class ChoiceOption(RequestModel):
    value: str | bool = api_field('the option; `true` and `"true"` differ', "refund")
    description: str | None = optional("what the option means", "the customer wants money back")


class ChoiceQuestion(_Named):
    """Which option is right."""

    type: Literal["choice"] = api_field("type of the question", "choice")
    choices: Annotated[list[ChoiceOption], Field(min_length=2, max_length=255, fail_fast=True)] = api_field(
        "the options, each once", [{"value": "refund"}, {"value": "other"}]
    )

    def to_question(self, path: str) -> Question:
        options = [(one.value, as_text(one.value), one.description or "") for one in self.choices]
        return make_question("choice", path, self.text, options, at=f"{path}.choices", name=self.name)


class ScoreLevel(RequestModel):
    label: str = api_field("name of the level", "calm")
    description: str | None = optional("what the level means", "no sign of anger")


class ScoreQuestion(_Named):
    """Which level is right, from the lowest to the highest."""

    type: Literal["score"] = api_field("type of the question", "score")
    levels: Annotated[list[ScoreLevel], Field(min_length=1, max_length=10, fail_fast=True)] = api_field(
        "the levels, lowest first", [{"label": "calm"}, {"label": "angry"}]
    )

    def to_question(self, path: str) -> Question:
        options = [(i, one.label, one.description or "") for i, one in enumerate(self.levels)]
        return make_question("score", path, self.text, options, at=f"{path}.levels", name=self.name)


class NoulCriteria(RequestModel):
    true: Any = optional("when the answer is yes: text, an object or an array", "Money is asked for.")
    false: Any = optional("when the answer is no", None)


class NoulQuestion(RequestModel):
    """How probable a yes is."""

    type: Literal["noul"] = api_field("type of the question", "noul")
    instructions: Any = optional("the question: text, an object or an array", "Is the customer angry?")
    criteria: NoulCriteria | None = optional("descriptions of yes and no; needed without instructions", None)

    def to_question(self, path: str) -> Question:
        described = [as_text(self.criteria and getattr(self.criteria, name)) for name in ("false", "true")]
        if not (as_text(self.instructions) or any(described)):
            raise refuse(path, "needs instructions, or a description of true or false; add one")
        return _predicate(path, as_text(self.instructions), *described)


class MapChoiceQuestion(RequestModel):
    """Which option is right."""

    type: Literal["choice"] = api_field("type of the question", "choice")
    instructions: Any = optional("the question: text, an object or an array", "What is it about?")
    criteria: Annotated[dict[str, Any], Field(min_length=1, max_length=255)] = api_field(
        "options, each with a description or null", {"refund": "money back", "other": None}
    )

    def to_question(self, path: str) -> Question:
        options = [(name, name, as_text(description)) for name, description in self.criteria.items()]
        return make_question("choice", path, as_text(self.instructions), options, at=f"{path}.criteria")


class MapScoreQuestion(RequestModel):
    """Which level is right, from the lowest to the highest."""

    type: Literal["score"] = api_field("type of the question", "score")
    instructions: Any = optional("the question: text, an object or an array", "How angry is the customer?")
    criteria: Annotated[list[Any], Field(min_length=1, max_length=10)] = api_field(
        "descriptions of the levels, lowest first", ["calm", "angry"]
    )

    def to_question(self, path: str) -> Question:
        options = [(i, "", as_text(description)) for i, description in enumerate(self.criteria)]
        return make_question("score", path, as_text(self.instructions), options, at=f"{path}.criteria")


def _predicate(path: str, text: str, no: str, yes: str, name: str | None = None) -> Question:
    return make_question("predicate", path, text, [(False, "false", no), (True, "true", yes)], name=name)


ListedQuestion = Annotated[PredicateQuestion | ChoiceQuestion | ScoreQuestion, Field(discriminator="type")]
MapQuestion = Annotated[NoulQuestion | MapChoiceQuestion | MapScoreQuestion, Field(discriminator="type")]
QuestionList = Annotated[list[ListedQuestion], Field(min_length=1, max_length=MAX_QUESTIONS, fail_fast=True)]
QuestionMap = Annotated[dict[str, MapQuestion], Field(min_length=1, max_length=MAX_QUESTIONS)]


def _check_state(value: Any) -> Any:
    if not isinstance(value, str | dict | list):
        raise PydanticCustomError("state_type", "must be a text, an object or an array")
    return value


State = Annotated[Any, AfterValidator(_check_state)]
_JOINT = "answer as many questions per forward as fit: faster, and less exact; default false"


class _DecisionRequest(RequestModel):
    """Fields of both formats. A map of questions has those of System One on either route."""

    model: ModelName = None
    instructions: str | None = optional("text of a system message; only beside a map", "You read mails of customers.")
    joint: bool | None = optional(_JOINT, True)
    cache_salt: str | None = optional("requests share cached prefixes only with those of the same salt", "tenant-1")
    chat_template_kwargs: TemplateArguments = None
    assets: Annotated[Any, UnsupportedField({}, [], why=_NO_IMAGES)] = None
    images: Annotated[Any, UnsupportedField([], why=_NO_IMAGES)] = None
    audio: Annotated[Any, UnsupportedField([], why="is not supported; leave it out")] = None
    videos: Annotated[Any, UnsupportedField([], why="is not supported; leave it out")] = None
    priority: Any = ignored_field(0)
    request_id: Any = ignored_field("request-1")

    def system_messages(self) -> list[dict[str, Any]]:
        return [{"role": "system", "content": self.instructions}] if self.instructions else []


class SystemOneRequest(_DecisionRequest):
    state: State = api_field("what the questions are about: text, an object or an array", "Stripe has failed again!")
    questions: QuestionMap = api_field("questions by id", EXAMPLE_MAP)

    def to_questions(self) -> list[Question]:
        return _questions(self.questions)

    def to_chat(self) -> chat.ChatPrompt:
        """Returns the conversation that the questions are about."""
        messages = [*self.system_messages(), {"role": "user", "content": as_text(self.state)}]
        return chat.ChatPrompt(messages, self.chat_template_kwargs or {})


def _questions(questions: Mapping[str, Any] | Sequence[Any]) -> list[Question]:
    if isinstance(questions, Mapping):
        return [question.to_question(f"questions.{name[:80]}") for name, question in questions.items()]
    return [question.to_question(f"questions[{i}]") for i, question in enumerate(questions)]


def _questions_arm(questions: Any) -> str:
    return "map" if isinstance(questions, dict) else "list"


_Input = Annotated[
    Annotated[str, Tag("str")] | Annotated[MessageList[DecisionItem], Tag("list")], Discriminator(union_tag)
]


class DecisionsRequest(_DecisionRequest):
    input: _Input | None = optional(
        "what the questions are about: text, or a list of items", "Stripe has failed again!"
    )
    state: State | None = optional("alias of `input` beside a map of questions: text, an object or an array", None)
    questions: Annotated[
        Annotated[QuestionList, Tag("list")] | Annotated[QuestionMap, Tag("map")],
        Discriminator(_questions_arm),
        AnyOfUnion(),
    ] = api_field("list of questions; a map is read and answered as by `/v1/systemone`", EXAMPLE_QUESTIONS)
    prompt_cache_key: str | None = ignored_field("key")
    prompt_cache_options: Any = ignored_field({"mode": "implicit"})
    safety_identifier: str | None = ignored_field("user-1")

    @property
    def is_map(self) -> bool:
        return isinstance(self.questions, dict)

    def to_questions(self) -> list[Question]:
        return _questions(self.questions)

    def to_chat(self) -> chat.ChatPrompt:
        """Returns the conversation that the questions are about. Messages of a user that follow each other are one."""
        if self.input is None and not (self.is_map and self.state is not None):
            raise refuse("input", "is missing; give a text or a list of items")
        if self.input is not None and self.state is not None:
            raise refuse("state", "duplicates input; give one of them")
        if self.instructions and not self.is_map:
            raise refuse("instructions", "is only for a map of questions; give a system message in input instead")
        conversation = chat.Conversation("call_id")
        if isinstance(self.input, list):
            for i, item in enumerate(self.input):
                item.add_to(conversation, f"input[{i}]")
        else:
            conversation.add("input", role="user", content=self.input or as_text(self.state))
        messages = self.system_messages()
        for message in conversation.to_template():
            if messages and messages[-1]["role"] == message["role"] == "user":
                message["content"] = f"{messages.pop()['content']}\n\n{message['content']}"
            messages.append(message)
        return chat.ChatPrompt(messages, self.chat_template_kwargs or {})


_MASS = api_field("probability of all labels together; low: the model would rather write something else")
_CONFIDENCE = api_field("probability of the answer times `label_mass`; 1 for a single option")


class PredicateAnswer(TypedDict):
    type: Literal["predicate"]
    name: Annotated[str | None, api_field("name in the request")]
    probability: Annotated[float, api_field("probability of true")]
    label_mass: Annotated[float, _MASS]


class ChoiceProbability(TypedDict):
    value: Annotated[str | bool, api_field("the option")]
    probability: Annotated[float, api_field("from 0 to 1")]


class ChoiceAnswer(TypedDict):
    type: Literal["choice"]
    name: Annotated[str | None, api_field("name in the request")]
    choice: Annotated[str | bool, api_field("the most probable option")]
    probabilities: Annotated[list[ChoiceProbability], api_field("of the options, in their order")]
    confidence: Annotated[float, _CONFIDENCE]
    label_mass: Annotated[float, _MASS]


class LevelProbability(TypedDict):
    value: Annotated[int, api_field("index of the level")]
    label: Annotated[str, api_field("label of the level")]
    probability: Annotated[float, api_field("from 0 to 1")]


class ScoreAnswer(TypedDict):
    type: Literal["score"]
    name: Annotated[str | None, api_field("name in the request")]
    score: Annotated[float, api_field("mean index of the level")]
    probabilities: Annotated[list[LevelProbability], api_field("of the levels, in their order")]
    confidence: Annotated[float, _CONFIDENCE]
    label_mass: Annotated[float, _MASS]


class InputDetails(TypedDict):
    cached_tokens: Annotated[int, api_field("prompt tokens found in the prefix cache")]
    cache_write_tokens: Annotated[int, api_field("always 0")]


class OutputDetails(TypedDict):
    reasoning_tokens: Annotated[int, api_field("always 0")]


class DecisionsUsage(TypedDict):
    input_tokens: Annotated[int, api_field("tokens of the prompts, one per forward")]
    input_tokens_details: Annotated[InputDetails, api_field("details")]
    output_tokens: Annotated[int, api_field("always 0")]
    output_tokens_details: Annotated[OutputDetails, api_field("details")]
    total_tokens: Annotated[int, api_field("sum of both")]


class DecisionsAnswer(TypedDict):
    id: Annotated[str, api_field("id of the answer")]
    object: Literal["decision"]
    model: Annotated[str, api_field("name of the model or adapter")]
    answers: Annotated[list[PredicateAnswer | ChoiceAnswer | ScoreAnswer], api_field("in the order of the questions")]
    usage: Annotated[DecisionsUsage, api_field("tokens of the request")]


class NoulAnswer(TypedDict):
    type: Literal["noul"]
    noul: Annotated[float, api_field("probability of yes")]
    label_mass: Annotated[float, _MASS]


class MapChoiceAnswer(TypedDict):
    type: Literal["choice"]
    choice: Annotated[str, api_field("the most probable option")]
    probabilities: Annotated[dict[str, float], api_field("by option")]
    confidence: Annotated[float, _CONFIDENCE]
    label_mass: Annotated[float, _MASS]


class MapScoreAnswer(TypedDict):
    type: Literal["score"]
    score: Annotated[float, api_field("mean index of the level")]
    probabilities: Annotated[dict[str, float], api_field("by index of the level")]
    legend: Annotated[dict[str, str], api_field("descriptions, by index of the level")]
    confidence: Annotated[float, _CONFIDENCE]
    label_mass: Annotated[float, _MASS]


class Diagnostics(TypedDict):
    label_mass: Annotated[float, _MASS]
    argmax_is_label: Annotated[bool, api_field("whether the most probable token is a label")]


class SystemOneUsage(TypedDict):
    input_tokens: Annotated[int, api_field("tokens of the prompts, one per forward")]
    output_tokens: Annotated[int, api_field("always 0")]


class SystemOneAnswer(TypedDict):
    id: Annotated[str, api_field("id of the answer")]
    object: Literal["systemone"]
    created: Annotated[int, api_field("Unix seconds")]
    model: Annotated[str, api_field("name of the model or adapter")]
    answers: Annotated[dict[str, NoulAnswer | MapChoiceAnswer | MapScoreAnswer], api_field("by id of the question")]
    diagnostics: Annotated[dict[str, Diagnostics], api_field("by id of the question")]
    usage: Annotated[SystemOneUsage, api_field("tokens of the request")]
