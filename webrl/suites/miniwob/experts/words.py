"""Random words for proposed instructions, alike in kind to the pages' own."""

from __future__ import annotations

import random
import string

_ONSETS = (
    "b",
    "br",
    "c",
    "d",
    "f",
    "g",
    "h",
    "j",
    "k",
    "l",
    "m",
    "n",
    "p",
    "r",
    "s",
    "t",
    "tr",
    "v",
    "w",
    "z",
    "st",
    "ch",
)
_VOWELS = ("a", "e", "i", "o", "u", "ia", "ee", "ie")
_CODAS = ("", "", "n", "l", "r", "s", "nda", "tta", "lyn", "na", "ck", "th", "ra", "lie")
_ALPHABET = string.ascii_letters + string.digits


def random_name(rng: random.Random) -> str:
    """A pronounceable capitalised name of two syllables and an ending (`Bratona`)."""
    syllables = [rng.choice(_ONSETS) + rng.choice(_VOWELS) for _ in range(rng.randint(1, 2))]
    return ("".join(syllables) + rng.choice(_CODAS)).capitalize()


def random_code(rng: random.Random) -> str:
    """Letters and digits of both cases, two to six long (`a9Xk`)."""
    return "".join(rng.choice(_ALPHABET) for _ in range(rng.randint(2, 6)))


def random_text(rng: random.Random) -> str:
    """A name or a code."""
    return random_name(rng) if rng.random() < 0.5 else random_code(rng)
