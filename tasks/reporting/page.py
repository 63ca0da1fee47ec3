"""The page of a run: one HTML file that needs nothing else, neither scripts nor a network."""

from tasks.reporting.method import Preference
from tasks.reporting.report import Climb, Promotion, Report

DECISIONS = {
    "promote": ("Promote", "The candidate is better, by every rule."),
    "hold": ("Hold", "Production stays as it is: there is nothing to promote."),
    "inconclusive": ("Inconclusive", "Production stays as it is: the items at hand do not settle it."),
    "blocked": ("Blocked", "Production stays as it is: the candidate must not replace it."),
}


def render(report: Report) -> str:
    """The report as a self-contained HTML page; the same report gives the same bytes.

    All text of the report is escaped, and the page's content policy forbids scripts and every outside source.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined

    from tasks.reporting import method_charts
    from tasks.reporting.charts import climb_chart, curve_charts

    environment = Environment(
        loader=PackageLoader("tasks.reporting", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(duration=_duration, score=_score, change=_change, quantity=_quantity, p=_p)
    label, meaning = DECISIONS[report.verdict.decision]
    if report.candidate is None:
        meaning = f"Production stays as it is: the climb ended with {report.summit}, and GRPO was not run."
    if report.promotion:
        label, meaning = "Promoted", _promoted(report.name, report.promotion)
    made = {
        "preference_chart": isinstance(report.preference, Preference)
        and method_charts.preference_chart(report.preference),
        "difficulty_charts": report.difficulty
        and (method_charts.difficulty_chart(report.difficulty), method_charts.spread_chart(report.difficulty)),
        "checkpoint_chart": report.checkpoint and method_charts.checkpoint_chart(report.checkpoint),
        "control_chart": report.control and method_charts.control_chart(report.control),
    }
    return environment.get_template("page.html").render(
        report=report,
        label=label,
        meaning=meaning,
        climbs=[(climb, climb_chart(climb, _path(report, climb), report.summit)) for climb in report.climb],
        probes=[
            (probe, (method_charts.histogram_chart(probe), method_charts.probe_chart(probe))) for probe in report.probes
        ],
        curves=[(curves.stage, curve_charts(curves)) for curves in reversed(report.curves)],
        **made,
    )


def _path(report: Report, climb: Climb) -> list[str]:
    """The models that lead up to the summit: neither one that stands after it, as the champion, nor a dropped DPO."""
    models = [rung.model for rung in climb.rungs]
    end = models.index(report.summit) + 1 if report.summit in models else len(models)
    dropped = isinstance(report.preference, Preference) and not report.preference.kept
    return [model for model in models[:end] if not (dropped and model == "dpo")]


def _promoted(name: str, promotion: Promotion) -> str:
    before = f"before it, version {promotion.previous} was" if promotion.previous else "before it, none was"
    return f"Version {promotion.version} of {name} is now @{promotion.alias}; {before}."


def _score(value: float, *, share: bool, digits: int = 1) -> str:
    return f"{100 * value:.{digits}f}\u00a0%" if share else f"{value:.{digits + 1}f}"


def _change(value: float, *, share: bool) -> str:
    """A difference, in percentage points where the scores are shares."""
    text = f"{100 * value if share else value:+.{1 if share else 2}f}"
    return text if float(text) else text.lstrip("+-")


def _quantity(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _p(value: float) -> str:
    return "< 0.0001" if value < 0.0001 else f"{value:.4f}" if value < 0.01 else f"{value:.3f}"


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"
