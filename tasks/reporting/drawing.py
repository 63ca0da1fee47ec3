"""How a chart gets from matplotlib into the page.

Matplotlib draws in stand-in colours, which are then replaced by CSS: the page's own text colour and its variables
`--line`, `--band` and `--accent`. So one drawing suits light and dark, and print. Text stays text.
"""

import io
import re
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, LINE, ACCENT, BAND = "#010101", "#020202", "#030303", "#040404"
STYLE = {INK: "currentColor", LINE: "var(--line)", ACCENT: "var(--accent)", BAND: "var(--band)"}


def style() -> Any:
    """The context to draw in."""
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


def blank(width: float, height: float) -> "tuple[Figure, Axes]":
    """A figure of so many inches and its one pair of axes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height))
    figure.subplots_adjust(left=0.13, right=0.98, top=0.92, bottom=0.26 / height)
    axes = figure.add_subplot()
    axes.set_axisbelow(True)
    axes.spines["bottom"].set_alpha(0.35)
    return figure, axes


def svg(figure: "Figure", description: str) -> str:
    """The figure as an <svg> element that refers to nothing outside itself.

    `description` is its text for screen readers. It must be the figure's own: from it come the ids inside.
    """
    import matplotlib

    buffer = io.StringIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    with matplotlib.rc_context({"svg.hashsalt": description}):
        figure.savefig(buffer, format="svg", transparent=True, metadata=nothing)
    drawn = buffer.getvalue()
    drawn = drawn[drawn.index("<svg") :]
    drawn = re.sub(r"<(metadata|style)\b.*?</\1>", "", drawn, flags=re.S)
    drawn = re.sub(r' (width|height)="[\d.]+pt"', "", drawn, count=2)
    drawn = re.sub(r' (?:xmlns:xlink|version)="[^"]*"', "", drawn).replace("xlink:href", "href")
    drawn = re.sub(r"<!--.*?-->\s*", "", drawn, flags=re.S)
    referred = set(re.findall(r"#([A-Za-z][\w-]*)", drawn))
    drawn = re.sub(r' id="([^"]*)"', lambda match: match[0] if match[1] in referred else "", drawn)
    for stand_in, colour in STYLE.items():
        drawn = drawn.replace(stand_in, colour)
    return drawn.replace("<svg", f'<svg role="img" aria-label="{escape(description)}"', 1)
