import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.config.schema import Gate, Guard, Primary
from tasks.errors import UserError
from tasks.gating import CHAMPION, Decision, Outcome, Role, Verdict, decide, nothing, verdict_prose

MAIN, SIDE = ("chains", "acc"), ("short", "acc")
RANK = [Decision.promote, Decision.inconclusive, Decision.hold, Decision.blocked]


def gate(min_gain=0.01, margin=0.02, confidence=0.95, guards=True):
    return Gate(
        primary=Primary(task="chains", min_gain=min_gain),
        guards=[Guard(task="short", margin=margin)] if guards else [],
        confidence=confidence,
    )


def scores(right, wrong, n):
    """`right` items 1, then `wrong` items 0, the rest 1."""
    return {f"q{i}": 0.0 if right <= i < right + wrong else 1.0 for i in range(n)}


def pair(wins, losses, n, both=0.5):
    """Baseline and candidate with so many wins and losses; of the rest, the share `both` is right for both."""
    before, after = {}, {}
    for i in range(n):
        if i < wins:
            before[f"q{i}"], after[f"q{i}"] = 0.0, 1.0
        elif i < wins + losses:
            before[f"q{i}"], after[f"q{i}"] = 1.0, 0.0
        else:
            before[f"q{i}"] = after[f"q{i}"] = float(i < wins + losses + both * (n - wins - losses))
    return before, after


def verdict(main, side=(0, 0, 2000), rules=None, **kwargs):
    (main_before, main_after), (side_before, side_after) = pair(*main), pair(*side)
    return decide(
        {MAIN: main_after, SIDE: side_after}, {"sft": {MAIN: main_before, SIDE: side_before}}, rules or gate(), **kwargs
    )


def test_a_clear_gain_with_a_sound_guard_is_promoted():
    result = verdict((300, 5, 500))
    assert result.decision is Decision.promote
    assert [c.outcome for c in result.comparisons] == [Outcome.passed, Outcome.passed]
    assert [c.role for c in result.comparisons] == [Role.primary, Role.guard]
    assert result.comparisons[0].threshold == 0.01 and result.comparisons[1].threshold == 0.02
    assert "+59.0 points" in result.reasons[0] and "300 items higher, 5 lower, of 500" in result.reasons[0]


@pytest.mark.parametrize(
    ("main", "min_gain", "outcome"),
    [
        ((6, 0, 20), 0.01, Outcome.passed),  # p = 2 / 2^6 = 0.03
        ((5, 0, 20), 0.01, Outcome.inconclusive),  # p = 0.06: a lucky streak
        ((20, 5, 2000), 0.01, Outcome.inconclusive),  # significant, yet +0.75 points, and 1 point not ruled out
        ((10, 0, 2000), 0.01, Outcome.hold),  # significant, yet a gain of 1 point is ruled out
        ((5, 60, 500), 0.01, Outcome.hold),  # significantly worse
        ((0, 0, 2000), 0.01, Outcome.hold),  # identical, many items
        ((0, 0, 50), 0.01, Outcome.inconclusive),  # identical, few items
        ((1, 0, 1), 0.01, Outcome.inconclusive),
        ((30, 5, 500), 0.05, Outcome.passed),  # a gain of exactly the minimum
        ((30, 5, 500), 0.0501, Outcome.inconclusive),
        ((30, 5, 500), 0.0, Outcome.passed),
        ((0, 0, 100_000), 0.0, Outcome.inconclusive),  # nothing but a loss rules out "any gain"
        ((5, 60, 500), 0.0, Outcome.hold),
    ],
)
def test_the_primary_rule(main, min_gain, outcome):
    result = verdict(main, rules=gate(min_gain, guards=False))
    assert result.comparisons[0].outcome is outcome
    expected = Decision.promote if outcome is Outcome.passed else outcome.value
    assert result.decision == expected


@pytest.mark.parametrize(
    ("side", "margin", "outcome"),
    [
        ((0, 0, 2000), 0.02, Outcome.passed),
        ((0, 0, 50), 0.02, Outcome.inconclusive),
        ((2, 12, 2000), 0.02, Outcome.passed),  # a small fall, surely within the margin
        ((0, 9, 500), 0.02, Outcome.inconclusive),  # -1.8 points, within, but not surely
        ((0, 10, 500), 0.02, Outcome.inconclusive),  # a fall of exactly the margin is not more than it
        ((0, 11, 500), 0.02, Outcome.blocked),
        ((20, 40, 100), 0.02, Outcome.blocked),  # noisy, but the fall itself is beyond
        ((0, 0, 2000), 0.0, Outcome.inconclusive),
        ((60, 5, 500), 0.0, Outcome.passed),
    ],
)
def test_a_guard(side, margin, outcome):
    result = verdict((300, 5, 500), side, gate(margin=margin))
    assert result.comparisons[1].outcome is outcome


def test_the_worst_outcome_decides_and_its_reason_comes_first():
    assert verdict((300, 5, 500), (0, 50, 500)).decision is Decision.blocked
    assert verdict((0, 0, 2000), (0, 50, 500)).decision is Decision.blocked
    assert verdict((0, 0, 2000), (0, 9, 500)).decision is Decision.hold
    assert verdict((300, 5, 500), (0, 9, 500)).decision is Decision.inconclusive
    blocked = verdict((300, 5, 500), (0, 50, 500))
    assert blocked.reasons[0].startswith("Guard short (acc) against sft")
    assert "fall by more than the margin of 2 points" in blocked.reasons[0]


def test_every_baseline_counts():
    before, after = pair(300, 5, 500)
    result = decide({MAIN: after}, {"sft": {MAIN: before}, "champion": {MAIN: after}}, gate(guards=False))
    assert result.decision is Decision.hold
    assert [(c.baseline, c.outcome) for c in result.comparisons] == [("sft", "passed"), ("champion", "hold")]
    assert "identical on all 500 items" in result.reasons[0]


def test_the_champion_itself_is_held_and_sft_still_reported():
    before, after = pair(300, 5, 500)
    baselines = {"sft": {MAIN: before}, CHAMPION: {MAIN: after}}
    result = decide({MAIN: after}, baselines, gate(guards=False), candidate_is_champion=True)
    assert result.decision is Decision.hold
    assert result.reasons[0] == "The candidate is the champion already: nothing to promote."
    assert [c.baseline for c in result.comparisons] == ["sft"]
    alone = decide({MAIN: after}, {CHAMPION: {MAIN: after}}, gate(guards=False), candidate_is_champion=True)
    assert alone.decision is Decision.hold and alone.comparisons == ()
    assert "nothing to promote" in verdict_prose(alone)


def test_equal_models_are_rarely_promoted():
    # 400 pairs of models of one true accuracy: at most half the level may pass.
    rng = random.Random(3)
    promoted = 0
    for _ in range(400):
        draws = [(rng.random(), rng.random() < 0.3) for _ in range(200)]
        before = {str(i): float(u < 0.6) for i, (u, _) in enumerate(draws)}
        after = {str(i): float(rng.random() < 0.6 if fresh else u < 0.6) for i, (u, fresh) in enumerate(draws)}
        promoted += decide({MAIN: after}, {"sft": {MAIN: before}}, gate(0.0, guards=False)).decision == "promote"
    assert promoted <= 16  # 2.5 % of 400 are 10, plus two standard deviations


def test_graded_scores_are_judged_by_permutation():
    rng = random.Random(1)
    before = {str(i): rng.random() for i in range(300)}
    after = {i: min(1.0, score + 0.1 + rng.gauss(0, 0.05)) for i, score in before.items()}
    result = decide({MAIN: after}, {"sft": {MAIN: before}}, gate(guards=False))
    assert result.decision is Decision.promote
    assert "permutation" in result.comparisons[0].figures.method


def test_scores_beyond_one_are_not_read_as_percent():
    before = {str(i): 20.0 + i % 3 for i in range(300)}
    after = {str(i): 25.0 + i % 2 for i in range(300)}
    result = decide({MAIN: after}, {"sft": {MAIN: before}}, gate(min_gain=1, guards=False))
    assert result.decision is Decision.promote
    assert "from 21.0 to 25.5, +4.5 (95 % interval" in result.reasons[0]
    assert "%" not in result.reasons[0].replace("95 %", "") and "point" not in result.reasons[0]


def test_the_order_of_items_decides_nothing():
    rng = random.Random(5)
    before = {str(i): rng.random() for i in range(60)}
    after = {str(i): rng.random() for i in range(60)}
    shuffled = dict(sorted(after.items(), key=lambda _: rng.random()))
    rules = gate(guards=False)
    assert decide({MAIN: after}, {"sft": {MAIN: before}}, rules) == decide(
        {MAIN: shuffled}, {"sft": {MAIN: before}}, rules
    )


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=60), st.sampled_from([0, 0.01, 0.1]))
def test_a_verdict_is_coherent_and_survives_json(pairs, min_gain):
    before = {str(i): float(a) for i, (a, _) in enumerate(pairs)}
    after = {str(i): float(b) for i, (_, b) in enumerate(pairs)}
    result = decide(
        {MAIN: after, SIDE: after}, {"sft": {MAIN: before, SIDE: before}}, gate(min_gain=min_gain, margin=0.05)
    )
    worst = max(
        RANK.index(Decision.promote if c.outcome == "passed" else Decision(c.outcome)) for c in result.comparisons
    )
    assert result.decision is RANK[worst]
    if result.decision is Decision.promote:
        figures = result.comparisons[0].figures
        assert figures.low > 0 and figures.p_value <= 0.05 and figures.difference >= min_gain - 1e-9
    assert Verdict.model_validate_json(result.model_dump_json()) == result
    assert all(reason in verdict_prose(result) for reason in result.reasons)


def test_different_items_are_refused_with_counts_and_examples():
    before = {f"q{i}": 1.0 for i in range(10)}
    after = {f"q{i}": 1.0 for i in range(4, 11)}
    with pytest.raises(UserError) as error:
        decide({MAIN: after}, {"sft": {MAIN: before}}, gate(guards=False))
    message = str(error.value)
    assert "candidate (7 items) and sft (10 items)" in message
    assert "1 only the candidate's (q10)" in message and "4 only sft's (q0, q1, q2, …)" in message


@pytest.mark.parametrize("bad", [math.nan, math.inf, "1", None])
def test_a_score_that_is_no_number_is_refused(bad):
    with pytest.raises(UserError, match=r"sft, task 'chains', metric 'acc', item 'a'.*no finite number"):
        decide({MAIN: {"a": 1.0}}, {"sft": {MAIN: {"a": bad}}}, gate(guards=False))


def test_a_missing_task_or_baseline_is_refused():
    with pytest.raises(UserError, match=r"sft has no scores for task 'chains', metric 'acc'.*there are: short \(acc\)"):
        decide({MAIN: {"a": 1.0}}, {"sft": {SIDE: {"a": 1.0}}}, gate(guards=False))
    with pytest.raises(UserError, match="at least one baseline"):
        decide({MAIN: {"a": 1.0}}, {}, gate())


def test_an_objection_blocks_the_best_of_candidates_and_comes_first():
    result = verdict((300, 5, 500), objection="The alarm reward_hacking stopped grpo at step 7.")
    assert result.decision is Decision.blocked
    assert result.reasons[0] == "The alarm reward_hacking stopped grpo at step 7."
    assert len(result.reasons) == 3
    assert "must not replace" in verdict_prose(result)


def test_an_objection_to_the_champion_itself_changes_nothing():
    result = verdict((0, 0, 500), candidate_is_champion=True, objection="An alarm.")
    assert result.decision is Decision.hold


def test_without_a_candidate_there_is_nothing_to_promote():
    result = nothing("The climb stopped at SFT.", gate())
    assert result.decision is Decision.hold
    assert result.reasons == ("The climb stopped at SFT.",)
    assert "The climb stopped at SFT." in verdict_prose(result)
    assert Verdict.model_validate_json(result.model_dump_json()) == result
