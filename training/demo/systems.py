"""System messages of some training documents. They do not change answers."""

from __future__ import annotations

import random

from training.demo.tasks.word_lists import noun
from training.demo.vocabulary import ALPHABETIC

SYSTEMS = (
    "You are a helpful assistant. Answer as concisely as possible.",
    "You are a helpful, respectful and honest assistant.",
    "You are an assistant.",
    "You are a chatbot.",
    "You are an expert.",
    "Keep your answers short.",
    "Always answer in English.",
    "Be brief.",
    "Be kind and helpful.",
    "You answer questions of users.",
    "Think before you answer.",
    "Today is Monday.",
    "You are a helpful assistant.",
    "You are a friendly assistant.",
    "Answer briefly.",
    "Be polite.",
    "Help the user.",
    "You are Unmask, a small diffusion model.",
)


def system_turn(rng: random.Random) -> str:
    """Returns one of SYSTEMS, or random words."""
    if rng.random() < 0.6:
        return rng.choice(SYSTEMS)
    chosen = [rng.choice((noun(rng), rng.choice(ALPHABETIC))) for _ in range(rng.randint(2, 12))]
    return " ".join(chosen).capitalize() + "."
