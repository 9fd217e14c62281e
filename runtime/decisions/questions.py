"""Typed questions, and their answers from the log-probabilities of labels."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from runtime.request.validation import refuse

MAX_QUESTIONS = 400
LIMITS = {"predicate": (2, 2), "choice": (1, 255), "score": (1, 10)}  # options by type of question

QuestionType = Literal["predicate", "choice", "score"]


@dataclass(frozen=True)
class Option:
    """An option of a question. `value` is what the answer has; `text` is what the model reads, with `label` in it."""

    value: str | bool | int
    label: str
    text: str


@dataclass(frozen=True)
class Question:
    """A question about a state.

    Attributes:
        instructions: text of the question; "" if the options say it.
        options: of a predicate false and true, of a score its levels from the lowest.
        path: the question in the request, for error messages.
        name: name in the request; None: it has none.
    """

    type: QuestionType
    instructions: str
    options: tuple[Option, ...]
    path: str
    name: str | None = None

    @classmethod
    def predicate(cls, instructions: str, *, true: str = "", false: str = "") -> Question:
        """Returns a question about the probability of a yes. `true`, `false`: what yes and no mean."""
        return make_question(
            "predicate", "question", instructions, [(False, "false", false), (True, "true", true)]
        )  # fmt: skip

    @classmethod
    def choice(cls, instructions: str, options: Sequence[str | bool] | Mapping[str, str | None]) -> Question:
        """Returns a question about the right option. `options`: values, or descriptions by value.

        Raises:
            RequestError: there is none, there are more than 255, or one occurs twice.
        """
        described = options if isinstance(options, Mapping) else dict.fromkeys(range(len(options)))
        values = list(options)
        each = zip(values, described.values(), strict=True)
        return make_question(
            "choice", "question", instructions, [(value, as_text(value), text or "") for value, text in each]
        )  # fmt: skip

    @classmethod
    def score(cls, instructions: str, levels: Sequence[str]) -> Question:
        """Returns a question about the right level, of 1 to 10 levels from the lowest to the highest.

        Raises:
            RequestError: there is none, or there are too many.
        """
        return make_question("score", "question", instructions, [(i, level, "") for i, level in enumerate(levels)])


@dataclass(frozen=True)
class Answer:
    """The answer to a question.

    Attributes:
        probabilities: of the options, in their order; their sum is 1.
        label_mass: probability of all labels together among all tokens.
        argmax_is_label: whether the most probable token is a label.
    """

    question: Question
    probabilities: list[float]
    label_mass: float
    argmax_is_label: bool

    @classmethod
    def of(cls, question: Question, logprobs: Sequence[float], best: float) -> Answer:
        """Returns the answer from the log-probabilities of the labels, and the highest one of any token."""
        top = max(logprobs)
        weights = [math.exp(value - top) for value in logprobs]
        total = sum(weights)
        mass = min(total * math.exp(top), 1.0)
        return cls(question, [weight / total for weight in weights], mass, top >= best)

    @property
    def top(self) -> int:
        """Index of the most probable option; the first of equal ones."""
        return self.probabilities.index(max(self.probabilities))

    @property
    def value(self) -> str | bool | int:
        """Value of the most probable option."""
        return self.question.options[self.top].value

    @property
    def confidence(self) -> float:
        """Probability of the most probable option times `label_mass`; 1 for a single option."""
        return 1.0 if len(self.probabilities) == 1 else self.probabilities[self.top] * self.label_mass

    @property
    def score(self) -> float:
        """Expected index of the option, for a score; the probability of true, for a predicate."""
        return sum(i * p for i, p in enumerate(self.probabilities))


def as_text(value: Any) -> str:
    """Returns a text unchanged, "" for null, and JSON of any other value."""
    return value if isinstance(value, str) else "" if value is None else json.dumps(value, ensure_ascii=False)


def make_question(
    type: QuestionType, path: str, instructions: str, options: Sequence[tuple[str | bool | int, str, str]], *,
    at: str = "", name: str | None = None,
) -> Question:  # fmt: skip
    """Makes a question.

    Args:
        options: value, label and description of each; label and description are shown if they are not empty.
        at: field of the options, for error messages.

    Raises:
        RequestError: it has too few or too many options, or the same one twice.
    """
    least, most = LIMITS[type]
    at = at or path
    if not least <= len(options) <= most:
        raise refuse(at, f"has {len(options)} options; a {type} has {least} to {most}")
    seen: set[tuple[bool, str | bool | int]] = set()
    for i, (value, _, _) in enumerate(options):
        if (isinstance(value, bool), value) in seen:
            raise refuse(f"{at}[{i}]", f"{json.dumps(value, ensure_ascii=False)} occurs twice; leave one out")
        seen.add((isinstance(value, bool), value))
    quoted = type == "choice" and any(isinstance(value, bool) for value, _, _ in options)  # true differs from "true"
    found = []
    for value, label, description in options:
        shown = json.dumps(label, ensure_ascii=False) if quoted and isinstance(value, str) else label
        found.append(Option(value, label, " - ".join(filter(None, (shown, description)))))
    return Question(type, instructions, tuple(found), path, name)
