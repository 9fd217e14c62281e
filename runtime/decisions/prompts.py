"""Prompts of decisions: their wording, the labels of options, and which questions one forward reads.

The wording changes only together with `PROMPT_FORMAT`.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from runtime.decisions.questions import MAX_QUESTIONS, Answer, Question
from runtime.errors import RequestError
from runtime.parsers.formats import reasoning_format
from runtime.request.engine_messages import EngineInfo, RequestSpec
from runtime.request.read import ReadTemplate, canvas_size, read_spec, slot_capacity
from runtime.request.resolve import TOO_LONG, RequestContext
from runtime.request.validation import refuse
from runtime.tokenizer import Tokenizer
from runtime.tokenizer.template_sandbox import Cancelled, RenderBudget

PROMPT_FORMAT = 1
MAX_CANVAS_QUESTIONS = 64  # questions that one canvas of noise answers
MAX_PROMPT_TOKENS = 2**21  # of all reads of a request
MAX_KNOWN = 64
_CACHE: WeakKeyDictionary[Tokenizer, dict[tuple[str, str], Any]] = WeakKeyDictionary()  # what depends on a template
TAIL_TOKENS = 32  # last tokens of a prompt that may change how a label is encoded, or open reasoning
NAMES = [*string.ascii_uppercase, *(a + b for a in string.ascii_uppercase for b in string.ascii_uppercase)]

_ONE = "Answer with the letter of one option."
_SEVERAL = (
    "Answer each question on a line of its own: the number of the question, a colon, and the letter of one option."
)
_NO_INSTRUCTIONS = "Which option is right?"


class Labels(NamedTuple):
    """Labels of options, each one token at the place of an answer.

    Attributes:
        names: texts by option.
        ids: tokens by option; in lines of several answers those after the space.
        others: further tokens of the same names there, without the space.
    """

    names: list[str]
    ids: list[int]
    others: list[int]


@dataclass(frozen=True)
class DecisionRead:
    """A forward that answers some questions: a prompt, and the template of the answers behind it."""

    questions: Sequence[Question]
    prompt: list[int]
    template: ReadTemplate
    labels: Labels

    @property
    def ids(self) -> list[int]:
        """The tokens whose log-probabilities are read at each slot."""
        return self.labels.ids + self.labels.others

    def spec(self, info: EngineInfo, context: RequestContext, cache_salt: str = "") -> RequestSpec:
        """Returns the request of the read. Raises RequestError if it is too long."""
        path = self.questions[0].path
        return read_spec(self.prompt, self.template, self.ids, info, context, param=path, cache_salt=cache_salt)

    def answers(self, values: Sequence[Sequence[float]]) -> Iterator[Answer]:
        """Yields the answers from the result of the read (``EngineOutput.read``)."""
        for question, row in zip(self.questions, values, strict=True):
            *logprobs, best = row
            count, every = len(question.options), len(self.labels.ids)
            own, others = logprobs[:count], logprobs[every:][:count]
            yield Answer.of(question, [*map(max, own, others)] if others else own, best)


class DecisionPrompts:
    """Makes the reads of the questions about one conversation.

    Args:
        messages: the conversation, as chat templates take it.
        variables: variables of the chat template.
        is_needed: returns False once nobody waits for the result.
    """

    def __init__(
        self, tokenizer: Tokenizer, info: EngineInfo, messages: Sequence[Mapping[str, Any]],
        variables: Mapping[str, Any], is_needed: Callable[[], bool] = lambda: True,
    ) -> None:  # fmt: skip
        self._tokenizer, self._info, self._messages, self._is_needed = tokenizer, info, messages, is_needed
        self._variables = {**info.template_variables, "enable_thinking": False, **variables}
        self._known = _CACHE.setdefault(tokenizer, {})
        end = [id for id in self._template([{"role": "assistant", "content": "a"}]) if id in info.eos_token_ids]
        self._end = end[-1] if end else info.eos_token_ids[0]
        pad = tokenizer.token_id(str(tokenizer.named_tokens.get("pad_token")))
        self._pad = self._end if pad is None else pad

    def reads(self, questions: Sequence[Question], *, joint: bool) -> list[DecisionRead]:
        """Returns the reads that answer the questions, in order.

        Args:
            joint: answer as many questions per forward as fit, instead of one.

        Raises:
            RequestError: a prompt is too long, or a question has more options than there are labels.
        """
        found: list[DecisionRead] = []
        tokens = 0
        while questions:
            if not self._is_needed():
                raise Cancelled
            read = self._joint(questions) if joint and len(questions) > 1 else None
            read = read or self._single(questions[0])
            tokens += len(read.prompt)
            if tokens > MAX_PROMPT_TOKENS:
                raise refuse("questions", f"these have more than {MAX_PROMPT_TOKENS} prompt tokens; send fewer")
            found.append(read)
            questions = questions[len(read.questions) :]
        return found

    def _single(self, question: Question) -> DecisionRead:
        count = len(question.options)

        def write(names: Sequence[str]) -> str:
            return f"{_question(question, names)}\n\n{_ONE}"

        prompt, labels = self._prompt(write, question.path, count, self._labels)
        return DecisionRead([question], prompt, ReadTemplate([None], self._end, self._pad), labels)

    def _joint(self, questions: Sequence[Question]) -> DecisionRead | None:
        """Returns a read of as many of the first questions as fit into a forward, at least two; None if they do not."""
        info = self._info
        count = len(questions)
        if not info.truncate_last_block:
            count = min(count, self._lines_within(info.block_size))
        while count > 1:
            some = questions[:count]
            most = max(len(question.options) for question in some)

            def write(names: Sequence[str], some: Sequence[Question] = some) -> str:
                each = [f"Question {n}: {_question(question, names)}" for n, question in enumerate(some, 1)]
                return "\n\n".join([*each, _SEVERAL])

            try:
                prompt, labels = self._prompt(write, questions[0].path, most, self._line_labels)
            except RequestError as error:
                if error.code != TOO_LONG:
                    raise
                count = count * 3 // 4
                continue
            fitting = self._lines_within(slot_capacity(len(prompt), info), self._tail(prompt))
            if fitting >= count:
                lines = self._lines(self._tail(prompt), count)
                return DecisionRead(some, prompt, ReadTemplate(lines, self._end, self._pad), labels)
            count = max(min(fitting, count - 1), count * 3 // 4)  # fewer questions leave more space
        return None

    def _prompt(
        self, write: Callable[[Sequence[str]], str], path: str, count: int, labels_of: Callable[[str], Labels]
    ) -> tuple[list[int], Labels]:
        """Returns a prompt that ends with a text of questions, and its labels.

        Args:
            write: returns the text, from the names of the labels.
            path: the question, for error messages.
            count: number of labels.
            labels_of: returns the labels at the place after the end of a prompt.
        """
        expected = labels_of(self._usual_tail())
        for _ in range(2):  # the template may end this prompt in another way than most
            if len(expected.ids) < count:
                raise refuse(path, f"has {count} options; this model's tokenizer has labels for {len(expected.ids)}")
            prompt = self._encode(write(expected.names), path, self._messages)
            labels = labels_of(self._tail(prompt))
            if labels.names[:count] == expected.names[:count]:
                return prompt, Labels(*(part[:count] for part in labels))
            expected = labels
        raise refuse(path, "the model's chat template ends in a way that no label of options fits")

    def _encode(self, text: str, path: str, messages: Sequence[Mapping[str, Any]] = ()) -> list[int]:
        """Encodes a conversation with `text` at its end, and an empty block of reasoning if the template opens one."""
        messages = [*messages]
        if messages and messages[-1]["role"] == "user":
            text = f"{messages.pop()['content']}\n\n{text}"
        ids = self._template([*messages, {"role": "user", "content": text}], path)
        reasoning = reasoning_format(self._info.reasoning)
        if reasoning is not None and self._decode_tail(ids).rstrip().endswith(reasoning.opens):
            closing = self._tokenizer.control_id(reasoning.closes)
            closed = self._tokenizer.encode(reasoning.closes) if closing is None else [closing]
            ids = [*ids, *self._tokenizer.encode("\n"), *closed, *self._tokenizer.encode("\n\n")]
        return ids

    def _template(self, messages: Sequence[Mapping[str, Any]], path: str = "questions") -> list[int]:
        begun = messages[-1]["role"] == "user"
        variables = self._variables if begun else {**self._variables, "add_generation_prompt": False}
        messages = messages if begun else [{"role": "user", "content": "a"}, *messages]
        text = self._tokenizer.render(messages, variables, RenderBudget(is_needed=self._is_needed))
        ids = self._tokenizer.encode_limited(text, self._info.max_model_len, path, self._is_needed)
        if ids is None or len(ids) >= self._info.max_model_len:
            length = self._info.max_model_len
            why = f"its prompt and the answer exceed the model's length of {length} tokens"
            raise refuse(path, f"{why}; shorten the state or the question", code=TOO_LONG)
        return ids

    def _decode_tail(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(ids[-TAIL_TOKENS:])

    def _tail(self, prompt: Sequence[int]) -> str:
        """Returns the text after the last special token of a prompt, at most that of its last tokens."""
        ids = list(prompt[-TAIL_TOKENS:])
        special = [i for i, id in enumerate(ids) if id in self._tokenizer.special]
        return self._tokenizer.decode(ids[special[-1] + 1 if special else 0 :])

    def _usual_tail(self) -> str:
        """Returns the tail of most prompts of the template."""
        variables = repr(sorted((name, str(value)) for name, value in self._variables.items()))
        found: str = self._cached("tail", variables, lambda _: self._tail(self._encode("a", "questions")))
        return found

    def _labels(self, tail: str) -> Labels:
        """Returns the labels of one answer: all names that are one token each, and no token twice."""
        found: Labels = self._cached("labels", tail, self._find_labels)
        return found

    def _line_labels(self, tail: str) -> Labels:
        """Returns the labels of lines of several answers."""
        found: Labels = self._cached("line labels", tail, self._find_line_labels)
        return found

    def _cached(self, kind: str, key: str, find: Callable[[str], Any]) -> Any:
        found = self._known.get((kind, key))
        if found is None:
            found = find(key)
            # Without special tokens in the template, each prompt has a tail of its own.
            if len(self._known) >= MAX_KNOWN:
                self._known.clear()
            self._known[kind, key] = found
        return found

    def _find_labels(self, tail: str) -> Labels:
        before = self._tokenizer.encode(tail)
        found: dict[int, str] = {}
        for name in NAMES:
            ids = self._tokenizer.encode(tail + name)
            if ids[:-1] == before and self._may_be_read(ids[-1]):
                found.setdefault(ids[-1], name)
        return Labels(list(found.values()), list(found), [])

    def _find_line_labels(self, tail: str) -> Labels:
        """Returns labels that are one token in every line, and their tokens without a space before them."""
        names, bare, _ = self._labels(tail)
        first = self._tokenizer.encode(tail + _lines("A", 2))
        slots = self._slots(tail, 2)
        found: dict[int, tuple[str, int]] = {}
        for name, other in zip(names, bare, strict=True):
            ids = self._tokenizer.encode(tail + _lines(name, 2))
            rest = [id for at, id in enumerate(ids) if at not in slots]
            token = ids[slots[0]] if slots and len(ids) == len(first) else -1
            same = rest == [id for at, id in enumerate(first) if at not in slots]
            if same and all(ids[at] == token for at in slots) and self._may_be_read(token):
                found.setdefault(token, (name, other))
        names, others = [name for name, _ in found.values()], [other for _, other in found.values()]
        return Labels(names, list(found), [] if others == list(found) else others)

    def _may_be_read(self, id: int) -> bool:
        info = self._info
        never = (info.mask_token_id, info.delete_token_id, info.split_token_id)
        return 0 <= id <= info.max_token_id and id not in self._tokenizer.special and id not in never

    def _slots(self, tail: str, count: int) -> list[int]:
        """Returns the positions of the answers among the tokens of `tail` and so many lines; [] if they have none."""
        one, other = (self._tokenizer.encode(tail + _lines(name, count)) for name in NAMES[:2])
        slots = [at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b]
        before = self._tokenizer.encode(tail)
        fits = len(one) == len(other) and len(slots) == count and one[: len(before)] == before
        return slots if fits else []

    def _lines(self, tail: str, count: int) -> list[int | None]:
        """Returns the template of so many answers; [] if a label is no token of its own there."""
        slots, before = set(self._slots(tail, count)), len(self._tokenizer.encode(tail))
        if not slots:
            return []
        ids = self._tokenizer.encode(tail + _lines(NAMES[0], count))
        return [None if at in slots else id for at, id in enumerate(ids)][before:]

    def _lines_within(self, capacity: int, tail: str | None = None) -> int:
        """Returns how many lines fit into so many positions."""
        tail, info = self._usual_tail() if tail is None else tail, self._info
        low, high = 0, MAX_CANVAS_QUESTIONS if info.mask_token_id is None else max(capacity, 0)
        high = min(high, MAX_QUESTIONS)
        while low < high:
            middle = (low + high + 1) // 2
            length = len(self._lines(tail, middle))
            noise = 0 if info.mask_token_id is not None else 2  # the end of the turn, and a pad
            if length > 0 and length + noise <= capacity and canvas_size(length, info) <= capacity:
                low = middle
            else:
                high = middle - 1
        return low


def _question(question: Question, names: Sequence[str]) -> str:
    options = [f"{name}: {option.text}" for name, option in zip(names, question.options, strict=False)]
    return "\n".join([question.instructions or _NO_INSTRUCTIONS, *options])


def _lines(name: str, count: int) -> str:
    return "\n".join(f"{n}: {name}" for n in range(1, count + 1))
