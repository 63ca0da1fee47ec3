"""The figures of a probe, against brute force over all subsets and against the distributions that they estimate."""

import math
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.errors import UserError
from tasks.probing.findings import Attempt, ProbedPrompt
from tasks.probing.measures import measure, pass_at, same_score
from tasks.rewards import Status


def attempt(score: float | None, tokens: int = 10, ended: bool = True, chance: float | None = None) -> Attempt:
    status = Status.INFRASTRUCTURE if score is None else Status.RIGHT if score == 1 else Status.WRONG
    return Attempt(completion="x", tokens=tokens, ended=ended, score=score, status=status, chance=chance)


def prompt(*scores: float | None, **changes: object) -> ProbedPrompt:
    return ProbedPrompt(id="p", source="s", attempts=[attempt(score, **changes) for score in scores])


scores = st.sampled_from([0.0, 0.0, 0.5, 1.0, 1.0, None])
attempts = st.builds(
    attempt,
    scores,
    tokens=st.integers(1, 48),
    ended=st.booleans(),
    chance=st.sampled_from([None, 0.0, 0.5, 1.0]),
)


@st.composite
def probes(draw):
    samples = draw(st.integers(1, 8))
    several = st.lists(attempts, min_size=samples, max_size=samples)
    found = [ProbedPrompt(id=str(n), source="s", attempts=draw(several)) for n in range(draw(st.integers(1, 5)))]
    if not any(each.judged for each in found):
        found.append(prompt(*[1.0] * samples))
    return found


@given(st.integers(1, 8), st.integers(1, 8), st.data())
def test_pass_at_k_is_the_share_of_subsets_with_a_right_one(k, n, data):
    right = data.draw(st.integers(0, n))
    subsets = list(combinations([True] * right + [False] * (n - right), min(k, n)))
    assert pass_at(k, n, right) == sum(map(any, subsets)) / len(subsets)


@given(st.floats(0, 1), st.integers(1, 6), st.integers(0, 6))
def test_pass_at_k_is_unbiased(rate, k, more):
    n = k + more
    expected = sum(
        math.comb(n, right) * rate**right * (1 - rate) ** (n - right) * pass_at(k, n, right) for right in range(n + 1)
    )
    assert expected == pytest.approx(1 - (1 - rate) ** k)


@given(st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=1, max_size=8), st.integers(2, 10))
def test_zero_variance_is_the_share_of_groups_whose_scores_are_equal(given_scores, group):
    found = same_score(prompt(*given_scores).attempts, group)
    if len(given_scores) >= group:
        groups = list(combinations(given_scores, group))
        assert found == sum(len(set(each)) == 1 for each in groups) / len(groups)
    else:
        rates = [given_scores.count(score) / len(given_scores) for score in (0.0, 0.5, 1.0)]
        assert found == pytest.approx(sum(rate**group for rate in rates))


@given(st.floats(0, 1), st.integers(2, 5), st.integers(0, 4))
def test_zero_variance_is_unbiased_with_enough_attempts(rate, group, more):
    n = group + more
    expected = sum(
        math.comb(n, right)
        * rate**right
        * (1 - rate) ** (n - right)
        * same_score(prompt(*[1.0] * right, *[0.0] * (n - right)).attempts, group)
        for right in range(n + 1)
    )
    assert expected == pytest.approx(rate**group + (1 - rate) ** group)


@given(probes(), st.integers(2, 8))
def test_bounds(found, group):
    figures = measure(found, group, max_tokens=48)
    assert 0 <= figures.pass_at_1 <= figures.pass_at_k <= 1
    assert figures.chance_at_k is None or 0 <= figures.chance_at_k <= 1
    assert 0 <= figures.zero_variance <= 1
    assert 0 <= figures.ended <= 1
    assert 0 <= figures.infrastructure < 1
    assert 1 <= figures.mean_tokens <= 48
    assert 1 <= figures.p99_tokens <= 48
    assert len(figures.histogram) == figures.samples + 1
    assert sum(figures.histogram) == sum(bool(each.judged) for each in found) <= figures.prompts == len(found)
    right = sum(each.right for every in found for each in every.attempts)
    assert sum(number * count for number, count in enumerate(figures.histogram)) == right


@given(probes(), st.integers(2, 8))
def test_one_more_right_attempt_lowers_no_rate(found, group):
    before = measure(found, group, max_tokens=48)
    first = next(each for each in found if each.judged)
    wrong = next((each for each in first.judged if not each.right), None)
    if wrong is None:
        return
    better = [attempt(1.0) if each is wrong else each for each in first.attempts]
    after = measure(
        [each.model_copy(update={"attempts": better}) if each is first else each for each in found], group, 48
    )
    assert after.pass_at_1 > before.pass_at_1
    assert after.pass_at_k >= before.pass_at_k


def test_the_figures_of_a_small_probe():
    found = [
        prompt(1, 1, 1, 1, chance=0.0, tokens=10),
        prompt(1, 0, 0, 0, chance=0.0, tokens=20),
        prompt(0, 0, 0, 0, chance=1.0, tokens=30),
        prompt(0, 0, 0.5, 0.5, tokens=48, ended=False),
    ]
    figures = measure(found, group=2, max_tokens=48)
    assert (figures.prompts, figures.samples, figures.max_tokens) == (4, 4, 48)
    assert figures.pass_at_1 == pytest.approx((1 + 1 / 4) / 4)
    assert figures.pass_at_k == 2 / 4
    assert figures.chance_at_k == pytest.approx(1 / 3)  # of the three prompts of which it can be asked
    assert figures.histogram == [2, 1, 0, 0, 1]
    assert figures.zero_variance == pytest.approx((1 + 3 / 6 + 1 + 2 / 6) / 4)
    assert (figures.mean_tokens, figures.p99_tokens, figures.ended) == (27, 30, 0.75)
    assert figures.infrastructure == 0


def test_what_could_not_be_verified_counts_neither_as_right_nor_as_wrong():
    found = [prompt(1, None, None, None), prompt(1, 0, 0, None), prompt(None, None, None, None)]
    figures = measure(found, group=4, max_tokens=48)
    assert figures.pass_at_1 == pytest.approx((1 + 1 / 3) / 2)
    assert figures.pass_at_k == 1
    assert figures.histogram == [0, 2, 0, 0, 0]
    assert figures.infrastructure == 8 / 12
    assert figures.zero_variance == pytest.approx((1 + (1 / 3) ** 4 + (2 / 3) ** 4) / 2)


def test_a_partial_score_is_no_pass_by_chance_either():
    assert measure([prompt(0.5, 0.5, chance=0.5)], group=2, max_tokens=48).chance_at_k == 0
    assert measure([prompt(0, 0, chance=None)], group=2, max_tokens=48).chance_at_k is None


def test_p99_is_a_length_that_99_percent_of_the_ended_stay_within():
    lengths = list(range(1, 201))
    found = [ProbedPrompt(id=str(n), source="s", attempts=[attempt(1.0, n)]) for n in lengths]
    assert measure(found, group=2, max_tokens=512).p99_tokens == 198
    cut = [prompt(0, 0, tokens=48, ended=False)]
    assert measure(cut, group=2, max_tokens=48).p99_tokens == 48


@pytest.mark.parametrize("found", [[], [prompt(None, None)]])
def test_nothing_judged_is_an_error(found):
    with pytest.raises(UserError, match="none could be verified"):
        measure(found, group=2, max_tokens=48)
