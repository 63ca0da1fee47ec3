"""The rules of promotion, applied to the scores of a candidate and its baselines."""

import math
from collections.abc import Mapping

from tasks.config.schema import Gate, Guard, Primary
from tasks.errors import UserError
from tasks.gating.prose import sentence
from tasks.gating.verdict import Comparison, Decision, Outcome, Role, Verdict
from tasks.stats import PairedComparison, compare

Scores = Mapping[str, float]
"""One model's scores on one task, in one metric, by item id."""
Records = Mapping[tuple[str, str], Scores]
"""One model's scores by task and metric."""

CHAMPION = "champion"
"""The name of the baseline that is the model in production."""

ROUNDING = 1e-9
"""Differences of decimal fractions miss their true value by this much; a threshold met within it is met."""

DECISIONS = {
    Outcome.passed: Decision.promote,
    Outcome.inconclusive: Decision.inconclusive,
    Outcome.hold: Decision.hold,
    Outcome.blocked: Decision.blocked,
}
"""What each outcome would decide alone, from the mildest to the worst."""


def decide(
    candidate: Records,
    baselines: Mapping[str, Records],
    gate: Gate,
    *,
    candidate_is_champion: bool = False,
    objection: str | None = None,
) -> Verdict:
    """The verdict on a candidate.

    Every rule is applied against every baseline, on the same items.

    - The primary rule passes when the paired test is significant at 1 - confidence, the interval of the difference
      lies above 0, and the difference is at least `min_gain`. It says hold when the interval lies below `min_gain`
      (the gain worth having is ruled out) or when the candidate is significantly worse; else inconclusive.
      With `min_gain` 0 only a loss is ever ruled in: equal models stay inconclusive.
    - A guard passes when the interval lies above -margin (non-inferiority), blocks when the difference itself is
      below -margin, else is inconclusive. With a margin of 0 it asks for a gain.
    - Overall the worst outcome counts: blocked, hold, inconclusive, promote, in this order.

    The test is two-sided and a gain is one side of it, so a candidate that is as good as a baseline is promoted over
    it with a probability of at most (1 - confidence) / 2.

    `candidate_is_champion`: both have the same digest. Then the verdict is hold, whatever the other comparisons say;
    they are reported, and the one with the champion, which compares a model with itself, is left out.

    `objection`: a reason from outside the scores why the candidate must not be promoted, such as an alarm in its
    training. Then the verdict is blocked, whatever the scores say.

    Raises UserError when there is no baseline, when a model lacks a rule's task or metric, when two models did not
    answer the same items, or when a score is no finite number.
    """
    if not baselines:
        raise UserError("the gate has nothing to compare the candidate with: give it at least one baseline")
    comparisons = [
        _apply(rule, gate.confidence, candidate, baseline, name)
        for name, baseline in baselines.items()
        if not (candidate_is_champion and name == CHAMPION)
        for rule in gate.rules
    ]
    comparisons_by_weight = sorted(comparisons, key=_severity, reverse=True)
    reasons = [comparison.reason for comparison in comparisons_by_weight]
    if candidate_is_champion:
        decision = Decision.hold
        reasons.insert(0, "The candidate is the champion already: nothing to promote.")
    else:
        decision = DECISIONS[comparisons_by_weight[0].outcome]
    if objection and not candidate_is_champion:
        decision = Decision.blocked
        reasons.insert(0, objection)
    return Verdict(
        decision=decision, reasons=tuple(reasons), comparisons=tuple(comparisons), confidence=gate.confidence
    )


def nothing(reason: str, gate: Gate) -> Verdict:
    """The verdict where there is no candidate, and why there is none."""
    return Verdict(decision=Decision.hold, reasons=(reason,), comparisons=(), confidence=gate.confidence)


def _severity(comparison: Comparison) -> int:
    return list(DECISIONS).index(comparison.outcome)


def _apply(rule: Primary | Guard, confidence: float, candidate: Records, baseline: Records, name: str) -> Comparison:
    place = f"task {rule.task!r}, metric {rule.metric!r}"
    ours, theirs = _scores(candidate, rule, "the candidate", place), _scores(baseline, rule, name, place)
    _check_same_items(ours, theirs, name, place)
    ids = sorted(ours)  # so that the order of the files decides nothing
    figures = compare([theirs[i] for i in ids], [ours[i] for i in ids], confidence)
    role, threshold, outcome = (
        (Role.primary, rule.min_gain, _primary(figures, rule.min_gain))
        if isinstance(rule, Primary)
        else (Role.guard, rule.margin, _guard(figures, rule.margin))
    )
    share = all(0 <= score <= 1 for score in (*ours.values(), *theirs.values()))
    label = f"{'Guard' if role is Role.guard else 'Primary'} {rule.task} ({rule.metric})"
    return Comparison(
        baseline=name,
        role=role,
        task=rule.task,
        metric=rule.metric,
        threshold=threshold,
        outcome=outcome,
        reason=sentence(role, outcome, name, label, threshold, figures, share),
        figures=figures,
    )


def _primary(figures: PairedComparison, min_gain: float) -> Outcome:
    significant = figures.p_value <= 1 - figures.confidence
    if significant and figures.low > 0 and figures.difference >= min_gain - ROUNDING:
        return Outcome.passed
    if figures.high < min_gain or (significant and figures.difference < 0):
        return Outcome.hold
    return Outcome.inconclusive


def _guard(figures: PairedComparison, margin: float) -> Outcome:
    if figures.low > -margin:
        return Outcome.passed
    return Outcome.blocked if figures.difference < -margin - ROUNDING else Outcome.inconclusive


def _scores(records: Records, rule: Primary | Guard, model: str, place: str) -> Scores:
    scores = records.get((rule.task, rule.metric))
    if not scores:
        known = ", ".join(sorted(f"{task} ({metric})" for task, metric in records)) or "none"
        raise UserError(f"{model} has no scores for {place}, which the gate needs; there are: {known}")
    for item, score in scores.items():
        if not isinstance(score, int | float) or not math.isfinite(score):
            raise UserError(f"{model}, {place}, item {item!r}: the score {score!r} is no finite number")
    return scores


def _check_same_items(ours: Scores, theirs: Scores, name: str, place: str) -> None:
    only_ours, only_theirs = sorted(ours.keys() - theirs.keys()), sorted(theirs.keys() - ours.keys())
    if only_ours or only_theirs:
        parts = [
            f"{len(ids)} only {who} ({', '.join(ids[:3])}{', …' if len(ids) > 3 else ''})"
            for who, ids in (("the candidate's", only_ours), (f"{name}'s", only_theirs))
            if ids
        ]
        raise UserError(
            f"{place}: the candidate ({len(ours)} items) and {name} ({len(theirs)} items) did not answer the same "
            f"items: {'; '.join(parts)}. Evaluate both on the same items, then compare."
        )
