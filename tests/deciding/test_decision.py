"""When GRPO is worth its cost, at the edges of every threshold, and what is said of it."""

import pytest

from tasks.config.schema import Probe
from tasks.deciding import decide
from tasks.probing.findings import Measures

SETTINGS = Probe()


def measures(at_1: float = 0.3, at_k: float = 0.8, chance: float | None = 0.02, **changes: object) -> Measures:
    figures = {
        "prompts": 256,
        "samples": 8,
        "pass_at_1": at_1,
        "pass_at_k": at_k,
        "chance_at_k": chance,
        "histogram": [0, 256, *[0] * 7],
        "zero_variance": 0.3,
        "mean_tokens": 14.0,
        "p99_tokens": 20,
        "ended": 1.0,
        "max_tokens": 48,
        "infrastructure": 0.0,
    }
    return Measures(**{**figures, **changes})


@pytest.mark.parametrize(
    ("figures", "outcome"),
    [
        (measures(0.3, 0.8), "climb"),
        (measures(0.0, 0.0), "no_signal"),
        (measures(0.01, 0.05, None), "no_signal"),
        (measures(0.01, 0.0501, None), "climb"),
        (measures(0.05, 0.25, 0.2), "no_signal"),
        (measures(0.05, 0.26, 0.2), "climb"),
        (measures(0.05, 0.06, 0.5), "no_signal"),
        (measures(0.95, 1.0), "no_headroom"),
        (measures(0.9499, 1.0), "climb"),
        (measures(0.5, 0.529), "no_headroom"),
        (measures(0.5, 0.531), "climb"),
        (measures(1.0, 1.0), "no_headroom"),
    ],
)
def test_the_outcome_follows_the_thresholds(figures, outcome):
    decision = decide(figures, SETTINGS)
    assert decision.outcome == outcome
    assert decision.climbs == (outcome == "climb")


def test_the_reason_has_the_figures_and_what_to_do():
    assert decide(measures(), SETTINGS).reason == (
        "On 256 dev prompts pass@1 is 30.0 %, pass@8 80.0 %; guessing gets 2.0 % in 8. The model solves at times what"
        " it could solve always, and that is what GRPO teaches."
    )
    nothing = decide(measures(0.0, 0.04), SETTINGS).reason
    assert "at most 5 points above guessing" in nothing
    assert "RL cannot teach this" in nothing
    assert "demonstrations (more rows with a `solution`" in nothing
    assert "pass@8 is at most 5 %" in decide(measures(0.0, 0.04, None), SETTINGS).reason
    assert "guessing" not in decide(measures(0.3, 0.8, None), SETTINGS).reason
    solved = decide(measures(0.97, 1.0), SETTINGS).reason
    assert "pass@1 is at least 95 % (probe.ceiling). Stop here, SFT is enough" in solved
    flat = decide(measures(0.5, 0.51), SETTINGS).reason
    assert "less than 3 points above pass@1 (probe.headroom)" in flat
    assert "Stop here, SFT is enough" in flat


@pytest.mark.parametrize(
    ("figures", "shown"),
    [
        (measures(0.94999, 1.0), "pass@1 is 94.999 %"),
        (measures(0.01, 0.05004, None), "pass@8 5.004 %"),
        (measures(0.2, 0.22996), "pass@8 22.996 %"),
        (measures(0.95, 1.0), "pass@1 is 95.0 %"),
        (measures(0.01, 0.07, 0.02), "pass@8 7.0 %"),
    ],
)
def test_no_figure_belies_the_outcome(figures, shown):
    assert shown in decide(figures, SETTINGS).reason


@pytest.mark.parametrize(
    ("decision", "figures", "climbs", "beginning"),
    [
        ("climb", measures(0.0, 0.0), True, "probe.decision is `climb`, so GRPO runs, against what the figures say: "),
        ("climb", measures(), True, "probe.decision is `climb`, so GRPO runs, as the figures say too: "),
        ("stop", measures(), False, "probe.decision is `stop`, so GRPO does not run, against what the figures say: "),
        ("stop", measures(1, 1), False, "probe.decision is `stop`, so GRPO does not run, as the figures say too: "),
    ],
)
def test_the_parameters_may_decide_and_the_figures_still_speak(decision, figures, climbs, beginning):
    by_figures = decide(figures, SETTINGS)
    decided = decide(figures, Probe(decision=decision))
    assert decided.climbs is climbs
    assert decided.outcome == by_figures.outcome
    assert decided.reason == beginning + by_figures.reason


def test_settings_move_the_thresholds():
    assert decide(measures(0.3, 0.8), Probe(no_signal=0.8)).outcome == "no_signal"
    assert decide(measures(0.3, 0.8), Probe(ceiling=0.3)).outcome == "no_headroom"
    assert decide(measures(0.3, 0.8), Probe(headroom=0.51)).outcome == "no_headroom"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, None),
        ({"ended": 0.96}, None),
        ({"ended": 0.9}, "10.0 % of the attempts were cut at 48 tokens"),
        ({"ended": 0.0, "p99_tokens": 48}, "set grpo.trainer.max_completion_length to 96"),
        ({"p99_tokens": 43}, None),
        ({"p99_tokens": 44}, "Answers come close to the limit of 48 tokens"),
        ({"infrastructure": 0.0001}, "0.01 % of the attempts could not be verified"),
        ({"zero_variance": 0.8}, None),
        ({"zero_variance": 0.8001}, "80.01 % of GRPO's groups are expected to score all the same"),
        ({"zero_variance": 1.0}, "100.0 % of GRPO's groups"),
    ],
)
def test_notes(changes, said):
    notes = decide(measures(**changes), SETTINGS).notes
    assert len(notes) == (said is not None)
    if said is not None:
        assert said in notes[0]


def test_greedy_answers_at_the_ceiling_leave_no_headroom():
    solved = decide(measures(0.9, 1.0).model_copy(update={"greedy": 0.99}), SETTINGS)
    assert solved.outcome == "no_headroom"
    assert "greedy accuracy is at least 95 % (probe.ceiling)" in solved.reason
    below = decide(measures(0.5, 0.62).model_copy(update={"greedy": 0.7}), SETTINGS)
    assert below.outcome == "climb"
    assert "greedy accuracy is 70.0 %, pass@1 is 50.0 %" in below.reason


@pytest.mark.parametrize(
    ("skill", "outcome"),
    [(0.25, "no_signal"), (0.4, "climb")],
)
def test_where_guessing_is_easy_one_attempt_tells_more_than_many(skill, outcome):
    """Four options, 32 attempts: a right one is among them by luck alone."""
    choice = measures(skill, 0.9999, 0.9999).model_copy(update={"samples": 32, "chance_at_1": 0.25})
    assert decide(choice, SETTINGS).outcome == outcome


def test_a_note_on_groups_without_spread_is_for_a_climb_alone():
    flat = measures(0.97, 1.0).model_copy(update={"zero_variance": 0.9})
    assert not any("groups" in note for note in decide(flat, SETTINGS).notes)
