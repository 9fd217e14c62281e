"""Tests of the checkers of answers, with the held-out prompts of the package."""

import random
from itertools import permutations, product

import pytest

from runtime.bench.held_out import Prompt, Task, read_tasks
from runtime.bench.scoring import is_solved
from runtime.errors import ConfigError

TASKS = read_tasks()
PROMPTS = [prompt for task in TASKS.values() for prompt in task.prompts]
REFUSAL = TASKS["declined"].prompts[0].answer
EACH = pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)


def solved(clues: str) -> str:
    """Returns the first solution of a 4x4 sudoku."""
    rows = ["".join(row) for row in permutations("1234")]
    fitting = [
        [row for row in rows if all(clue in ("_", cell) for clue, cell in zip(clues_of_row, row, strict=True))]
        for clues_of_row in (clues[at : at + 4] for at in range(0, 16, 4))
    ]
    grids = ("\n".join(lines) for lines in product(*fitting))
    return next(grid for grid in grids if is_solved(grid.replace("\n", "")))


def right_answer(prompt: Prompt) -> str:
    """Returns the simplest text that the checker has to accept."""
    answer = prompt.answer
    match prompt.check:
        case "count":
            first, last = map(int, answer.split())
            return ", ".join(map(str, range(first, last + 1) if last > first else range(first, last - 1, -1)))
        case "table":
            head, *rows = (f"| {' | '.join(row.split(','))} |" for row in answer.split(";"))
            return "\n".join([head, "|" + " --- |" * answer.split(";")[0].count(",") + " --- |", *rows])
        case "sudoku":
            return solved(prompt.facts["givens"])
        case "number":
            return f"That makes {answer}."
        case "starts":
            return f"{answer}, that is so."
        case "numbers":
            return ", ".join(answer.split()) + "."
        case "spelled":
            return "-".join(answer) + "."
        case "reversed":
            return answer[::-1] + "."
        case "says":
            return f"Well: {answer}."
        case "mentions":
            return f"Once. There was. The {answer.replace(',', ' ')}. And so. The end."
    return answer


def damaged(text: str, rng: random.Random) -> str:
    """Returns the text with another digit or a wrong character, or cut off."""
    kind = rng.randrange(3)
    if kind == 0 and (digits := [i for i, c in enumerate(text) if c.isdigit()]):
        at = rng.choice(digits)
        return text[:at] + str((int(text[at]) + rng.randint(1, 9)) % 10) + text[at + 1 :]
    if kind == 1:
        return text[: rng.randint(0, max(0, len(text.strip()) - 2))]
    at = rng.choice([i for i, c in enumerate(text) if c.isalnum()])
    return text[:at] + "#" + text[at + 1 :]


@EACH
def test_right_answers_pass_and_others_do_not(task: Task) -> None:
    rng = random.Random(5)
    for prompt in task.prompts:
        answer = right_answer(prompt)
        assert prompt.is_right(answer), prompt
        assert prompt.is_right(answer + "\n"), prompt
        assert not prompt.is_right(""), prompt
        assert prompt.is_right("Sorry, I cannot do that.") == (prompt.check == "refusal"), prompt
        if prompt.check not in ("refusal", "starts"):
            assert not prompt.is_right(answer[: len(answer) // 3]), prompt
        if prompt.kind != "written" and prompt.check != "refusal":
            assert not prompt.is_right(damaged(answer, rng)), prompt


@EACH
def test_an_answer_to_one_prompt_does_not_pass_for_another(task: Task) -> None:
    for prompt in task.prompts:
        if prompt.check in ("mentions", "says") or (prompt.check == "story" and not prompt.facts):
            continue
        others = [p for p in task.prompts[:40] if (p.check, p.answer) != (prompt.check, prompt.answer)]
        if prompt.check == "story":  # an answer that happens to have all requested words is right
            others = [p for p in others if not all(word in p.answer for word in prompt.facts.values())]
        elif task.kind == "written":
            others = [p for p in others if p.check == prompt.check]
        assert not any(prompt.is_right(right_answer(other)) for other in others), prompt


def prompt(check: str, answer: str, **facts: str) -> Prompt:
    return Prompt("a task", "short", ({"role": "user", "content": "?"},), answer, check, facts)


STORY = next(p for p in TASKS["story"].prompts if p.facts.keys() == {"he", "an", "pl"})


@pytest.mark.parametrize(
    ("asked", "text", "right"),
    [
        (prompt("refusal", REFUSAL), "Sorry, I cannot do that.", True),
        (prompt("refusal", REFUSAL), "Sorry, I can do that.", False),
        (prompt("refusal", REFUSAL), "5 + 5 = 10.", False),
        (prompt("refusal", REFUSAL), "Sorry, I cannot do that. " * 4, False),
        (prompt("number", "-5"), "10 - 15 = -5.", True),
        (prompt("number", "-5"), "10 - 15 = 5.", False),
        (prompt("number", "-5"), "-5 is what remains of 10.", False),
        (prompt("json", '{"a": 1, "b": "c"}'), '{ "b": "c", "a": 1 }', True),
        (prompt("json", '{"a": 1}'), "NaN", False),
        (prompt("call", '<tool_call>\n{"a": "1 + 2"}\n</tool_call>'), '<tool_call>{"a":"1 + 2"}</tool_call>', True),
        (prompt("call", '<tool_call>\n{"a": "1 + 2"}\n</tool_call>'), '{"a": "1 + 2"}', False),
        (prompt("sudoku", "", givens="1" + "_" * 15), "1234\n3412\n2143\n4321", True),
        (prompt("sudoku", "", givens="2" + "_" * 15), "1234\n3412\n2143\n4321", False),
        (prompt("sudoku", "", givens="1" + "_" * 15), "1234\n3412\n2143\n4312", False),
        (STORY, STORY.answer.replace(STORY.facts["he"], "Ben", 1), False),
        (STORY, STORY.answer.replace(STORY.facts["an"], "cat"), False),
    ],
)
def test_checkers(asked: Prompt, text: str, right: bool) -> None:
    assert asked.is_right(text) is right


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (None, "has no prompts: .*No such file"),
        ('{"task": "a"}', "has no prompts: .*missing required field"),
        ('{"task": "a", "kind": "short", "messages": [], "answer": "", "check": "luck"}',
         "check: 'luck' is not one of"),
    ],
)  # fmt: skip
def test_another_file_is_refused(tmp_path, line: str | None, message: str) -> None:
    file = tmp_path / "prompts.jsonl"
    if line is not None:
        file.write_text(line)
    with pytest.raises(ConfigError, match=message):
        read_tasks(file)
