"""What a verifier says of a completion."""

from dataclasses import dataclass
from enum import StrEnum


class Status(StrEnum):
    """Why a completion got its score."""

    RIGHT = "right"
    WRONG = "wrong"
    NO_ANSWER = "no_answer"
    """Nothing marked as an answer, or what is marked cannot be read as one."""
    TIMED_OUT = "timed_out"
    """What the completion asks to run took too long."""
    VIOLATED = "violated"
    """The completion broke a limit, such as its length."""
    INFRASTRUCTURE = "infrastructure"
    """The verifier itself failed, so nothing is known of the completion. Never counted as wrong."""


@dataclass(frozen=True)
class Verdict:
    """A verifier's verdict.

    `score` is 1 for right and lower for anything else, None for an infrastructure failure only. `extracted` is
    the answer as the completion gives it, `detail` the reason in words (empty where the status says it all).

    Raises ValueError where score and status contradict each other.
    """

    score: float | None
    status: Status
    extracted: str | None = None
    detail: str = ""

    def __post_init__(self) -> None:
        if (self.score is None) != (self.status is Status.INFRASTRUCTURE):
            raise ValueError(f"score {self.score} does not go with status {self.status}")
