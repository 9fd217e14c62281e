"""Compares ways to answer typed questions: one forward each, several per forward, and other orders of the options."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from runtime.bench import output
from runtime.bench.held_out import HELD_OUT, read_tasks
from runtime.decisions.questions import MAX_QUESTIONS, Answer, Question, as_text
from runtime.errors import ConfigError
from runtime.llm import LLM

STATE = "Each question is a task of its own. Choose its right answer."
OPTIONS = 4  # per generated question
MIN_TASKS = 2 * OPTIONS  # prompts of a task that has enough wrong answers


class Asked(NamedTuple):
    """A question about a state, its options, and the right one; None: it is not known."""

    state: Any
    instructions: str
    options: Sequence[str]
    right: str | None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", help="checkpoint directory; default: the shipped demo")
    parser.add_argument("--device", help="cpu or cuda; default: cuda if available")
    parser.add_argument("--dtype", help="default: float32 on the CPU, bfloat16 on CUDA")
    parser.add_argument(
        "--questions", type=Path, metavar="FILE",
        help="JSON lines with state, instructions, options (texts) and, if known, answer; default: prompts of the demo "
        "tasks, each with the answers to three others",
    )  # fmt: skip
    parser.add_argument("--n", type=int, default=64, help="questions, the first of the file; default: 64")
    parser.add_argument("--group", type=int, default=16, help="questions about one state per request; default: 16")
    output.add_json(parser)


def main(args: argparse.Namespace) -> int:
    asked = list(_from_file(args.questions) if args.questions else _of_tasks())[: args.n]
    if not 0 < args.group <= MAX_QUESTIONS:
        raise ConfigError(f"--group {args.group}: must be 1 to {MAX_QUESTIONS}")
    if not asked:
        raise ConfigError("--n: no question is left; choose more")
    flags = {name: value for name in ("device", "dtype") if (value := getattr(args, name)) is not None}
    with LLM(args.model, **flags) as llm:
        groups = list(_groups(asked, args.group))
        for joint in (False, True):
            _run(llm, groups[:1], joint=joint)  # compiles and fills caches of labels
        single, together = (_run(llm, groups, joint=joint) for joint in (False, True))
        turned = _run(llm, groups, joint=False, turned=1)
    ways = {"single": single, "joint": together, "options in another order": turned}
    rows = [_row(way, asked, run, single) for way, run in ways.items()]
    for row in rows:
        right = "" if row["accuracy"] is None else f", {row['accuracy']:.1%} right"
        print(
            f"{row['way']:24} {1e3 * row['seconds_per_question']:8.2f} ms per question, {row['forwards']} forwards, "
            f"label mass {row['label_mass']:.3f}{right}; against single: {row['same']:.1%} same, probabilities differ "
            f"by {row['difference']:.4f}"
        )
    if args.json:
        args.json.write_text(json.dumps({"questions": len(asked), "group": args.group, "rows": rows}, indent=1) + "\n")
    return 0


class Run(NamedTuple):
    """Answers in order, with the probabilities in the order of the options of the question."""

    answers: list[Answer]
    seconds: float
    forwards: int


def _run(llm: LLM, groups: Sequence[Sequence[Asked]], *, joint: bool, turned: int = 0) -> Run:
    """Answers all questions. `turned`: places by which the options are rotated."""
    before, began = llm.engine.stats().forwards_read, time.perf_counter()
    answers: list[Answer] = []
    for group in groups:
        questions = [Question.choice(one.instructions, [*one.options[turned:], *one.options[:turned]]) for one in group]
        answers += llm.decide(group[0].state, questions, joint=joint)
    return Run(answers, time.perf_counter() - began, llm.engine.stats().forwards_read - before)


def _row(way: str, asked: Sequence[Asked], run: Run, single: Run) -> dict[str, Any]:
    """Returns the result of a run, and how its answers differ from those of `single`."""
    known = [(one.right, answer.value) for one, answer in zip(asked, run.answers, strict=True) if one.right is not None]
    pairs = list(zip(run.answers, single.answers, strict=True))
    differences = [
        abs(by[option.value] - p)
        for one, other in pairs
        for by in [{o.value: q for o, q in zip(one.question.options, one.probabilities, strict=True)}]
        for option, p in zip(other.question.options, other.probabilities, strict=True)
    ]
    return {
        "way": way,
        "seconds_per_question": run.seconds / len(run.answers),
        "forwards": run.forwards,
        "label_mass": sum(answer.label_mass for answer in run.answers) / len(run.answers),
        "accuracy": sum(right == value for right, value in known) / len(known) if known else None,
        "same": sum(one.value == other.value for one, other in pairs) / len(pairs),
        "difference": sum(differences) / len(differences),
    }


def _groups(asked: Sequence[Asked], size: int) -> Iterator[list[Asked]]:
    """Yields consecutive questions about one state, at most `size` together."""
    group: list[Asked] = []
    for one in asked:
        if group and (len(group) == size or one.state != group[0].state):
            yield group
            group = []
        group.append(one)
    yield group


def _from_file(path: Path) -> Iterator[Asked]:
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            row = json.loads(line)
            right = row.get("answer")
            yield Asked(row["state"], as_text(row["instructions"]), [str(one) for one in row["options"]], right)
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{path}, line {number}: needs state, instructions and options ({error})") from None


def _of_tasks() -> Iterator[Asked]:
    """Yields the prompts of the demo tasks in turn, each with its right answer among those of other prompts."""
    tasks = [
        [prompt for prompt in task.prompts if prompt.check == "exact" and len(prompt.messages) == 1]
        for task in read_tasks(HELD_OUT).values()
        if task.kind == "short"
    ]
    tasks = [task for task in tasks if len({prompt.answer for prompt in task}) >= MIN_TASKS]
    for n in range(min(map(len, tasks), default=0)):
        for task in tasks:
            right = task[n].answer
            others = [answer for answer in dict.fromkeys(prompt.answer for prompt in task) if answer != right]
            start = n % (len(others) - OPTIONS)
            options = others[start : start + OPTIONS - 1]
            options.insert(n % OPTIONS, right)
            yield Asked(STATE, task[n].messages[0]["content"], options, right)
