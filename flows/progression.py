"""The progression: prepare the data, SFT, GRPO, evaluate, gate, and promote what has earned it."""

import time
from pathlib import Path
from typing import Any

from prefect import flow
from prefect.runtime import flow_run
from pydantic import BaseModel

from flows import plan as planning
from tasks import gating, registry, store, tracking
from tasks.config import Configuration, load
from tasks.evaluate import evaluate, scores
from tasks.gate import gate
from tasks.prepare import dataset, dataset_versions, prepare
from tasks.promote import Promotion, promote, register
from tasks.report import report
from tasks.stage import Progress
from tasks.train import grpo, sft


class StageResult(BaseModel):
    """A stage as the result of a run tells of it."""

    key: str
    cached: bool
    """Whether an earlier output was used and nothing ran."""
    seconds: float
    """What it took in this run."""


class Result(BaseModel):
    """The result of a run; `ratchet run --json FILE` writes it."""

    run_id: str
    """Of the progression's run in MLflow."""
    stages: dict[str, StageResult]
    evaluation: dict[str, dict[str, dict[str, int | float]]]
    """By model and task: `score` in the metric that the gate takes, `n` items, and every metric by its name."""
    verdict: gating.Verdict
    version: str
    """The registered version of the candidate."""
    promotion: Promotion | None
    report: Path
    seconds: float


@flow(name="progression")
def progression(project: Path, recipe: str | None = None, overrides: list[str] | None = None) -> Result:
    """Retrain from the base model and move production forward only if the gate says so.

    Args:
        project: the folder of params.yaml.
        recipe: a folder name under recipes/ that is laid over it.
        overrides: `key.path=value` settings laid over both.

    Raises:
        UserError: something given cannot be used; the message says what and where.
        StageFailed: a stage's process failed; what finished before it is kept and used by the next run.
    """
    started = time.monotonic()
    config = load(project, recipe, overrides or [])
    client = tracking.connect(config.workspace)
    experiment = tracking.experiment_id(client, config.params.registry.name, config.workspace)
    tags = {tracking.PROGRESSION: "true", "prefect.flow_run_id": str(flow_run.id), **tracking.git_state(config.root)}
    with (
        tracking.run(client, experiment, flow_run.name or "progression", tags) as run_id,
        tracking.alive(client, run_id, config.workspace),
    ):
        progress = Progress(config, client, experiment, run_id)
        tracking.log_configuration(client, run_id, config)
        plan = planning.make(config)

        prepared = prepare(progress, plan.prepare).result()
        tracking.log_datasets(client, run_id, dataset_versions(config, plan.prepare, prepared))
        champion = planning.champion(config, client)
        expected = plan.evaluate(config, planning.challenged(config, plan, champion))
        planning.check(config, plan, expected, dataset(prepared.folder))
        warm = sft(progress, plan.sft, plan.base, prepared).result()
        climbed = grpo(progress, plan.grpo, warm, prepared).result()

        challenged = planning.challenged(config, plan, champion)
        unchanged = champion is not None and challenged is None
        trained = {"sft": warm, "grpo": climbed}
        folder = registry.model_folder(client, challenged) if challenged else None
        evaluation = evaluate(
            progress, plan.evaluate(config, challenged), plan.base, trained, folder, prepared
        ).result()

        verdict = gate(progress, evaluation, plan.candidate.name, unchanged)
        # The champion keeps the record of the run that promoted it.
        in_production = champion if unchanged else None
        version = in_production or register(progress, climbed, prepared, evaluation, verdict)
        client.set_tag(run_id, tracking.VERSION, version.version)
        promotion = None
        if verdict.decision is gating.Decision.promote:
            gated = champion.version if champion else None
            promotion = promote(progress, version, gated, evaluation)

        outputs = {"prepare": prepared, **trained, "evaluate": evaluation}
        page = report(progress, plan.base, outputs, plan.candidate.name, verdict, promotion, time.monotonic() - started)
        return Result(
            run_id=run_id,
            stages={name: _stage_result(output) for name, output in outputs.items()},
            evaluation=_evaluation(config, evaluation),
            verdict=verdict,
            version=version.version,
            promotion=promotion,
            report=page,
            seconds=round(time.monotonic() - started, 3),
        )


def _stage_result(output: store.Output) -> StageResult:
    seconds = 0.0 if output.cached else output.manifest.seconds
    return StageResult(key=output.manifest.key, cached=output.cached, seconds=seconds)


def _evaluation(config: Configuration, evaluation: store.Output) -> dict[str, dict[str, dict[str, float]]]:
    metric = {rule.task: rule.metric for rule in reversed(config.params.gate.rules)}

    def of_task(name: str, metrics: dict[str, float]) -> dict[str, Any]:
        return {**metrics, **({"score": metrics[metric[name]]} if name in metric else {})}

    return {
        model: {name: of_task(name, metrics) for name, metrics in tasks.items()}
        for model, tasks in scores(evaluation).items()
    }
