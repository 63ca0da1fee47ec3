"""The page of a run: one HTML file that needs nothing else, neither scripts nor a network."""

from tasks.reporting.report import Promotion, Report

DECISIONS = {
    "promote": ("Promote", "The candidate is better, by every rule."),
    "hold": ("Hold", "Production stays as it is: there is nothing to promote."),
    "inconclusive": ("Inconclusive", "Production stays as it is: the items at hand do not settle it."),
    "blocked": ("Blocked", "Production stays as it is: a guarded task fell by more than its margin."),
}


def render(report: Report) -> str:
    """The report as a self-contained HTML page; the same report gives the same bytes.

    All text of the report is escaped, and the page's content policy forbids scripts and every outside source.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined

    from tasks.reporting.charts import climb_chart, curve_charts

    environment = Environment(
        loader=PackageLoader("tasks.reporting", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(duration=_duration, score=_score, change=_change, p=_p)
    label, meaning = DECISIONS[report.verdict.decision]
    if report.promotion:
        label, meaning = "Promoted", _promoted(report.name, report.promotion)
    return environment.get_template("page.html").render(
        report=report,
        label=label,
        meaning=meaning,
        climbs=[(climb, climb_chart(climb, report.candidate)) for climb in report.climb],
        curves=[(curves.stage, curve_charts(curves)) for curves in reversed(report.curves)],
    )


def _promoted(name: str, promotion: Promotion) -> str:
    before = f"before it, version {promotion.previous} was" if promotion.previous else "before it, none was"
    return f"Version {promotion.version} of {name} is now @{promotion.alias}; {before}."


def _score(value: float, *, share: bool, digits: int = 1) -> str:
    return f"{100 * value:.{digits}f} %" if share else f"{value:.{digits + 1}f}"


def _change(value: float, *, share: bool) -> str:
    """A difference, in percentage points where the scores are shares."""
    text = f"{100 * value if share else value:+.{1 if share else 2}f}"
    return text if float(text) else text.lstrip("+-")


def _p(value: float) -> str:
    return "< 0.0001" if value < 0.0001 else f"{value:.4f}" if value < 0.01 else f"{value:.3f}"


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"
