"""The interval of one model's mean score."""

import math
from collections.abc import Sequence

import numpy as np
from scipy import stats


def mean_interval(scores: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """The two-sided interval of a mean score, for charts of one model.

    For scores that are all 0 or 1 Wilson's score interval (JASA 22 (1927) 209-212), which holds its level near 0 % and
    100 % where the textbook interval has no width; for others Student's t. A single graded score has no interval:
    minus and plus infinity. Two models on the same items are told apart by `compare`, never by their two intervals.

    Raises ValueError when there is no score.
    """
    values = np.asarray(scores, dtype=float)
    if not values.size:
        raise ValueError("an interval needs at least one score")
    if np.isin(values, (0, 1)).all():
        test = stats.binomtest(int(values.sum()), len(values))
        wilson = test.proportion_ci(confidence_level=confidence, method="wilson")
        return float(wilson.low), float(wilson.high)
    if len(values) == 1:
        return -math.inf, math.inf
    half = float(stats.t.isf((1 - confidence) / 2, len(values) - 1) * stats.sem(values))
    return float(values.mean()) - half, float(values.mean()) + half
