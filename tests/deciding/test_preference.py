import random

import pytest

from tasks.config.schema import DPO
from tasks.deciding import kept, wanted
from tasks.probing.findings import Attempt, Decision, Measures, ProbedPrompt
from tasks.rewards import Status


def measures(zero_variance):
    return Measures(
        prompts=100,
        samples=8,
        pass_at_1=0.02,
        pass_at_k=0.1,
        chance_at_k=0.0,
        histogram=[90, 10, 0, 0, 0, 0, 0, 0, 0],
        zero_variance=zero_variance,
        mean_tokens=10,
        p99_tokens=20,
        ended=1.0,
        max_tokens=48,
        infrastructure=0.0,
    )


def decision(outcome="climb"):
    return Decision(outcome=outcome, climbs=outcome == "climb", reason="because")


def probe(rates, samples=8):
    def attempt(right):
        status = Status.RIGHT if right else Status.WRONG
        return Attempt(completion="#1", tokens=3, ended=True, score=float(right), status=status)

    return [
        ProbedPrompt(id=f"q{i}", source="s", attempts=[attempt(j < round(rate * samples)) for j in range(samples)])
        for i, rate in enumerate(rates)
    ]


@pytest.mark.parametrize(
    ("enabled", "given", "zero_variance", "outcome", "runs"),
    [
        (True, 0, 0.1, "no_signal", True),
        (False, 50, 0.9, "climb", False),
        ("auto", 50, 0.1, "no_headroom", True),
        ("auto", 0, 0.8, "climb", True),
        ("auto", 0, 0.79, "climb", False),
        ("auto", 0, 1.0, "no_signal", False),
        ("auto", 0, 1.0, "no_headroom", False),
    ],
)
def test_dpo_runs_where_quality_needs_it(enabled, given, zero_variance, outcome, runs):
    found = wanted(DPO(enabled=enabled), given, measures(zero_variance), decision(outcome))
    assert found.runs is runs
    assert found.reason


def test_the_reason_has_the_figures():
    assert "50 preference pairs" in wanted(DPO(), 50, measures(0.1), decision()).reason
    assert "90 %" in wanted(DPO(), 0, measures(0.9), decision()).reason


def test_a_clear_rise_is_kept():
    found = kept(probe([0.25] * 60), probe([0.75] * 60), 0.95)
    assert found.kept
    assert "25.0 % to 75.0 %" in found.reason
    assert found.reason.startswith("Kept")


def test_a_fall_and_a_rise_within_the_noise_are_thrown_away():
    rng = random.Random(1)
    before = [rng.random() for _ in range(60)]
    noisy = [min(1.0, max(0.0, rate + rng.gauss(0.0, 0.2))) for rate in before]
    for after in ([0.0] * 60, before, noisy):
        found = kept(probe(before), probe(after), 0.95)
        assert not found.kept
        assert "Thrown away, as it is not shown to beat SFT" in found.reason


def test_what_an_alarm_stopped_is_thrown_away_however_good_it_looks():
    found = kept(probe([0.25] * 60), probe([0.75] * 60), 0.95, alarm="The alarm not_a_number stopped dpo at step 3.")
    assert not found.kept
    assert "not_a_number" in found.reason


def test_prompts_that_nobody_could_judge_are_left_out():
    before, after = probe([0.25] * 60), probe([0.75] * 60)
    failed = Attempt(completion="", tokens=1, ended=True, score=None, status=Status.INFRASTRUCTURE)
    after[0] = ProbedPrompt(id="q0", source="s", attempts=[failed])
    assert kept(before, after, 0.95).figures.n == 59
