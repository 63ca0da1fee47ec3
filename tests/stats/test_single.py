import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.stats import mean_interval


def test_wilson_on_published_examples():
    # Newcombe (1998), Statistics in Medicine 17: 857-872, table I, method 3: 81 of 263, 15 of 148, 0 of 20, 1 of 29.
    for wins, n, low, high in (
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ):
        assert mean_interval([1] * wins + [0] * (n - wins)) == pytest.approx((low, high), abs=5e-5)


def test_student_by_hand():
    # Mean 2, standard error 1 / sqrt(3), t(2; 0.975) = 4.3027.
    assert mean_interval([1.0, 2.0, 3.0]) == pytest.approx(
        (2 - 4.3027 / math.sqrt(3), 2 + 4.3027 / math.sqrt(3)), abs=1e-4
    )


@given(st.lists(st.integers(0, 1), min_size=1, max_size=200))
def test_an_accuracy_lies_in_its_interval(scores):
    low, high = mean_interval(scores)
    assert 0 <= low <= sum(scores) / len(scores) + 1e-12
    assert sum(scores) / len(scores) - 1e-12 <= high <= 1
    assert low < high


def test_edges():
    assert mean_interval([0.5]) == (-math.inf, math.inf)
    with pytest.raises(ValueError, match="at least one"):
        mean_interval([])
