"""Report: one self-contained page that says what happened and why."""

import json
import os
import tempfile
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prefect import task
from prefect.artifacts import create_link_artifact
from prefect.cache_policies import NO_CACHE

from tasks import gating, reporting, stats, store, tracking
from tasks.climbed import Climb
from tasks.config.schema import Guard, Primary
from tasks.errors import UserError
from tasks.evaluate import item_scores, records, scores
from tasks.gate import BASELINE
from tasks.hub import BaseModel
from tasks.promote import Promotion
from tasks.stage import PACKAGES, Progress
from tasks.story import story

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

DATA_FILE, PAGE = "report.json", "report.html"
SAMPLES = 10


@task(name="report", task_run_name="report", cache_policy=NO_CACHE)
def report(
    progress: Progress,
    base: BaseModel,
    climbed: Climb,
    outputs: Mapping[str, store.Output],
    verdict: gating.Verdict,
    promotion: Promotion | None,
    control: gating.Control | None,
    seconds: float,
) -> Path:
    """Write the progression's page beside its logs and to MLflow, with the data to make it again.

    Args:
        progress: the progression.
        base: the model that it started from.
        climbed: how far the climb went, and why.
        outputs: of every stage, by name.
        verdict: the gate's.
        promotion: what the registry did, if anything.
        control: the gain of the random-reward control, if one ran.
        seconds: since the progression began.
    """
    run = progress.client.get_run(progress.run_id)
    evaluation = outputs["evaluate"]
    candidate = climbed.candidate.manifest.stage if climbed.candidate else None
    content = reporting.Report.model_validate(
        {
            "name": progress.config.params.registry.name,
            "run_id": progress.run_id,
            "started": datetime.fromtimestamp(run.info.start_time / 1000, UTC),
            "seconds": round(seconds, 1),
            "candidate": candidate,
            "verdict": verdict,
            "promotion": promotion and promotion.model_dump(include={"version", "alias", "previous"}),
            "climb": _climb(progress, evaluation, verdict.confidence),
            "curves": [_curves(name, output) for name, output in outputs.items() if _history(output).exists()],
            "stages": [_stage(name, output) for name, output in outputs.items()],
            "samples": candidate and _samples(progress, evaluation, candidate),
            **story(progress.config, climbed, outputs["prepare"], control),
            "lineage": _lineage(progress, base, outputs["prepare"]),
        }
    )
    data_file = progress.folder / DATA_FILE
    data_file.write_text(content.model_dump_json(indent=2), encoding="utf-8")
    page = progress.folder / PAGE
    _write(page, reporting.render(content))
    for file in (data_file, page):
        progress.client.log_artifact(progress.run_id, str(file))
    create_link_artifact(page.as_uri(), key="report", link_text="Report", description=f"Run {progress.run_id}")
    return page


def rebuild(client: "MlflowClient", run: "Run", workspace: Path, out: Path | None) -> Path:
    """Make a progression's page again from the data it left in MLflow, and say where it is.

    Raises:
        UserError: the progression ended before its report.
    """
    from mlflow.exceptions import MlflowException

    run_id = run.info.run_id
    page = out or workspace / "runs" / run_id / PAGE
    try:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(client.download_artifacts(run_id, DATA_FILE, folder))
            content = reporting.Report.model_validate_json(file.read_bytes())
    except (MlflowException, OSError):
        reason = run.data.tags.get(tracking.REASON, "no reason was recorded")
        raise UserError(f"run {run_id} ({run.info.status}) left no report: {reason}") from None
    _write(page, reporting.render(content))
    return page


def _write(page: Path, html: str) -> None:
    page.parent.mkdir(parents=True, exist_ok=True)
    temporary = page.with_name(f".{page.name}.{os.getpid()}")
    temporary.write_text(html, encoding="utf-8")
    temporary.replace(page)


def _climb(progress: Progress, evaluation: store.Output, confidence: float) -> list[dict[str, Any]]:
    return [
        {
            "task": rule.task,
            "metric": rule.metric,
            "rungs": [_rung(evaluation, model, rule, confidence) for model in scores(evaluation)],
        }
        for rule in progress.config.params.gate.rules
    ]


def _rung(evaluation: store.Output, model: str, rule: Primary | Guard, confidence: float) -> dict[str, Any]:
    values = list(item_scores(evaluation, model, rule.task, rule.metric).values())
    low, high = stats.mean_interval(values, confidence)
    return {"model": model, "score": sum(values) / len(values), "n": len(values), "low": low, "high": high}


def _history(output: store.Output) -> Path:
    return output.folder / "history.jsonl"


def _curves(name: str, output: store.Output) -> dict[str, Any]:
    series: dict[str, list[tuple[float, float]]] = {}
    for line in _history(output).read_bytes().splitlines():
        row = json.loads(line)
        for metric, value in row.items():
            if metric != "step":
                series.setdefault(metric, []).append((row["step"], value))
    return {"stage": name, "series": series}


def _stage(name: str, output: store.Output) -> dict[str, Any]:
    return {
        "name": name,
        "key": output.manifest.key,
        "cached": output.cached,
        "seconds": output.manifest.seconds,
        "status": "up to date" if output.cached else "done",
    }


def _samples(progress: Progress, evaluation: store.Output, candidate: str) -> Any:
    rule = progress.config.params.gate.primary
    before, after = (records(evaluation, model, rule.task) for model in (BASELINE, candidate))
    return reporting.changed_items(BASELINE, rule.task, rule.metric, before, after, SAMPLES)


def _lineage(progress: Progress, base: BaseModel, prepared: store.Output) -> dict[str, Any]:
    params = progress.config.params
    git = tracking.git_state(progress.config.root)
    sources = {str(params.data.sources[n].path): s["md5"] for n, s in prepared.manifest.inputs["data"].items()}
    return {
        "data": {**sources, "data/prepared": prepared.manifest.facts["md5"]},
        "git_commit": git.get(tracking.COMMIT),
        "git_dirty": git.get(tracking.DIRTY) == "true",
        "base_model": params.model.path + (f"@{base.revision}" if base.revision else ""),
        "seed": params.seed,
        "packages": store.package_versions((*PACKAGES, "lm-eval", "mlflow", "prefect", "dvc")),
        "params": params.model_dump(mode="json"),
    }
