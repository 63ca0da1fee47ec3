"""The charts of how the candidate was made, as SVG to stand inside the page."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tasks.reporting.drawing import ACCENT, INK, LINE, blank, style, svg
from tasks.reporting.method import Checkpoint, Control, Difficulty, Gain, Preference, Probe

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH = 4.3
"""Of a chart that has half of a card's width, in inches."""


@dataclass(frozen=True)
class _Bar:
    """One row of `_bars`: a length, from `start` to `end`, with what it is and how much."""

    label: str
    end: float
    text: str
    start: float = 0.0
    colour: str = LINE
    alpha: float = 1.0


def histogram_chart(probe: Probe) -> str:
    """Prompts by their number of right attempts; those in colour are right sometimes, so GRPO can learn from them."""
    counts = probe.measures.histogram
    last = len(counts) - 1
    with style():
        figure, axes = blank(WIDTH, 2.6)
        axes.set_axis_off()
        figure.subplots_adjust(left=0.0, right=1.0, bottom=0.17)
        for right, count in enumerate(counts):
            sometimes = 0 < right < last
            axes.bar(right, count, width=0.82, color=LINE if sometimes else INK, alpha=1 if sometimes else 0.35)
            if last <= 12:
                axes.annotate(
                    f"{count:,}", (right, count), xytext=(0, 3), textcoords="offset points", ha="center", fontsize=9.5
                )
            if last <= 16 or right % (last // 8) == 0:
                axes.annotate(str(right), (right, 0), xytext=(0, -6), textcoords="offset points", ha="center", va="top")
        for place, word, side in ((-0.41, "never", "left"), (last + 0.41, "always", "right")):
            axes.annotate(
                word, (place, 0), xytext=(0, -19), textcoords="offset points", ha=side, va="top", fontsize=9.5
            )
        axes.set_xlim(-0.6, last + 0.6)
        axes.set_ylim(0, max(*counts, 1) * 1.1)
        told = ", ".join(f"{right} right: {count}" for right, count in enumerate(counts))
        return svg(figure, f"Probe of {probe.model}, prompts by right answers of {last}: {told}")


def probe_chart(probe: Probe) -> str:
    """What guessing, one answer and the best of k answers get, and the headroom up to the last."""
    measures = probe.measures
    k = measures.samples
    headroom = measures.pass_at_k - measures.pass_at_1
    bars = [
        _Bar("One answer (pass@1)", measures.pass_at_1, _percent(measures.pass_at_1)),
        _Bar(f"Best of {k} answers (pass@{k})", measures.pass_at_k, _percent(measures.pass_at_k)),
        _Bar(
            "Headroom: what it can do, but not every time",
            measures.pass_at_k,
            f"{100 * headroom:.1f} points",
            start=measures.pass_at_1,
            colour=ACCENT,
        ),
    ]
    if measures.greedy is not None:
        bars.insert(0, _Bar("The likeliest answer (greedy)", measures.greedy, _percent(measures.greedy)))
    if measures.chance_at_k is not None:
        guessing = _Bar(
            f"Guessing, best of {k} (chance)",
            measures.chance_at_k,
            _percent(measures.chance_at_k),
            colour=INK,
            alpha=0.35,
        )
        bars.insert(0, guessing)
    return _bars(f"Probe of {probe.model}", bars, full=1.0)


def preference_chart(preference: Preference) -> str:
    """pass@1 on the dev split before and after DPO."""
    colour = ACCENT if preference.kept else INK
    return _bars(
        "One answer on dev (pass@1)",
        [
            _Bar("sft, before", preference.before, _percent(preference.before)),
            _Bar(
                "dpo, after",
                preference.after,
                _percent(preference.after),
                colour=colour,
                alpha=1 if preference.kept else 0.35,
            ),
        ],
        full=1.0,
    )


def difficulty_chart(difficulty: Difficulty) -> str:
    """How many prompts were trained on and set aside."""
    rows = [
        ("Trained on: right sometimes", difficulty.active - difficulty.unprobed, LINE, 1.0),
        ("Trained on: not probed", difficulty.unprobed, LINE, 1.0),
        ("Set aside: too easy", difficulty.solved, INK, 0.35),
        ("Set aside: too hard", difficulty.unsolved, INK, 0.35),
    ]
    bars = [_Bar(label, count, f"{count:,}", colour=colour, alpha=alpha) for label, count, colour, alpha in rows]
    return _bars("Prompts", bars, full=max(difficulty.prompts, 1))


def spread_chart(difficulty: Difficulty) -> str:
    """The share of groups without spread: expected with all prompts, after the filter, and had; "" if none is known."""
    rows = [
        ("With all prompts (estimate)", difficulty.zero_variance_before, INK, 0.35),
        ("After the filter (estimate)", difficulty.zero_variance_expected, LINE, 1.0),
        ("In training (measured)", difficulty.zero_variance, LINE, 1.0),
    ]
    bars = [
        _Bar(label, share, _percent(share), colour=colour, alpha=alpha)
        for label, share, colour, alpha in rows
        if share is not None
    ]
    return _bars("Groups without spread", bars, full=1.0) if bars else ""


def checkpoint_chart(checkpoint: Checkpoint) -> str:
    """Accuracy on the dev split by step, the chosen step marked."""
    steps, accuracies = zip(*checkpoint.points, strict=True)
    percents = [100 * accuracy for accuracy in accuracies]
    chosen = 100 * checkpoint.accuracy
    with style():
        figure, axes = blank(WIDTH, 2.5)
        axes.plot(steps, percents, "o-", color=LINE, linewidth=1.8, markersize=4.5, zorder=2)
        axes.vlines(checkpoint.step, 0, chosen, color=ACCENT, linewidth=1.2, linestyle=(0, (3, 3)), zorder=1)
        axes.plot([checkpoint.step], [chosen], "o", color=ACCENT, markersize=9, zorder=3, clip_on=False)
        late = checkpoint.step > (steps[0] + steps[-1]) / 2
        axes.annotate(
            f"step {checkpoint.step}: {chosen:.1f} %",
            (checkpoint.step, chosen),
            xytext=(4 if late else -4, 9),
            textcoords="offset points",
            ha="right" if late else "left",
            fontweight="bold",
        )
        low, high = min(percents), max(percents)
        room = max(high - low, 5.0)
        axes.set_ylim(max(low - 0.15 * room, 0), high + 0.25 * room)
        axes.locator_params(axis="y", nbins=5)
        axes.locator_params(axis="x", nbins=8, integer=True)
        axes.set_yticks([t for t in axes.get_yticks() if t <= 100])
        axes.yaxis.set_major_formatter("{x:g} %")
        told = ", ".join(f"step {step} {percent:.1f} %" for step, percent in zip(steps, percents, strict=True))
        return svg(figure, f"Accuracy on dev: {told}; chosen: step {checkpoint.step}")


def control_chart(control: Control) -> str:
    """The gain of the real rewards beside that of meaningless ones, each with its interval, and the line of no gain."""
    return _intervals(
        f"Gain on {control.task}",
        [("Real rewards", control.real, ACCENT), ("Random rewards (control)", control.control, LINE)],
    )


def _bars(title: str, bars: Sequence[_Bar], full: float) -> str:
    """Horizontal bars on tracks as long as `full`, each under its label and its figure."""
    with style():
        figure, axes = _rows(len(bars))
        for place, bar in enumerate(bars):
            axes.barh(place, full, height=0.34, color=INK, alpha=0.07)
            axes.barh(place, bar.end - bar.start, left=bar.start, height=0.34, color=bar.colour, alpha=bar.alpha)
            axes.text(0, place - 0.29, bar.label, va="bottom")
            axes.text(full, place - 0.29, bar.text, va="bottom", ha="right", fontweight="bold")
        axes.set_axis_off()
        axes.set_xlim(0, full)
        return svg(figure, f"{title}: {', '.join(f'{bar.label} {bar.text}' for bar in bars)}")


def _intervals(title: str, rows: Sequence[tuple[str, Gain, str]]) -> str:
    """Differences with their intervals, each under its label, and a line where there is no difference."""
    with style():
        figure, axes = _rows(len(rows), below=0.34)
        axes.grid(False)
        axes.axvline(0, color=INK, linewidth=1.2, linestyle=(0, (3, 3)), alpha=0.6, zorder=1)
        told = []
        for place, (label, gain, colour) in enumerate(rows):
            low, middle, high = (100 * value for value in (gain.low, gain.difference, gain.high))
            text = f"{label}: {middle:+.1f} points"
            axes.plot([low, high], [place, place], color=colour, linewidth=5, alpha=0.45, solid_capstyle="butt")
            axes.plot([middle], [place], "o", color=colour, markersize=9, zorder=3)
            axes.text(0, place - 0.29, text, va="bottom", transform=axes.get_yaxis_transform(), fontweight="bold")
            told.append(f"{text} ({low:+.1f} to {high:+.1f})")
        ends = [0.0, *(100 * value for _, gain, _ in rows for value in (gain.low, gain.high))]
        room = 0.06 * max(max(ends) - min(ends), 1.0)
        axes.set_xlim(min(ends) - room, max(ends) + room)
        axes.set_yticks([])
        axes.locator_params(axis="x", nbins=7)
        axes.xaxis.set_major_formatter(lambda x, _: "0, no gain" if x == 0 else f"{x:+g}")
        return svg(figure, f"{title}: {', '.join(told)}")


def _rows(count: int, below: float = 0.05) -> "tuple[Figure, Axes]":
    """A figure of so many rows, each with a line of text over it; `below` is the room for an axis, in inches."""
    height = 0.5 * count + below
    figure, axes = blank(WIDTH, height)
    figure.subplots_adjust(left=0.0, right=1.0, top=1.0, bottom=below / height)
    axes.set_ylim(count - 0.72, -0.72)
    return figure, axes


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
