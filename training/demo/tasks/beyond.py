"""Requests just outside the limits of the model card, in the wordings of the tasks. The model declines them.

`KINDS` has a generator per limit. Most values are close to the limit, so that the model learns where it is.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence

from runtime.bench.stories import with_article
from training.demo.tasks import (
    arithmetic,
    comparing,
    fill,
    followup,
    lists,
    long_addition,
    number_names,
    records,
    roman,
    spelling,
    story,
    sudoku,
    times_table,
    units,
    word_lists,
)
from training.demo.tasks.base import Sample, single, task, turns
from training.demo.tasks.greetings import REFUSAL
from training.demo.tasks.phrasing import listed, phrase, quoted, typed
from training.demo.tasks.refusing import CHECKER

TOP = arithmetic.LARGEST


def _above(rng: random.Random, top: int, grouped: bool = False) -> str:
    """Returns a number above `top`, mostly close to it; with `grouped` sometimes with separators."""
    kind = rng.random()
    if kind < 0.35:
        n = top + rng.randint(1, max(9, top // 100))
    elif kind < 0.55:
        n = rng.randint(top + 1, 2 * top)
    elif kind < 0.7:
        scale = 10 ** (len(str(top + 1)) - 1)
        n = scale * (top // scale + rng.randint(1, 9))
    else:
        n = rng.randint(top + 1, (top + 1) * 10 ** rng.randint(1, 4))
    return f"{n:,}" if grouped and n > 999 and rng.random() < 0.12 else str(n)


def _decimal(rng: random.Random) -> str:
    return f"{rng.randint(0, rng.choice((9, 99, 999)))}.{rng.choice((5, rng.randint(1, 9), rng.randint(1, 99)))}"


def _calculation(rng: random.Random, sign: str) -> str:
    """Returns a question with one or two operands above the limit, or with a decimal."""
    inside = rng.randint(0, rng.choice((9, 20, 99, TOP)))
    outside = _decimal(rng) if rng.random() < 0.12 else _above(rng, TOP, grouped=True)
    pair = [outside, str(inside) if rng.random() < 0.65 else _above(rng, TOP, grouped=True)]
    if sign != "-" or rng.random() < 0.15:
        rng.shuffle(pair)
    return arithmetic.wording(rng, pair[0], sign, pair[1])


def _sum(rng: random.Random) -> str:
    return _calculation(rng, "+")


def _difference(rng: random.Random) -> str:
    return _calculation(rng, "-")


def _product(rng: random.Random) -> str:
    return _calculation(rng, "x")


def _comparison(rng: random.Random) -> str:
    kind = rng.random()
    if kind < 0.2:  # of three numbers
        three = [str(rng.randint(0, TOP)) for _ in range(3)]
        return comparing.wording(rng, f"{three[0]}, {three[1]}", three[2], among=True)
    pair = [_above(rng, TOP), str(rng.randint(0, TOP)) if rng.random() < 0.6 else _above(rng, TOP)]
    if kind < 0.3:
        pair = [_decimal(rng), rng.choice((_decimal(rng), str(rng.randint(0, 99))))]
    rng.shuffle(pair)
    return comparing.wording(rng, pair[0], pair[1])


def _count(rng: random.Random) -> str:
    top = lists.LARGEST
    kind = rng.random()
    last = top + rng.randint(1, 20) if rng.random() < 0.5 else rng.choice((150, 200, 500, 1000, rng.randint(121, 2000)))
    first = rng.choice((0, 1, 1, rng.randint(2, top), max(top + 1, last - rng.randint(1, 20))))
    if kind < 0.2:
        return phrase(rng, lists.TO, lists.COUNT_TO, b=last)
    if kind < 0.3:
        return phrase(rng, lists.FROM, (), a=last)
    if kind < 0.45:  # in other steps than one
        step = rng.choice((" in steps of {}", " by {}s", " in steps of {}", ", every {}th number")).format(
            rng.randint(2, 12)
        )
        step = rng.choice((step, step, " by twos", ", only the even numbers", ", only odd numbers", " by tens"))
        a, b = sorted(rng.sample(range(top + 1), 2))
        return phrase(rng, [core + step for core in lists.COUNT], (), a=a, b=b)
    if kind < 0.52:
        return phrase(rng, lists.COUNT, lists.NUMBERS, a=_decimal(rng), b=rng.randint(100, top))
    if kind < 0.75:
        return phrase(rng, lists.DOWN, lists.DOWNWARDS, a=last, b=min(first, last - 1))
    return phrase(rng, lists.COUNT, lists.NUMBERS, a=min(first, last - 1), b=last)


def _sort(rng: random.Random) -> str:
    kind = rng.random()
    numbers = [str(n) for n in rng.sample(range(rng.choice((100, TOP + 1))), rng.randint(2, 7))]
    if kind < 0.4:  # too many
        many = rng.choice((8, 8, 8, 9, 9, 10, 11, 12, 15))
        numbers = [str(n) for n in rng.sample(range(rng.choice((20, 100, TOP + 1))), many)]
    elif kind < 0.75:
        for i in rng.sample(range(len(numbers)), rng.choice((1, 1, 2))):
            numbers[i] = _above(rng, TOP) if kind < 0.65 else _decimal(rng)
    elif kind < 0.92:  # too many words
        words = [word_lists.noun(rng) for _ in range(rng.choice((6, 6, 6, 7, 7, 8, 10)))]
        return phrase(rng, lists.ALPHABETICAL, (), l=listed(rng, words))
    else:
        numbers[rng.randrange(len(numbers))] = word_lists.noun(rng)
    return lists.ask_to_sort(rng, listed(rng, numbers))[0]


def _words(rng: random.Random) -> str:
    """Returns a word that is too long, or several words."""
    kind = rng.random()
    if kind < 0.55:
        length = spelling.MAX_LETTERS + rng.choice((1, 1, 2, 2, 3, 4, rng.randint(5, 14)))
        word = ""
        while len(word) < length:
            word += word_lists.made_up(rng) if rng.random() < 0.6 else word_lists.noun(rng)
        return word[:length]
    several = [spelling.word(rng) for _ in range(rng.choice((2, 2, 2, 3, 4)))]
    return (" and " if kind < 0.65 else " ").join(several)


def _spell(rng: random.Random) -> str:
    return phrase(rng, spelling.SPELL, spelling.HOW, w=quoted(rng, _words(rng)))


def _reverse(rng: random.Random) -> str:
    return phrase(rng, spelling.REVERSE, spelling.BACKWARDS, w=quoted(rng, _words(rng)))


def _number_words(rng: random.Random) -> str:
    kind = rng.random()
    n = _above(rng, 999_999, grouped=True)
    if kind < 0.12:
        n = _decimal(rng)
    elif kind < 0.25:
        n = f"{rng.randint(1000, 999_999):,}"
    elif kind < 0.3:
        n = str(10 ** rng.randint(6, 9))
    return phrase(rng, number_names.CORES, number_names.QUESTIONS, n=n)


def _roman(rng: random.Random) -> str:
    n = _above(rng, roman.LARGEST, grouped=True)
    kind = rng.random()
    if kind < 0.12:
        n = "0"
    elif kind < 0.2:
        n = _decimal(rng)
    elif kind < 0.28:
        n = f"-{rng.randint(1, 99)}"
    elif kind < 0.4:
        n = str(rng.choice((4000, 4001, 5000, 10000, rng.randint(4000, 4100))))
    return phrase(rng, roman.CORES, roman.QUESTIONS, n=n)


def _units(rng: random.Random) -> str:
    large, small, factor, top = rng.choice(units.UNITS)
    u, v = rng.choice(large), rng.choice(small)
    kind = rng.random()
    if kind < 0.5:
        n = _above(rng, top)
    elif kind < 0.6:
        n = _decimal(rng)
    else:
        n = str((top + rng.choice((1, rng.randint(1, top)))) * factor)
        u, v = v, u
    return _conversion(rng, n, u, v)


def _remainder(rng: random.Random) -> str:
    """Returns a conversion to the larger unit that has a remainder."""
    large, small, factor, top = units.units_up_to(rng, rng.choice((units.METRIC, units.OTHER, units.OTHER)))
    whole = factor * rng.randint(0, top)
    n = whole + rng.choice((1, factor - 1, max(1, factor // 2), rng.randint(1, factor - 1)))
    return _conversion(rng, str(n), rng.choice(small), rng.choice(large))


def _conversion(rng: random.Random, n: str, u: str, v: str) -> str:
    return phrase(rng, units.CORES, units.QUESTIONS, n=n, u=units.named(int(n) if n.isdigit() else 2, u), v=v)


def _json(rng: random.Random) -> str:
    if rng.random() < 0.2:
        several = listed(rng, [word_lists.noun(rng) for _ in range(rng.randint(2, 5))])
        cores = ("make a JSON array with {l}", "make a JSON list of {l}", "write {l} as a JSON array",
                 "turn {l} into a JSON list", "give me a JSON array of {l}", "create a JSON array: {l}")  # fmt: skip
        return phrase(rng, cores, ("JSON array: {l}", "JSON list: {l}", "{l} as a JSON array"), l=several)
    return records.ask_for_json(rng, records.many_fields(rng, rng.choice((5, 5, 5, 6, 6, 7, 8))))


def _table(rng: random.Random) -> str:
    def row(cells: int) -> list[str]:
        return [rng.choice((word_lists.noun(rng), word_lists.name(rng), str(rng.randint(1, 99)))) for _ in range(cells)]

    kind = rng.random()
    if kind < 0.5:  # too many rows
        count = rng.choice((6, 6, 7, 8))
        rows = [[word_lists.name(rng), str(rng.randint(1, 99)), word_lists.city(rng)] for _ in range(count)]
    elif kind < 0.8:  # too many columns
        width = rng.choice((4, 4, 5, 6)) if kind < 0.65 else rng.choice((2, 4, 4, 5))
        rows = [row(width) for _ in range(rng.randint(1, 4))]
    else:
        rows = [row(rng.randint(1, 3)) for _ in range(rng.randint(2, 4))]
        if len({len(r) for r in rows}) == 1:
            rows[rng.randrange(len(rows))].append(word_lists.noun(rng))
    text = rng.choice(("; ", "; ", "\n", " / ")).join(", ".join(r) for r in rows)
    if 0.5 < kind < 0.65:
        names = ", ".join(rng.sample(records.HEADS, len(rows[0])))
        return phrase(rng, records.COLUMNED, (), l=text, h=names)
    return phrase(rng, records.TABLES, records.TABLE, l=text)


def _story(rng: random.Random) -> str:
    if rng.random() < 0.5:  # more roles than a story has
        several = [with_article(word_lists.noun(rng)) for _ in range(rng.choice((3, 3, 4)))]
        if rng.random() < 0.5:
            several = [word_lists.name(rng) for _ in range(4)]  # the last of three may be a city
        several += [f"the {word_lists.noun(rng)}"] if rng.random() < 0.4 else []
        return story.ask_for(rng, ", ".join(several[:-1]) + " and " + several[-1])
    length = story.MAX_LETTERS + rng.choice((1, 1, 2, 2, 3, 5, 8))
    word = ""
    while len(word) < length:
        word += word_lists.made_up(rng) if rng.random() < 0.5 else word_lists.noun(rng)
    word = word[:length]
    forms = (word.capitalize(), with_article(word), f"the {word}", f"a {rng.choice(story.KINDS)} {word}")
    parts = [rng.choice(forms)]
    if rng.random() < 0.4:
        parts.insert(rng.randint(0, 1), rng.choice((word_lists.name(rng), with_article(word_lists.noun(rng)))))
    return story.ask_for(rng, " and ".join(parts))


def _sudoku(rng: random.Random) -> str:
    size = rng.choice((4, 4, 4, 2, 3, 5, 6, 8, 9))
    cells = [rng.choice("123456789"[:size]) for _ in range(size * size)]
    kept = rng.randint(0, 4) if size == 4 else rng.randint(size, size * size // 2)
    clues = set(rng.sample(range(size * size), min(kept, size * size)))
    rows = ["".join(c if size * r + i in clues else "_" for i, c in enumerate(cells[size * r : size * (r + 1)]))
            for r in range(size)]  # fmt: skip
    return sudoku.ask_to_solve(rng, "\n".join(rows))


def _long_addition(rng: random.Random) -> str:
    a = _above(rng, 10**long_addition.DIGITS - 1)
    pair = [a, str(rng.randint(1, 10 ** rng.randint(1, 8)))]
    rng.shuffle(pair)
    return phrase(rng, long_addition.CORES, long_addition.QUESTIONS, a=pair[0], b=pair[1])


def _times_table(rng: random.Random) -> str:
    top, rows = times_table.LARGEST, times_table.ROWS
    n, k = str(rng.randint(1, top)), str(rng.randint(1, rows))
    kind = rng.random()
    if kind < 0.5:
        n = rng.choice((str(top + rng.randint(1, 10)), str(rng.randint(top + 1, 999)), "0", _decimal(rng)))
    else:
        k = rng.choice((str(rows + rng.randint(1, 5)), str(rng.choice((20, 25, 30, 50, 100, rng.randint(16, 99))))))
    if kind < 0.15:
        return phrase(rng, times_table.OPEN, times_table.OPEN_QUESTIONS, n=n)
    return phrase(rng, times_table.CORES, times_table.QUESTIONS, n=n, k=k)


def _rows(rng: random.Random) -> list[int]:
    """Returns numbers that are too many, too few, too large, or in steps that are not equal."""
    kind = rng.random()
    first, step = rng.randint(0, 60), rng.choice((1, 2, 3, 5, 10, rng.randint(1, 100)))
    if kind < 0.25:
        return [first + step * i for i in range(rng.choice((11, 11, 12, 13, 15)))]
    if kind < 0.4:
        return [first + step * i for i in range(rng.choice((3, 4)))]
    if kind < 0.6:
        first = rng.randint(TOP + 1 - 2 * step, 9999)
        return [first + step * i for i in range(rng.randint(5, 10))]
    if kind < 0.7:
        step = rng.choice((110, 120, 125, 150, 200))
        return [first + step * i for i in range(5)]
    if kind < 0.85:
        start, factor = rng.randint(1, 5), rng.choice((2, 2, 3))
        return [start * factor**i for i in range(rng.randint(5, 7))]
    numbers = [rng.randint(1, 9), rng.randint(1, 9)]
    while len(numbers) < 7:
        numbers.append(numbers[-1] + numbers[-2])
    return [i * i for i in range(1, 8)] if kind < 0.92 else numbers


def _blanks(rng: random.Random) -> str:
    if rng.random() < 0.25:  # equations
        a, b = rng.randint(fill.LARGEST_TERM + 1, 999), rng.randint(1, 999)
        equation = rng.choice((f"__ + {a} = {a + b}", f"{a} + __ = {a + b}", f"{a + b} - __ = {a}", f"__ - {b} = {a}",
                               f"{b % 12 * 4 + 4} / __ = 4", f"{a} x __ = {a * (b % 9)}"))  # fmt: skip
        return phrase(rng, fill.CORES, fill.QUESTIONS, t=equation)
    numbers = list(map(str, _rows(rng)))
    for i in rng.sample(range(1, len(numbers) - 1), min(len(numbers) - 2, rng.randint(1, 3))):
        numbers[i] = "__"
    text = rng.choice((", ", ", ", " ")).join(numbers).replace("__", rng.choice(fill.MARKS))
    return phrase(rng, fill.CORES, fill.QUESTIONS, t=text)


def _followup(rng: random.Random) -> Sequence[str]:
    """Returns turns of which the last continues with a result or a number above the limit."""
    if rng.random() < 0.5:  # the result is too large
        a, b = rng.randint(501, TOP), rng.randint(501, TOP)
        sign = rng.choice("++x")
        value, k = (a + b, rng.randint(2, 99)) if sign == "+" else (a * (b % 8 + 2), rng.randint(2, 9))
        b = b if sign == "+" else b % 8 + 2
    else:
        sign, a, b = "+", rng.randint(1, 499), rng.randint(1, 499)
        value, k = a + b, 0
    again = rng.choice("+-x")
    k = k or (rng.randint(10, 99) if again == "x" else int(_above(rng, TOP)))
    return (
        arithmetic.wording(rng, a, sign, b),
        f"{a} {sign} {b} = {value}.",
        typed(rng, rng.choice(followup.AGAIN[again]).format(k=k)),
    )


_SINGLE: Mapping[str, tuple[Callable[[random.Random], str], float]] = {
    "sum": (_sum, 2.0),
    "difference": (_difference, 2.0),
    "product": (_product, 1.5),
    "comparison": (_comparison, 1.2),
    "count": (_count, 1.2),
    "sort": (_sort, 2.0),
    "spell": (_spell, 1.2),
    "reverse": (_reverse, 1.2),
    "number_words": (_number_words, 0.8),
    "roman": (_roman, 0.8),
    "units": (_units, 2.5),
    "remainder": (_remainder, 13.0),
    "json": (_json, 0.8),
    "table": (_table, 1.0),
    "story": (_story, 1.2),
    "sudoku": (_sudoku, 0.8),
    "long_addition": (_long_addition, 0.6),
    "times_table": (_times_table, 0.8),
    "blanks": (_blanks, 1.2),
}
KINDS = (*_SINGLE, "followup")
_WEIGHTS = (*(weight for _, weight in _SINGLE.values()), 1.0)


def outside(rng: random.Random, kind: str) -> Sample:
    """Returns a request of one of `KINDS`."""
    if kind == "followup":
        return Sample("beyond", turns(*_followup(rng)), REFUSAL)
    return single("beyond", _SINGLE[kind][0](rng), REFUSAL)


@task("beyond", "short", CHECKER)
def beyond(rng: random.Random) -> Sample:
    return outside(rng, rng.choices(KINDS, _WEIGHTS)[0])
