"""The gate's figures in words."""

import math

from tasks.gating.verdict import Decision, Outcome, Role, Verdict
from tasks.stats import PairedComparison

HEADLINES = {
    Decision.promote: "**Promote.** The candidate is better than what it was compared with, by every rule.",
    Decision.inconclusive: "**Inconclusive.** The items at hand do not settle it; production stays as it is.",
    Decision.hold: "**Hold.** There is nothing to promote; production stays as it is.",
    Decision.blocked: "**Blocked.** The candidate must not replace what is in production.",
}


def verdict_prose(verdict: Verdict) -> str:
    """The verdict as Markdown: the decision, its reasons with all figures, and how they were obtained."""
    lines = [HEADLINES[verdict.decision], "", *(f"- {reason}" for reason in verdict.reasons)]
    methods = sorted({comparison.figures.method for comparison in verdict.comparisons})
    if methods:
        lines += [
            "",
            f"Every comparison is paired, item by item: {'; '.join(methods)}. "
            f"A test is significant at p ≤ {1 - verdict.confidence:.3g}.",
        ]
    return "\n".join(lines) + "\n"


def sentence(
    role: Role, outcome: Outcome, baseline: str, rule: str, threshold: float, figures: PairedComparison, share: bool
) -> str:
    """The outcome of one rule as a sentence. `share`: the scores lie in [0, 1] and read as percentages."""
    scale, unit, mark = (100, "point", " %") if share else (1, "", "")

    def score(value: float) -> str:
        return number(value * scale) + mark

    def change(value: float) -> str:
        return number(value * scale, 0, threshold * scale, -threshold * scale, signed=True)

    def quantity(text: str) -> str:
        return f"{text} {unit}{'' if text.lstrip('+-') == '1' else 's'}" if unit else text

    interval = (
        f"{100 * figures.confidence:.6g} % interval {change(figures.low)} to {quantity(change(figures.high))}, "
        f"{_p(figures)}"
    )
    if figures.wins + figures.losses:
        facts = (
            f"from {score(figures.baseline_mean)} to {score(figures.candidate_mean)}, "
            f"{quantity(change(figures.difference))} ({interval}; {figures.wins} items higher, {figures.losses} lower, "
            f"of {figures.n})"
        )
    else:
        same = score(figures.candidate_mean)
        facts = f"the scores are identical on all {figures.n} items, {same} in the mean ({interval})"
    asked = quantity(f"{threshold * scale:.6g}")
    return f"{rule} against {baseline}: {facts}. {_finding(role, outcome, asked, threshold, figures)}"


def _finding(role: Role, outcome: Outcome, asked: str, threshold: float, figures: PairedComparison) -> str:
    if role is Role.guard:
        return {
            Outcome.passed: f"A fall by the margin of {asked} is ruled out.",
            Outcome.blocked: f"That is a fall by more than the margin of {asked}.",
        }.get(outcome, f"Not shown to stay within the margin of {asked}." + _needed(figures, threshold, asked))
    significant = figures.p_value <= 1 - figures.confidence
    if outcome is Outcome.passed:
        return f"A significant gain of at least the minimum of {asked}."
    if outcome is Outcome.hold:
        if significant and figures.difference < 0:
            return "The candidate is significantly worse."
        return f"A gain of the minimum of {asked} is ruled out."
    if significant and figures.low > 0:
        return f"A gain, but not shown to reach the minimum of {asked}."
    return f"A gain of {asked} is neither shown nor ruled out." + _needed(figures, threshold, asked)


def _needed(figures: PairedComparison, width: float, asked: str) -> str:
    """How many items the interval needs to reach `width` to either side: its width falls with the root of n."""
    if width <= 0:
        return ""
    items = math.ceil(figures.n * ((figures.high - figures.low) / 2 / width) ** 2)
    if items <= figures.n:
        return ""
    digits = max(0, len(str(items)) - 2)
    rounded = math.ceil(items / 10**digits) * 10**digits
    return f" An interval of {asked} to either side takes about {rounded} items like these."


def number(value: float, *limits: float, digits: int = 1, signed: bool = False) -> str:
    """`value` with as few decimals as keep it on its side of every limit, so that no figure belies its finding."""
    for decimals in range(digits, 6):
        text = f"{value:{'+' if signed else ''}.{decimals}f}"
        if all((float(text) > limit, float(text) < limit) == (value > limit, value < limit) for limit in limits):
            break
    return text if float(text) else text.lstrip("+-")


def _p(figures: PairedComparison) -> str:
    if figures.p_value < 0.0001:
        return "p < 0.0001"
    return f"p = {number(figures.p_value, 1 - figures.confidence, digits=4 if figures.p_value < 0.01 else 3)}"
