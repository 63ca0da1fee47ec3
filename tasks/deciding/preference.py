"""Whether DPO runs before GRPO, and whether what it made is kept."""

from collections.abc import Sequence
from dataclasses import dataclass

from tasks.config.schema import DPO
from tasks.probing.findings import Decision, Measures, ProbedPrompt
from tasks.stats import PairedComparison, compare


@dataclass(frozen=True)
class Wanted:
    """Whether DPO runs, and why."""

    runs: bool
    reason: str


@dataclass(frozen=True)
class Kept:
    """Whether DPO's model takes the place of the one it started from, and why."""

    kept: bool
    reason: str
    figures: PairedComparison
    """Of the pass rates by dev prompt: DPO's model against the one before."""


def wanted(settings: DPO, given: int, measures: Measures, decision: Decision) -> Wanted:
    """Whether DPO runs. `given` is how many preference pairs the data has; the figures are those of the SFT model.

    With `auto`: pairs that somebody gave are used, and a policy that is right too rarely for GRPO is first taught by
    pairs of its own answers. Where GRPO can learn from the verifier directly, DPO is left out.
    """
    if settings.enabled != "auto":
        return Wanted(settings.enabled, f"dpo.enabled is {str(settings.enabled).lower()}")
    if given:
        return Wanted(True, f"the data has {given:,} preference pairs")
    share = f"{100 * measures.zero_variance:.0f} % of GRPO's groups are expected to be without spread"
    if decision.outcome == "climb" and measures.zero_variance >= settings.thin_signal:
        return Wanted(True, f"{share}, a signal too thin to start GRPO with")
    if decision.outcome == "climb":
        return Wanted(
            False, f"the data has no preference pairs, and {share}: GRPO can learn from the verifier directly"
        )
    outcome = decision.outcome.replace("_", " ")
    return Wanted(False, f"the data has no preference pairs, and the probe finds {outcome}")


def kept(
    before: Sequence[ProbedPrompt], after: Sequence[ProbedPrompt], confidence: float, alarm: str | None = None
) -> Kept:
    """Whether DPO's model is better on the dev split, by a paired test of the pass rates of the same prompts.

    `alarm` is the message of an alarm that stopped DPO: what it left is not kept.
    """
    rates = [{(p.source, p.id): _rate(p) for p in probe if p.judged} for probe in (before, after)]
    ids = sorted(rates[0].keys() & rates[1].keys())
    figures = compare([rates[0][i] for i in ids], [rates[1][i] for i in ids], confidence)
    change = (
        f"dev pass@1 goes from {100 * figures.baseline_mean:.1f} % to {100 * figures.candidate_mean:.1f} % "
        f"({100 * confidence:g} % interval of the difference {100 * figures.low:+.1f} to {100 * figures.high:+.1f} "
        f"points, {figures.n} prompts)"
    )
    if alarm:
        return Kept(False, f"Thrown away: an alarm stopped it. {alarm}", figures)
    if figures.low > 0 and figures.p_value <= 1 - confidence:
        return Kept(True, f"Kept: {change}.", figures)
    return Kept(False, f"Thrown away, as it is not shown to beat SFT: {change}.", figures)


def _rate(prompt: ProbedPrompt) -> float:
    return sum(attempt.right for attempt in prompt.judged) / len(prompt.judged)
