"""What the gate says: a frozen record of the decision, its reasons and every figure behind it."""

from enum import StrEnum

from pydantic import BaseModel, ConfigDict

from tasks.stats import PairedComparison


class Decision(StrEnum):
    """What becomes of the candidate."""

    promote = "promote"
    """Better than every baseline by the minimum gain, and no guard is in doubt."""
    inconclusive = "inconclusive"
    """The items do not settle it: production stays."""
    hold = "hold"
    """Not worth a promotion: the minimum gain is ruled out, or the candidate is worse."""
    blocked = "blocked"
    """A guarded task fell by more than its margin, or an alarm stopped the candidate's training."""


class Outcome(StrEnum):
    """What one rule says of the candidate against one baseline."""

    passed = "passed"
    inconclusive = "inconclusive"
    hold = "hold"
    blocked = "blocked"


class Role(StrEnum):
    """What a rule asks for: a gain (primary), or no loss beyond a margin (guard)."""

    primary = "primary"
    guard = "guard"


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Comparison(_Record):
    """One rule, against one baseline."""

    baseline: str
    role: Role
    task: str
    metric: str
    threshold: float
    """The minimum gain of a primary rule, the margin of a guard; in the metric's own unit."""
    outcome: Outcome
    reason: str
    """The outcome in a sentence, with the figures."""
    figures: PairedComparison


class Verdict(_Record):
    """The gate's verdict. `model_dump_json` and `model_validate_json` are its form on disk."""

    decision: Decision
    reasons: tuple[str, ...]
    """Sentences with the figures; those that made the decision come first."""
    comparisons: tuple[Comparison, ...]
    confidence: float
