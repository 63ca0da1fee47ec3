"""What the command prints for people."""

import json
from datetime import datetime
from pathlib import Path

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from flows.outlook import Row
from flows.progression import Result
from tasks import gating, registry, tracking
from tasks.config import Configuration

LAST_RUNS = 10


def plan(config: Configuration, rows: list[Row]) -> None:
    """The resolved parameters and what a run would do."""
    console = _console()
    console.print(config.to_yaml(), markup=False, highlight=False)
    table = Table("stage", "key", "would", "why", box=None, pad_edge=False)
    for row in rows:
        would = "use what is there" if row.up_to_date else "run" if row.key else "depends"
        table.add_row(row.stage, row.key, would, Text(row.why))
    console.print(table)


def result(config: Configuration, result: Result, control: bool) -> None:
    """What a run came to: stages, scores, verdict and where production stands. `control`: one was asked for."""
    console = _console()
    stages = Table("stage", "key", Column("seconds", justify="right"), "", box=None, pad_edge=False)
    for name, stage in result.stages.items():
        stages.add_row(
            name, stage.key, "" if stage.cached else f"{stage.seconds:.1f}", "up to date" if stage.cached else ""
        )
    console.print(stages, "")
    for line in (result.decision.reason, *result.decision.notes, result.preference):
        console.print(Text(line))
    console.print("")
    console.print(_scores(result), "")
    if result.control:
        console.print(Text(result.control.conclusion), "")
    elif control:
        console.print("The control did not run, for GRPO did not.", "")
    console.print(gating.verdict_prose(result.verdict).replace("**", ""), markup=False, highlight=False)
    name = config.params.registry.name
    if result.promotion:
        before = f", before it version {result.promotion.previous}" if result.promotion.previous else ""
        console.print(f"models:/{name}@champion is now version {result.version}{before}.", highlight=False)
    elif result.version:
        console.print(f"Nothing was promoted. The candidate is version {result.version} of {name}.", highlight=False)
    else:
        console.print("Nothing was promoted, for there is no candidate.", highlight=False)
    if all(stage.cached for stage in result.stages.values()):
        console.print("Everything was up to date: nothing was trained.", highlight=False)
    console.print(f"Report: {result.report}", highlight=False, soft_wrap=True)
    console.print(f"Run {result.run_id} took {result.seconds:.0f} s.", highlight=False)


def status(config: Configuration, as_json: bool) -> None:
    """The champion, and the last progressions with their verdicts."""
    name = config.params.registry.name
    runs, versions = [], []
    if tracking.exists(config.workspace):
        client = tracking.connect(config.workspace)
        runs = tracking.progressions(client, LAST_RUNS, name)
        versions = registry.versions(client, name)
    champion = next((version for version in versions if registry.CHAMPION in version.aliases), None)
    rows = [
        {
            "run_id": run.info.run_id,
            "started": datetime.fromtimestamp(run.info.start_time / 1000).astimezone().isoformat(timespec="seconds"),
            "status": run.info.status,
            "verdict": run.data.tags.get(tracking.VERDICT),
            "version": run.data.tags.get(tracking.VERSION),
            "promoted": tracking.PROMOTED in run.data.tags,
            "reason": run.data.tags.get(tracking.REASON),
        }
        for run in runs
    ]
    if as_json:
        current = {"version": champion.version, "tags": dict(champion.tags)} if champion else None
        print(json.dumps({"name": name, "champion": current, "runs": rows}, indent=2))
        return
    console = _console()
    if champion:
        behind = ", ".join(f"{key} {champion.tags[key]}" for key in ("progression", "data_md5") if key in champion.tags)
        console.print(f"models:/{name}@champion is version {champion.version} ({behind})", "", highlight=False)
    else:
        console.print(f"{name} has no champion yet.", "", highlight=False)
    if not rows:
        console.print("No progression has run in this workspace: `ratchet run` starts one.", highlight=False)
        return
    table = Table("run", "started", "status", "verdict", "version", "reason", box=None, pad_edge=False)
    for row in rows:
        promoted = " (promoted)" if row["promoted"] else ""
        cells = [row["run_id"][:8], row["started"], row["status"], row["verdict"], row["version"], row["reason"]]
        cells[4] = f"{row['version']}{promoted}" if row["version"] else None
        table.add_row(*(Text(str(cell or "")) for cell in cells))
    console.print(table)


def report(config: Configuration, run_id: str, out: Path | None) -> Path:
    """Write a progression's page anew and say where."""
    from tasks.report import rebuild

    client = tracking.connect(config.workspace)
    return rebuild(client, tracking.find_run(client, run_id), config.workspace, out)


def _scores(result: Result) -> Table:
    models = list(result.evaluation)
    table = Table("task", *(Column(model, justify="right") for model in models), Column("items", justify="right"))
    table.box, table.pad_edge = None, False
    for name, metrics in result.evaluation[models[0]].items():
        cells = [_score(result.evaluation[model][name]) for model in models]
        table.add_row(name, *cells, str(int(metrics["n"])))
    return table


def _score(metrics: dict[str, float]) -> str:
    if "score" not in metrics:
        return ", ".join(f"{name} {value:.4g}" for name, value in metrics.items() if name != "n")
    return f"{metrics['score']:.1%}"


def _console() -> Console:
    """Standard output; as wide as the lines are where no person is looking."""
    console = Console()
    return console if console.is_terminal else Console(width=200)
