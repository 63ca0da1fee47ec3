import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import multinomial

from tasks.stats import compare
from tasks.stats.paired import bootstrap, mcnemar, sign_flip, tango

bits = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1)), min_size=1, max_size=80)
graded = st.lists(
    st.tuples(st.floats(0, 1, allow_subnormal=False), st.floats(0, 1, allow_subnormal=False)), min_size=1, max_size=12
)


def test_mcnemar_on_published_tables():
    # Fagerland, Lydersen, Laake (2013), BMC Medical Research Methodology 13:91: airway hyper-responsiveness, 1 and 7.
    assert mcnemar(1, 7) == pytest.approx(0.0703, abs=5e-5)
    # Agresti, Categorical Data Analysis: approval of the prime minister, 86 and 150 discordant; p is about 3e-5.
    assert mcnemar(86, 150) == pytest.approx(3.7e-5, rel=0.05)
    # By hand: five wins of five are 2 / 2^5.
    assert mcnemar(5, 0) == 1 / 16


def test_tango_on_published_tables():
    # Fagerland, Lydersen, Laake (2014), Statistics in Medicine 33: Bentur's 21 and Cavo's 161 patients.
    assert tango(1, 7, 21, 0.95) == pytest.approx((-0.517, -0.026), abs=5e-4)
    assert tango(6, 16, 161, 0.95) == pytest.approx((-0.124, -0.005), abs=5e-4)


def test_tango_has_a_width_at_the_edges():
    z2 = 1.959963984540054**2
    for n in (1, 7, 100, 100_000):
        assert tango(0, 0, n, 0.95) == pytest.approx((-z2 / (n + z2), z2 / (n + z2)), abs=1e-8)
        low, high = tango(n, 0, n, 0.95)
        assert (low, high) == (pytest.approx((n - z2) / (n + z2), abs=1e-8), 1.0)


@pytest.mark.parametrize("n", [20, 50])
@pytest.mark.parametrize("rates", [(0.01, 0.01), (0.05, 0.05), (0.2, 0.2), (0.1, 0.02), (0.3, 0.01), (0.5, 0.02)])
def test_tango_covers_the_true_difference(n, rates):
    # Not a simulation: every table of n items, weighted by its probability.
    tables = [(w, x) for w, x in product(range(n + 1), repeat=2) if w + x <= n]
    weights = multinomial.pmf([(w, x, n - w - x) for w, x in tables], n, [*rates, 1 - sum(rates)])
    covered = 0.0
    for (wins, losses), weight in zip(tables, weights, strict=True):
        if weight > 1e-8:
            low, high = tango(wins, losses, n, 0.95)
            covered += weight * (low <= rates[0] - rates[1] <= high)
    assert covered > 0.94


def test_a_significant_mcnemar_never_contradicts_the_interval():
    for n, wins, losses in product((20, 60, 300), range(0, 60, 3), range(0, 60, 3)):
        if losses < wins <= n - losses and mcnemar(wins, losses) <= 0.05:
            assert tango(wins, losses, n, 0.95)[0] > 0


@given(bits, st.sampled_from([0.8, 0.95, 0.99]))
def test_binary_comparison_is_coherent_and_symmetric(pairs, confidence):
    before, after = zip(*pairs, strict=True)
    result, mirrored = compare(before, after, confidence), compare(after, before, confidence)
    assert -1 <= result.low <= result.difference <= result.high <= 1
    assert 0 < result.p_value <= 1
    assert result.difference == pytest.approx(result.candidate_mean - result.baseline_mean)
    assert (mirrored.low, mirrored.high, mirrored.difference) == (-result.high, -result.low, -result.difference)
    assert (mirrored.wins, mirrored.losses, mirrored.p_value) == (result.losses, result.wins, result.p_value)
    assert "McNemar" in result.method


@settings(max_examples=30, deadline=None)
@given(graded)
def test_graded_comparison_is_coherent_and_repeatable(pairs):
    before, after = zip(*[(a, b) for a, b in pairs], strict=True)
    before = (*before, 0.5)  # so that it is graded whatever is drawn
    after = (*after, 0.5)
    result = compare(before, after)
    assert result.low < result.difference < result.high
    assert 0 < result.p_value <= 1
    assert result == compare(before, after)
    assert result.wins + result.losses <= result.n
    assert "permutation" in result.method


def test_sign_flip_is_exact_for_few_items():
    # Differences 1, 2, 3: the sums 6 and -6 of the 8 sign patterns are as extreme, so p = 2 / 8.
    assert sign_flip(np.array([1.0, 2.0, 3.0])) == 0.25
    assert sign_flip(np.array([1.0, 2.0, 3.0, 0.0, 0.0])) == 0.25
    # Differences 1, 2, -3 sum to 0: every pattern is as extreme.
    assert sign_flip(np.array([1.0, 2.0, -3.0])) == 1.0
    assert sign_flip(np.array([0.4])) == 1.0
    assert sign_flip(np.zeros(9)) == 1.0


def test_sign_flip_agrees_with_mcnemar_on_binary_differences():
    for wins, losses in ((9, 2), (25, 11), (60, 40)):
        differences = np.array([1.0] * wins + [-1.0] * losses + [0.0] * 30)
        assert sign_flip(differences) == pytest.approx(mcnemar(wins, losses), abs=0.012)


def test_bootstrap_covers_and_sign_flip_keeps_its_level():
    rng = np.random.default_rng(7)
    covered = rejected = 0
    runs = 200
    for _ in range(runs):
        before = rng.beta(2, 2, 40)
        after = np.clip(before + rng.normal(0, 0.6, 40), 0, 1)
        mean = 0.0  # by symmetry of the beta(2, 2) and of the noise about 1/2
        low, high = bootstrap(after - before, 1.0, 0.95)
        covered += low <= mean <= high
        rejected += sign_flip(after - before) <= 0.05
    assert covered >= 0.92 * runs
    assert rejected <= 0.09 * runs


def test_few_differing_items_give_no_false_certainty():
    nearly = np.zeros(10)
    nearly[0] = 0.01
    low, high = bootstrap(nearly, 1.0, 0.95)
    assert low < -0.2 and high > 0.2
    same = compare([0.3, 0.7, 0.3], [0.3, 0.7, 0.3])
    assert (same.p_value, same.difference) == (1.0, 0.0)
    assert same.high > 0.5 and same.low < -0.5
    # Sparse graded scores are treated much as 0/1 scores are.
    sparse = np.zeros(200)
    sparse[:6] = 1
    assert bootstrap(sparse, 1.0, 0.95) == pytest.approx(tango(6, 0, 200, 0.95), abs=0.006)


def test_scores_beyond_one_widen_the_floor_with_their_range():
    lengths = [10.0, 30.0, 20.0, 20.0]
    assert compare(lengths, lengths).high == pytest.approx(30 * compare([0.5] * 4, [0.5] * 4).high)


@pytest.mark.parametrize(
    ("before", "after"), [([], []), ([1.0], [1.0, 0.0]), ([math.nan], [1.0]), ([1.0], [math.inf]), ([[1.0]], [[1.0]])]
)
def test_what_cannot_be_compared_is_refused(before, after):
    with pytest.raises(ValueError, match="comparison needs"):
        compare(before, after)
