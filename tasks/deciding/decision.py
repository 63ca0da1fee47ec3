"""Whether GRPO is worth its cost, by the figures of a probe on the dev split."""

from typing import Literal

from tasks.config import schema
from tasks.probing.findings import Decision, Measures

TRUNCATED = 0.05
"""The share of attempts cut at the limit from which on it is said."""
NEAR_LIMIT = 0.9
"""The share of the limit at which the lengths are too close to it."""
NO_SPREAD = 0.8
"""The share of groups without spread from which on it is said; GRPO's alarm `zero_variance` has the same default."""


def decide(measures: Measures, settings: schema.Probe) -> Decision:
    """The decision with its reasons in words.

    No signal: the model is above guessing by no more than `no_signal`, in k attempts and in one, for both are near 1 in
    k where guessing is easy. No headroom: pass@1 or the greedy accuracy is at or above `ceiling`, or
    pass@k is above pass@1 by less than `headroom`. In any other case GRPO has something to sharpen. The outcome is what
    the figures say; `settings.decision` may decide otherwise.
    """
    outcome, finding = _finding(measures, settings)
    climbs = settings.decision == "climb" or (settings.decision == "auto" and outcome == "climb")
    reason = f"{_facts(measures, settings)}. {finding}"
    if settings.decision != "auto":
        done = "GRPO runs" if climbs else "GRPO does not run"
        agrees = "as the figures say too" if climbs == (outcome == "climb") else "against what the figures say"
        reason = f"probe.decision is `{settings.decision}`, so {done}, {agrees}: {reason}"
    return Decision(outcome=outcome, climbs=climbs, reason=reason, notes=tuple(_notes(measures, outcome)))


def _finding(measures: Measures, settings: schema.Probe) -> tuple[Literal["climb", "no_signal", "no_headroom"], str]:
    k = measures.samples
    best = max(measures.pass_at_1, measures.greedy or 0.0)
    above = measures.pass_at_k - (measures.chance_at_k or 0), best - (measures.chance_at_1 or 0)
    if max(above if measures.chance_at_k is not None else above[:1]) <= settings.no_signal:
        limit = f"{100 * settings.no_signal:g}"
        short = f"at most {limit} %" if measures.chance_at_k is None else f"at most {limit} points above guessing"
        return "no_signal", (
            f"No signal: pass@{k} is {short} (probe.no_signal). RL cannot teach this, for it only strengthens what the"
            " model does already; get demonstrations (more rows with a `solution`, for SFT)."
        )
    if best >= settings.ceiling:
        name = "pass@1" if measures.pass_at_1 >= settings.ceiling else "greedy accuracy"
        return "no_headroom", (
            f"No headroom: {name} is at least {100 * settings.ceiling:g} % (probe.ceiling). Stop here, SFT is enough."
        )
    if measures.pass_at_k - measures.pass_at_1 < settings.headroom:
        return "no_headroom", (
            f"No headroom: pass@{k} is less than {100 * settings.headroom:g} points above pass@1 (probe.headroom), so"
            " there is nothing for GRPO to strengthen. Stop here, SFT is enough; what the model never does takes"
            " demonstrations."
        )
    return "climb", "The model solves at times what it could solve always, and that is what GRPO teaches."


def _facts(measures: Measures, settings: schema.Probe) -> str:
    guessing = measures.chance_at_k or 0
    at_1 = _percent(measures.pass_at_1, settings.ceiling, measures.pass_at_k - settings.headroom)
    at_k = _percent(
        measures.pass_at_k, guessing + settings.no_signal, measures.pass_at_1 + settings.headroom, measures.pass_at_1
    )
    facts = f"pass@1 is {at_1}, pass@{measures.samples} {at_k}"
    if measures.greedy is not None:
        facts = f"greedy accuracy is {_percent(measures.greedy, settings.ceiling)}, {facts}"
    if measures.chance_at_k is None:
        return f"On {measures.prompts} dev prompts {facts}"
    return f"On {measures.prompts} dev prompts {facts}; guessing gets {_percent(guessing)} in {measures.samples}"


def _notes(measures: Measures, outcome: str) -> list[str]:
    limit, notes = measures.max_tokens, []
    truncated = 1 - measures.ended
    if truncated > TRUNCATED:
        notes.append(
            f"{_percent(truncated, TRUNCATED)} of the attempts were cut at {limit} tokens, and an answer that was to"
            f" come later counts as none: set grpo.trainer.max_completion_length to {2 * limit} and probe again. If as"
            " many are cut then, the model has not learned to end its answers, which is SFT's to teach."
        )
    elif measures.p99_tokens >= NEAR_LIMIT * limit:
        notes.append(
            f"Answers come close to the limit of {limit} tokens (99 % of those that ended took at most"
            f" {measures.p99_tokens}), and GRPO often makes them longer: set grpo.trainer.max_completion_length to"
            f" {2 * limit}."
        )
    if measures.infrastructure > 0:
        notes.append(
            f"{_percent(measures.infrastructure, 0)} of the attempts could not be verified, for the verifier itself"
            " failed. They count neither as right nor as wrong; mend the verifier before GRPO relies on it."
        )
    if outcome == "climb" and measures.zero_variance > NO_SPREAD:
        notes.append(
            f"{_percent(measures.zero_variance, NO_SPREAD)} of GRPO's groups are expected to score all the same, and"
            " such a group teaches nothing. grpo.difficulty sets prompts aside that are solved always or never; more"
            " completions of each prompt (grpo.trainer.num_generations) make spread likelier."
        )
    return notes


def _percent(share: float, *limits: float) -> str:
    """The share in percent, with as few decimals as show on which side of the limits it lies."""
    percent = round(100 * share, 9)
    edges = [round(100 * limit, 9) for limit in limits]
    for decimals in range(1, 6):
        shown = round(percent, decimals)
        if all((shown > edge, shown < edge) == (percent > edge, percent < edge) for edge in edges):
            break
    return f"{shown:.{decimals}f} %"
