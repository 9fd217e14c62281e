"""The words the tasks draw from, and made-up ones, so that copying a word is learnt and not the list of words."""

from __future__ import annotations

import random

# ruff: noqa: SIM905 (a list of words reads best as words)

NAMES = """
Anna Ben Clara David Emma Felix Grace Henry Iris Jack Kate Leo Maria Noah Olga Paul Quinn Rosa Sam Tina Uma
Victor Wendy Xavier Yara Zoe Adam Bella Carl Dora Eric Fiona George Hanna Ivan Julia Kevin Laura Mark Nina
Oscar Peter Rita Simon Tom Vera Will Alice
""".split()

CITIES = """
Oslo Paris Rome Berlin Madrid London Vienna Prague Lisbon Dublin Athens Warsaw Cairo Tokyo Lima Boston Milan
Geneva Zurich Munich Bergen Delhi Seoul Sydney Toronto Chicago Denver Dallas Havana Nairobi Bern Porto Malta
Turin Lyon Nice Graz Bonn Leeds York
""".split()

JOBS = """
teacher doctor baker farmer pilot nurse painter writer singer lawyer cook driver sailor judge miner
""".split()

ANIMALS = """
dog cat horse rabbit fox owl mouse bear duck goat
""".split()

PLACES = """
river forest village castle garden harbor market mountain lake bridge
""".split()

THINGS = """
key lamp coin map ring book drum kite rope box
""".split()

NOUNS = """
apple bread chair table house river stone cloud light night water fire earth plant tree leaf flower grass bird
fish horse sheep tiger lion zebra mouse snake frog whale shark eagle robin bear wolf deer camel panda koala
pencil paper brush paint color music piano guitar drum song dance game ball kite train plane truck bike boat
ship road bridge tower castle garden park lake ocean beach island desert forest valley hill mountain field
farm barn fence gate door window floor roof wall room kitchen spoon fork knife plate cup bottle glass basket
box bag shirt shoe hat coat glove scarf button pocket watch clock lamp candle mirror soap towel pillow blanket
bed sofa desk shelf book page letter stamp word story poem map globe star moon planet comet rocket robot
engine wheel metal silver gold copper iron steel wood brick sand clay salt sugar honey butter cheese milk
juice coffee lemon orange banana grape peach melon cherry carrot onion potato tomato pepper bean rice corn
wheat soup pizza cake cookie candy winter summer spring autumn morning evening monday friday storm wind snow
rain thunder ice smoke
""".split()

MADE_UP_ONE_IN = 4  # of names, cities and nouns
_ONSETS = "b c d f g h j k l m n p r s t v w z br ch cl dr fl gr pl pr sh st th tr".split()
_VOWELS = "a e i o u a e i o ai ee oa ou".split()
_ENDS = "n r s t l m d k nd rt".split()


def made_up(rng: random.Random) -> str:
    """A word that can be said and need not exist: two or three syllables."""
    syllables = (rng.choice(_ONSETS) + rng.choice(_VOWELS) for _ in range(rng.choice((1, 1, 2))))
    return "".join(syllables) + rng.choice(_ONSETS) + rng.choice(_VOWELS)[:1] + rng.choice(("", rng.choice(_ENDS)))


def _known_or_made_up(rng: random.Random, known: list[str]) -> str:
    if rng.randrange(MADE_UP_ONE_IN):
        return rng.choice(known)
    word = made_up(rng)
    return word.capitalize() if known[0][0].isupper() else word


def name(rng: random.Random) -> str:
    return _known_or_made_up(rng, NAMES)


def city(rng: random.Random) -> str:
    return _known_or_made_up(rng, CITIES)


def noun(rng: random.Random) -> str:
    return _known_or_made_up(rng, NOUNS)
