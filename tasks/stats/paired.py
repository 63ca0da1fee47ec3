"""Two models on the same items: is the difference real, and how large may it be?

Scores that are all 0 or 1 get the exact McNemar test and Tango's score interval; any other scores get a sign-flip
permutation test and a bootstrap interval. Both use that the items are the same, so the difficulty of an item, which
is most of the noise of a benchmark, cancels out.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, stats

RESAMPLES = 9999
SEED = 0
"""Resampling starts from one fixed seed, so that the same scores always give the same figures."""


@dataclass(frozen=True)
class PairedComparison:
    """A candidate against a baseline on the same items. Means, difference and limits are in the scores' own unit."""

    n: int
    baseline_mean: float
    candidate_mean: float
    difference: float
    """Candidate minus baseline."""
    low: float
    high: float
    """The two-sided interval of the difference."""
    p_value: float
    """Two-sided, of the hypothesis that neither model is better."""
    wins: int
    """Items on which the candidate scores higher."""
    losses: int
    """Items on which the candidate scores lower."""
    method: str
    confidence: float


def compare(baseline: Sequence[float], candidate: Sequence[float], confidence: float = 0.95) -> PairedComparison:
    """The paired comparison of two models' scores; `baseline[i]` and `candidate[i]` belong to the same item.

    Raises ValueError when the scores are of different number, none, or not finite.
    """
    before, after = np.asarray(baseline, dtype=float), np.asarray(candidate, dtype=float)
    if before.shape != after.shape or before.ndim != 1 or before.size == 0:
        raise ValueError(
            f"a paired comparison needs one score per item and model, not {before.shape} and {after.shape}"
        )
    if not (np.isfinite(before).all() and np.isfinite(after).all()):
        raise ValueError("a paired comparison needs finite scores")
    differences = after - before
    n, wins, losses = len(differences), int((differences > 0).sum()), int((differences < 0).sum())
    if np.isin(before, (0, 1)).all() and np.isin(after, (0, 1)).all():
        method = "exact McNemar test, Tango score interval"
        difference = (wins - losses) / n
        p_value, (low, high) = mcnemar(wins, losses), tango(wins, losses, n, confidence)
    else:
        method = "sign-flip permutation test, BCa bootstrap interval"
        difference = math.fsum(differences) / n
        # A score between 0 and 1 may move by 1; one beyond moves at most as far as scores were seen to lie apart.
        span = max(1.0, before.max(), after.max()) - min(0.0, before.min(), after.min())
        p_value, (low, high) = sign_flip(differences), bootstrap(differences, float(span), confidence)
    return PairedComparison(
        n=n,
        baseline_mean=math.fsum(before) / n,
        candidate_mean=math.fsum(after) / n,
        difference=difference,
        low=low,
        high=high,
        p_value=p_value,
        wins=wins,
        losses=losses,
        method=method,
        confidence=confidence,
    )


def mcnemar(wins: int, losses: int) -> float:
    """The two-sided p-value of the exact conditional McNemar test: wins are binomial(wins + losses, 1/2).

    McNemar, Psychometrika 12 (1947); exact form as in Agresti, Categorical Data Analysis, section 11.1.
    Without a discordant item it is 1.
    """
    return float(stats.binomtest(wins, wins + losses).pvalue) if wins + losses else 1.0


def tango(wins: int, losses: int, n: int, confidence: float) -> tuple[float, float]:
    """The score interval of the difference of two paired proportions, (wins - losses) / n.

    Tango, Statistics in Medicine 17 (1998) 891-908, equations 6 to 9. It inverts the score test, so it keeps its level
    in small samples and at 0 % and 100 %, stays within [-1, 1], and has a width when no item is discordant; Fagerland,
    Lydersen and Laake, Statistics in Medicine 33 (2014) 2850-2875, recommend it.
    """
    return _tango_low(wins, losses, n, confidence), -_tango_low(losses, wins, n, confidence)


def _tango_low(wins: int, losses: int, n: int, confidence: float) -> float:
    if losses == n:
        return -1.0
    z = float(stats.norm.isf((1 - confidence) / 2))

    def excess(delta: float) -> float:
        a, b, c = 2 * n, (2 * n - wins + losses) * delta - wins - losses, -losses * delta * (1 - delta)
        loss_rate = (math.sqrt(max(b * b - 4 * a * c, 0.0)) - b) / (2 * a)
        variance = n * (2 * loss_rate + delta * (1 - delta))
        return (wins - losses - n * delta) / math.sqrt(max(variance, 1e-15)) - z

    return float(optimize.brentq(excess, -1 + 1e-9, 1 - 1e-9))


def sign_flip(differences: NDArray[np.float64]) -> float:
    """The two-sided p-value of the paired permutation test on the mean difference: each item's sign is a coin.

    Exact up to 13 differing items, beyond that by 9,999 draws, counted so that p is never 0 (Phipson and Smyth,
    Statistical Applications in Genetics and Molecular Biology 9 (2010), article 39).
    """
    differing = differences[differences != 0]  # a zero has no sign, so without it the test is the same and faster
    if differing.size < 2:  # either sign of a single item is as extreme as the other
        return 1.0
    test = stats.permutation_test(
        (differing,),
        np.mean,
        permutation_type="samples",
        n_resamples=RESAMPLES,
        batch=1000,
        vectorized=True,
        rng=np.random.default_rng(SEED),
    )
    return float(test.pvalue)


def bootstrap(differences: NDArray[np.float64], span: float, confidence: float) -> tuple[float, float]:
    """The bias-corrected and accelerated interval of the mean difference (Efron, JASA 82 (1987) 171-185).

    A resample knows only what was seen: from items that hardly ever differ it claims a certainty that is not there.
    So the interval is at least as wide as Tango's without a discordant item, z² / (n + z²) to either side,
    times `span`, the largest change that one item may show.
    """
    n, mean = len(differences), float(np.mean(differences))
    square = float(stats.norm.isf((1 - confidence) / 2)) ** 2
    floor = span * square / (n + square)
    low, high = mean - floor, mean + floor
    if np.ptp(differences) > 0:
        interval = stats.bootstrap(
            (differences,),
            np.mean,
            confidence_level=confidence,
            method="BCa",
            n_resamples=RESAMPLES,
            batch=1000,
            rng=np.random.default_rng(SEED),
        ).confidence_interval
        low, high = min(low, float(interval.low)), max(high, float(interval.high))
    return low, high
