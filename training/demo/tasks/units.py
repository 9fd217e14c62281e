"""Unit conversions to the smaller unit and, without remainder, to the larger one."""

from __future__ import annotations

import random

from runtime.demo.tasks import units as shipped
from runtime.demo.tasks.base import Sample, single
from training.demo.tasks.base import task
from training.demo.tasks.phrasing import phrase

_CORES = (
    *shipped.CORES, "tell me how many {v} are in {n} {u}", "tell me how many {v} there are in {n} {u}",
    "tell me how much {n} {u} is in {v}", "convert {n} {u} in {v}", "convert to {v}: {n} {u}",
    "convert this to {v}: {n} {u}", "calculate how many {v} {n} {u} are", "work out {n} {u} in {v}",
    "find out how many {v} are in {n} {u}", "show {n} {u} in {v}", "say {n} {u} in {v}", "make {v} out of {n} {u}",
)  # fmt: skip
_QUESTIONS = (
    *shipped.QUESTIONS, "In {v}, how much is {n} {u}?", "how many {v} in {n} {u}", "how many {v} are {n} {u}",
    "How many {v} does {n} {u} have?", "How many {v} does {n} {u} make?", "How many {v} do {n} {u} make?",
    "How many {v} are equal to {n} {u}?", "How many {v} would {n} {u} be?", "How many {v} do I get for {n} {u}?",
    "How much are {n} {u} in {v}?", "{n} {u} equals how many {v}?", "{n} {u} is how many {v}?",
    "{n} {u} = how many {v}?", "{n} {u} into {v}", "{n} {u} as {v}", "{n} {u}, in {v}",
    "What would {n} {u} be in {v}?", "What is {n} {u} expressed in {v}?", "I have {n} {u}. How many {v} is that?",
    "I need {n} {u} in {v}", "{n} {u}: how many {v}?", "{v} in {n} {u}?", "If I have {n} {u}, how many {v} is that?",
)  # fmt: skip


@task("units", "short")
def units(rng: random.Random) -> Sample:
    fields, answer = shipped.conversion(rng)
    return single("units", phrase(rng, _CORES, _QUESTIONS, **fields), answer)
