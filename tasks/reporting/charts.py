"""The charts of a report, as SVG to stand inside the page.

Matplotlib draws in stand-in colours, which are then replaced by CSS: the page's own text colour and its variables
`--line`, `--band` and `--accent`. So one drawing suits light and dark, and print. Text stays text.
"""

import io
import re
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from tasks.reporting.report import Climb, Curves

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, LINE, ACCENT, BAND = "#010101", "#020202", "#030303", "#040404"
STYLE = {INK: "currentColor", LINE: "var(--line)", ACCENT: "var(--accent)", BAND: "var(--band)"}

CURVES = {
    "reward": "Reward",
    "rewards/accuracies": "Preference accuracy",
    "rewards/margins": "Preference margin",
    "completions/mean_length": "Completion length (tokens)",
    "frac_reward_zero_std": "Groups without spread (share)",
    "loss": "Loss",
    "mean_token_accuracy": "Token accuracy",
    "entropy": "Entropy",
    "kl": "KL from the reference",
}
"""What is drawn of a training stage, by TRL's name, in this order. `reward_std` is the band around `reward`."""


def climb_chart(climb: Climb, highlight: str) -> str:
    """One task's scores from model to model, each with its interval.

    `highlight` is the candidate's name: the line ends there, for what stands after it is no further step.
    """
    rungs = climb.rungs
    share = all(0 <= r.score <= 1 for r in rungs)
    scale = 100 if share else 1
    with _style():
        figure, axes = _figure(3.8, 2.6)
        places = range(len(rungs))
        models = [r.model for r in rungs]
        last = models.index(highlight) + 1 if highlight in models else len(rungs)
        axes.plot(places[:last], [r.score * scale for r in rungs[:last]], color=LINE, linewidth=1.6, zorder=2)
        for place, rung in zip(places, rungs, strict=True):
            colour = ACCENT if rung.model == highlight else LINE
            axes.vlines(place, rung.low * scale, rung.high * scale, color=colour, linewidth=2.2, clip_on=False)
            axes.plot([place], [rung.score * scale], "o", color=colour, markersize=7, zorder=3, clip_on=False)
            # A label stands over its point, but left of a line that climbs away from it.
            climbs = place + 1 < last and rungs[place + 1].score > rung.score
            axes.annotate(
                f"{rung.score * scale:.1f}{' %' if share else ''}",
                (place, rung.high * scale),
                xytext=(4 if climbs else 0, 6),
                textcoords="offset points",
                ha="right" if climbs else "center",
                fontsize=10.5,
                fontweight="bold",
            )
        axes.set_xticks(list(places), models)
        axes.set_xlim(-0.7, len(rungs) - 0.5)
        if share:
            axes.set_ylim(0, 112)
            axes.set_yticks([0, 25, 50, 75, 100], ["0 %", "25 %", "50 %", "75 %", "100 %"])
        else:
            axes.margins(y=0.2)
        return _svg(figure, f"{climb.task}: {', '.join(f'{r.model} {r.score * scale:.1f}' for r in rungs)}")


def curve_charts(curves: Curves) -> list[tuple[str, str]]:
    """Title and chart of every logged series that is worth a look, the most telling first."""
    found = [(name, title) for name, title in CURVES.items() if _points(curves.series.get(name, []))]
    return [(title, _curve_chart(curves, name, title)) for name, title in found]


def _curve_chart(curves: Curves, name: str, title: str) -> str:
    steps, values = _columns(curves.series[name])
    with _style():
        figure, axes = _figure(3.6, 2.0)
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
        return _svg(figure, f"{curves.stage}, {title}: from {known[0]:.3g} to {known[-1]:.3g}")


def _points(series: Sequence[tuple[float, float | None]]) -> list[tuple[float, float]]:
    return [(step, value) for step, value in series if value is not None]


def _columns(series: Sequence[tuple[float, float | None]]) -> tuple[list[float], list[float]]:
    """Steps and values, a gap as NaN, which matplotlib leaves open."""
    return [s for s, _ in series], [float("nan") if v is None else v for _, v in series]


def _style() -> Any:
    import matplotlib

    return matplotlib.rc_context(
        {
            "svg.fonttype": "none",
            "text.parse_math": False,
            "font.size": 10,
            "text.color": INK,
            "axes.edgecolor": INK,
            "axes.labelcolor": INK,
            "xtick.color": INK,
            "ytick.color": INK,
            "xtick.major.size": 0,
            "ytick.major.size": 0,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.spines.left": False,
            "axes.grid": True,
            "axes.grid.axis": "y",
            "grid.color": INK,
            "grid.alpha": 0.14,
            "grid.linewidth": 0.8,
        }
    )


def _figure(width: float, height: float) -> "tuple[Figure, Axes]":
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height))
    figure.subplots_adjust(left=0.13, right=0.98, top=0.92, bottom=0.26 / height)
    axes = figure.add_subplot()
    axes.set_axisbelow(True)
    axes.spines["bottom"].set_alpha(0.35)
    return figure, axes


def _svg(figure: "Figure", description: str) -> str:
    """The figure as an <svg> element that refers to nothing outside itself and shares no id with another one."""
    import matplotlib

    buffer = io.StringIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    with matplotlib.rc_context({"svg.hashsalt": description}):
        figure.savefig(buffer, format="svg", transparent=True, metadata=nothing)
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<(metadata|style)\b.*?</\1>", "", svg, flags=re.S)
    svg = re.sub(r' (width|height)="[\d.]+pt"', "", svg, count=2)
    svg = re.sub(r' (?:xmlns:xlink|version)="[^"]*"', "", svg).replace("xlink:href", "href")
    svg = re.sub(r"<!--.*?-->\s*", "", svg, flags=re.S)
    referred = set(re.findall(r"#([A-Za-z][\w-]*)", svg))
    svg = re.sub(r' id="([^"]*)"', lambda match: match[0] if match[1] in referred else "", svg)
    for stand_in, style in STYLE.items():
        svg = svg.replace(stand_in, style)
    return svg.replace("<svg", f'<svg role="img" aria-label="{escape(description)}"', 1)
