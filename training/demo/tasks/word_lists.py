"""Words for the tasks, and generators of unknown ones, so that the model learns to copy words, not the lists."""

from __future__ import annotations

import random
import string

from runtime.bench.stories import NAMES

# ruff: noqa: SIM905 (a list of words reads best as words)

FAMILIES = """
Smith Jones Miller Brown Garcia Novak Rossi Silva Tanaka Khan Weber Larsen Petrov Dubois Okafor Kim Nguyen Lopez
""".split()

CITIES = """
Oslo Paris Rome Berlin Madrid London Vienna Prague Lisbon Dublin Athens Warsaw Cairo Tokyo Lima Boston Milan
Geneva Zurich Munich Bergen Delhi Seoul Sydney Toronto Chicago Denver Dallas Havana Nairobi Bern Porto Malta
Turin Lyon Nice Graz Bonn Leeds York Austin Seattle Mumbai Lagos Accra Quito Bogota Osaka Kyoto Hanoi Manila
""".split()

JOBS = """
teacher doctor baker farmer pilot nurse painter writer singer lawyer cook driver sailor judge miner engineer plumber
dentist tailor gardener student chef barber
""".split()

THINGS = """
key lamp coin map ring book drum kite rope box hat flute compass crown bell
""".split()

NOUNS = """
apple bread chair house stone cloud light water fire earth plant tree leaf flower grass bird
fish sheep tiger zebra snake shark eagle robin deer camel panda koala giraffe monkey kangaroo
pencil paper brush paint color music piano guitar song dance game ball train plane truck bike boat
ship road park ocean hill field library school hospital airport museum theater restaurant
farm barn fence gate door window floor roof wall room kitchen spoon fork knife plate cup bottle glass basket
bag shirt shoe coat glove scarf button pocket watch clock candle mirror soap towel pillow blanket
bed sofa desk shelf stamp poem globe star moon planet comet rocket
engine wheel metal silver gold copper iron steel wood brick sand clay salt sugar honey butter cheese milk
juice coffee lemon orange banana grape peach melon cherry carrot onion potato tomato pepper bean rice corn
wheat soup pizza cake cookie candy winter summer spring autumn storm wind snow
rain thunder ice smoke computer keyboard language diffusion mask model science history energy machine picture
dinosaur butterfly umbrella chocolate strawberry pineapple sandwich hamburger bicycle telephone
adventure beautiful knowledge different important tomorrow yesterday birthday holiday friend family mother father
happy purple yellow orange green question answer world people hello rhythm queue jazz quiz extra zero
""".split()

_ONSETS = (
    "b c d f g h j k l m n p qu r s t v w x y z bl br ch cl cr dr fl fr gl gr pl pr sc sh sk sl sp st th tr wh".split()
)
_VOWELS = "a e i o u a e i o u y ai au ea ee ei ie oa oo ou".split()
_ENDS = "n r s t l m d k b g p x z nd rt st ck ng ll ss ph sh".split()


def made_up(rng: random.Random) -> str:
    """Returns a pronounceable word of one to four syllables."""
    count = rng.choice((1, 2, 2, 2, 3, 3, 4))
    word = ""
    for _ in range(count):
        word += rng.choice(_ONSETS if word or rng.random() < 0.8 else ("",)) + rng.choice(_VOWELS)
        if rng.random() < 0.35:
            word += rng.choice(_ENDS)
    return word if len(word) > 1 else word + rng.choice(_ENDS)


def letters(rng: random.Random, low: int = 2, high: int = 9) -> str:
    """Returns random letters, each of which has to be copied."""
    return "".join(rng.choices(string.ascii_lowercase, k=rng.randint(low, high)))


def _known_or_not(rng: random.Random, known: list[str], known_fraction: float) -> str:
    """Returns a word of the list or, with probability 1 - `known_fraction`, an unknown one in the same case."""
    if rng.random() < known_fraction:
        return rng.choice(known)
    word = made_up(rng) if rng.random() < 0.6 else letters(rng)
    return word.capitalize() if known[0][0].isupper() else word


def name(rng: random.Random) -> str:
    return _known_or_not(rng, NAMES, 0.5)


def full_name(rng: random.Random) -> str:
    """Returns a full name: mostly one word, sometimes two."""
    first = name(rng)
    kind = rng.random()
    if kind < 0.12:
        return f"{first} {_known_or_not(rng, FAMILIES, 0.5)}"
    return f"{first}-{name(rng)}" if kind < 0.14 else first


def city(rng: random.Random) -> str:
    return _known_or_not(rng, CITIES, 0.5)


def noun(rng: random.Random) -> str:
    return _known_or_not(rng, NOUNS, 0.6)
