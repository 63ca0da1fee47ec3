"""The charts of scores and of training, as SVG to stand inside the page."""

from collections.abc import Sequence

from tasks.reporting.drawing import ACCENT, BAND, LINE, blank, style, svg
from tasks.reporting.report import Climb, Curves

CURVES = {
    "reward": "Reward",
    "verified": "Verified right (share)",
    "dev/accuracy": "Accuracy on dev (greedy)",
    "rewards/accuracies": "Preference accuracy",
    "rewards/margins": "Preference margin",
    "rewards/chosen": "Reward of the chosen answers",
    "completions/mean_length": "Completion length (tokens)",
    "frac_reward_zero_std": "Groups without spread (share)",
    "loss": "Loss",
    "mean_token_accuracy": "Token accuracy",
    "entropy": "Entropy",
    "kl": "KL from the reference",
}
"""What is drawn of a training stage, by the name it is logged under, in this order. `reward_std` is the band around
`reward`; `verified` is what the rows' verifiers say, whatever the reward."""


def climb_chart(climb: Climb, path: Sequence[str], highlight: str) -> str:
    """One task's scores from model to model, each with its interval.

    The line goes through the models of `path`: others, as the champion, are no step of this climb.
    """
    rungs = climb.rungs
    share = all(0 <= r.score <= 1 for r in rungs)
    scale = 100 if share else 1
    with style():
        figure, axes = blank(3.8, 2.6)
        steps = [(place, rung.score * scale) for place, rung in enumerate(rungs) if rung.model in path]
        axes.plot([place for place, _ in steps], [score for _, score in steps], color=LINE, linewidth=1.6, zorder=2)
        following = dict(zip([place for place, _ in steps], [score for _, score in steps[1:]], strict=False))
        for place, rung in enumerate(rungs):
            colour = ACCENT if rung.model == highlight else LINE
            axes.vlines(place, rung.low * scale, rung.high * scale, color=colour, linewidth=2.2, clip_on=False)
            axes.plot([place], [rung.score * scale], "o", color=colour, markersize=7, zorder=3, clip_on=False)
            # A label stands over its point, but left of a line that climbs away from it.
            climbs = following.get(place, float("-inf")) > rung.score * scale
            axes.annotate(
                f"{rung.score * scale:.1f}{' %' if share else ''}",
                (place, rung.high * scale),
                xytext=(4 if climbs else 0, 6),
                textcoords="offset points",
                ha="right" if climbs else "center",
                fontsize=10.5,
                fontweight="bold",
            )
        axes.set_xticks(range(len(rungs)), [r.model for r in rungs])
        axes.set_xlim(-0.7, len(rungs) - 0.5)
        if share:
            axes.set_ylim(0, 112)
            axes.set_yticks([0, 25, 50, 75, 100], ["0 %", "25 %", "50 %", "75 %", "100 %"])
        else:
            axes.margins(y=0.2)
        return svg(figure, f"{climb.task}: {', '.join(f'{r.model} {r.score * scale:.1f}' for r in rungs)}")


def curve_charts(curves: Curves) -> list[tuple[str, str]]:
    """Title and chart of every logged series that is worth a look, the most telling first."""
    found = [(name, title) for name, title in CURVES.items() if _points(curves.series.get(name, []))]
    return [(title, _curve_chart(curves, name, title)) for name, title in found]


def _curve_chart(curves: Curves, name: str, title: str) -> str:
    steps, values = _columns(curves.series[name])
    with style():
        figure, axes = blank(3.6, 2.0)
        spread = dict(_points(curves.series.get(f"{name}_std", [])))
        if spread:
            low, high = (
                [v + sign * spread.get(s, 0.0) for s, v in zip(steps, values, strict=True)] for sign in (-1, 1)
            )
            axes.fill_between(steps, low, high, color=BAND, linewidth=0, zorder=1)
        axes.plot(steps, values, color=LINE, linewidth=1.8, zorder=2, marker="o" if len(steps) == 1 else None)
        axes.locator_params(axis="y", nbins=5)
        axes.locator_params(axis="x", nbins=5, integer=True)
        axes.ticklabel_format(axis="y", scilimits=(-3, 4))
        known = [v for v in values if v == v]
        return svg(figure, f"{curves.stage}, {title}: from {known[0]:.3g} to {known[-1]:.3g}")


def _points(series: Sequence[tuple[float, float | None]]) -> list[tuple[float, float]]:
    return [(step, value) for step, value in series if value is not None]


def _columns(series: Sequence[tuple[float, float | None]]) -> tuple[list[float], list[float]]:
    """Steps and values, a gap as NaN, which matplotlib leaves open."""
    return [s for s, _ in series], [float("nan") if v is None else v for _, v in series]
