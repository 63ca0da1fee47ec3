"""Which split a problem belongs to: a hash of its prompt decides, so no problem ever moves when data grows."""

import hashlib
import unicodedata
from typing import Literal

from tasks.config.schema import Split
from tasks.problems.problem import Problem

SplitName = Literal["train", "dev", "eval"]
SPLITS: tuple[SplitName, ...] = ("train", "dev", "eval")
"""In the order of their shares; where a prompt is claimed by two, the later one keeps it."""

_HEX_DIGITS = 13  # 52 bits: the most whole hex digits that a float holds exactly, so that a position stays below 1


def normalise(text: str) -> str:
    """The text with Unicode compatibility forms (NFKC), case and white space evened out."""
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
    return " ".join(folded.split())


def fingerprint(problem: Problem) -> str:
    """The SHA-256 of the normalised prompt, 64 hex digits; equal for prompts that differ in spelling only.

    A conversation counts turn by turn with its roles, and a text as one user turn.
    """
    turns = (f"{message['role']}: {normalise(message['content'])}" for message in problem.messages)
    return hashlib.sha256("\n".join(turns).encode()).hexdigest()


def split_of(digest: str, shares: Split) -> SplitName:
    """The split of a problem with this fingerprint.

    The fingerprint gives a position in [0, 1), the shares cut that interval into train | dev | eval. Neither the
    source's name nor any other problem plays a part.
    """
    position = int(digest[:_HEX_DIGITS], 16) / 16**_HEX_DIGITS
    border, chosen = 0.0, SPLITS[0]
    for name in SPLITS:
        share = getattr(shares, name)
        if share > 0:
            chosen = name
        border += share
        if position < border:
            break
    return chosen
