"""What a probe finds: attempts at prompts, figures over them, and the decision that follows."""

from typing import Literal

from pydantic import BaseModel, ConfigDict

from tasks.rewards import Status


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Attempt(_Record):
    """One sampled completion of a prompt, verified."""

    completion: str
    tokens: int
    """Length, the token that ends the turn included."""
    ended: bool
    """Whether it ended by itself, before the limit on its length."""
    score: float | None
    status: Status
    chance: float | None = None
    """Its score against the answer of another prompt: what guessing gets. None where that cannot be asked."""

    @property
    def right(self) -> bool:
        """Whether the verifier found it right."""
        return self.status is Status.RIGHT


class ProbedPrompt(_Record):
    """A prompt with all of its attempts: a line of the probe's `dev.jsonl` and `train.jsonl`."""

    id: str
    source: str
    attempts: list[Attempt]
    greedy: Attempt | None = None
    """The answer of the likeliest tokens, which is what evaluation and most servers ask for; of dev prompts."""

    @property
    def judged(self) -> list[Attempt]:
        """The attempts of which something is known: without failures of the verifier's own machinery."""
        return [attempt for attempt in self.attempts if attempt.status is not Status.INFRASTRUCTURE]


class Measures(_Record):
    """The figures of a probe on one split."""

    prompts: int
    samples: int
    """Attempts at each prompt."""
    pass_at_1: float
    """The mean share of right attempts."""
    pass_at_k: float
    """The mean probability that at least one of `samples` attempts is right."""
    greedy: float | None = None
    """The share of right greedy answers. None where none were asked for."""
    chance_at_1: float | None = None
    """What guessing gets in one attempt."""
    chance_at_k: float | None
    """The same for guessing: the attempts against the answers of other prompts. None where that cannot be asked."""
    histogram: list[int]
    """Prompts by their number of right attempts, from 0 to `samples`."""
    zero_variance: float
    """The expected share of GRPO groups whose completions all score the same."""
    mean_tokens: float
    p99_tokens: int
    """The length that 99 % of the attempts which ended by themselves stay within."""
    ended: float
    """The share of attempts that ended by themselves; the others were cut at `max_tokens`."""
    max_tokens: int
    """GRPO's `max_completion_length`, at which attempts are cut."""
    infrastructure: float
    """The share of attempts that could not be verified."""


class Decision(_Record):
    """Whether GRPO is worth its cost, and why."""

    outcome: Literal["climb", "no_signal", "no_headroom"]
    """What the figures say."""
    climbs: bool
    """Whether GRPO runs: as `outcome` says, unless the parameters decide."""
    reason: str
    """The outcome in a sentence or two with the figures, and what to do."""
    notes: tuple[str, ...] = ()
    """What else the figures show, such as a limit on the length that cuts answers off."""
