import re

import pytest

from tasks.config.schema import Gate, Primary
from tasks.gating import decide, verdict_prose
from tasks.gating.prose import number


def primary(wins, losses, n, min_gain=0.01):
    before = {str(i): float(wins <= i < wins + losses) for i in range(n)}
    after = {str(i): float(i < wins) for i in range(n)}
    rules = Gate(primary=Primary(task="t", min_gain=min_gain))
    return decide({("t", "acc"): after}, {"sft": {("t", "acc"): before}}, rules)


def test_figures_keep_their_side_of_a_threshold():
    assert number(0.96, 1.0) == "0.96"
    assert number(1.96, 2.0) == "1.96"
    assert number(1.9999999, 2.0) == "2.00000"
    assert number(2.0, 2.0) == "2.0"
    assert number(0.04, 0.0) == "0.04"
    assert number(-0.04, 0.0, signed=True) == "-0.04"
    assert number(0.0, 0.0, signed=True) == "0.0"
    assert number(-0.001) == "0.0"
    assert number(12.34, signed=True) == "+12.3"


def test_prose_states_every_figure():
    prose = verdict_prose(primary(30, 5, 500))
    assert prose.startswith("**Promote.**")
    assert (
        "- Primary t (acc) against sft: from 1.0 % to 6.0 %, +5.0 points (95 % interval +2.9 to +7.6 points, "
        "p < 0.0001; 30 items higher, 5 lower, of 500). A significant gain of at least the minimum of 1 point.\n"
    ) in prose
    assert "exact McNemar test, Tango score interval" in prose and "p ≤ 0.05" in prose


@pytest.mark.parametrize(
    ("table", "finding"),
    [
        ((0, 0, 2000), "the scores are identical on all 2000 items, 0.0 % in the mean"),
        ((0, 0, 2000), "A gain of the minimum of 1 point is ruled out."),
        ((0, 0, 20), "A gain of 1 point is neither shown nor ruled out."),
        ((5, 60, 500), "The candidate is significantly worse."),
        ((20, 5, 2000), "A gain, but not shown to reach the minimum of 1 point."),
    ],
)
def test_each_finding_is_said_as_what_it_is(table, finding):
    assert finding in verdict_prose(primary(*table))


def test_the_items_needed_would_do():
    # 12 % of the items differ, a minimum gain of 1 point: the interval's half-width is z sqrt(0.12 / n) = 0.01.
    reason = primary(32, 28, 500).reasons[0]
    needed = int(re.search(r"An interval of 1 point to either side takes about (\d+) items", reason)[1])
    assert needed == pytest.approx(1.96**2 * 0.12 / 0.01**2, rel=0.08)
    scale = needed / 500
    larger = primary(round(32 * scale), round(28 * scale), needed).comparisons[0].figures
    assert (larger.high - larger.low) / 2 == pytest.approx(0.01, rel=0.05)
