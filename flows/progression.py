"""The progression: prepare the data, climb as far as it pays, evaluate, gate, and promote what has earned it."""

import time
from pathlib import Path
from typing import Any, Literal

from prefect import flow
from prefect.runtime import flow_run
from pydantic import BaseModel

from flows import outlook
from flows import plan as planning
from flows.climb import Steps, climb
from tasks import gating, registry, store, tracking
from tasks.config import Configuration, load
from tasks.evaluate import evaluate, scores
from tasks.gate import control_gain, gate
from tasks.pairs import pairs
from tasks.prepare import dataset, dataset_versions, prepare
from tasks.probe import probe
from tasks.probing import Decision
from tasks.promote import Promotion, promote, register
from tasks.report import report
from tasks.stage import Progress
from tasks.train import dpo, grpo, sft, stopped_by


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
    decision: Decision
    """Whether GRPO was worth its cost, by the probe of the model that it starts from."""
    preference: str
    """What became of DPO, and why."""
    evaluation: dict[str, dict[str, dict[str, int | float]]]
    """By model and task: `score` in the metric that the gate takes, `n` items, and every metric by its name."""
    control: gating.Control | None
    """The gain of the random-reward control beside the real one, if it was asked for and GRPO ran."""
    verdict: gating.Verdict
    version: str | None
    """The registered version of the candidate, if the climb came to one."""
    promotion: Promotion | None
    report: Path
    seconds: float


@flow(name="progression")
def progression(
    project: Path,
    recipe: str | None = None,
    overrides: list[str] | None = None,
    control: Literal["random-reward"] | None = None,
) -> Result:
    """Retrain from the base model and move production forward only if the gate says so.

    Args:
        project: the folder of params.yaml.
        recipe: a folder name under recipes/ that is laid over it.
        overrides: `key.path=value` settings laid over both.
        control: train a second GRPO model whose rewards mean nothing, and set the real gain beside its gain.

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
        outlook.check(config, plan, champion, control is not None, dataset(prepared.folder))

        climbed = climb(config, plan, prepared, _steps(progress, plan, prepared, control), control is not None)
        client.set_tag(run_id, tracking.DECISION, climbed.findings.decision.outcome)

        challenged = planning.challenged(climbed.candidate, champion)
        unchanged = champion is not None and climbed.candidate is not None and challenged is None
        folder = registry.model_folder(client, challenged) if challenged else None
        measured = plan.evaluate(map(planning.as_stage, climbed.trained.values()), challenged)
        evaluation = evaluate(progress, measured, plan.base, climbed.trained, folder, prepared).result()

        verdict = gate(
            progress,
            evaluation,
            climbed.candidate,
            unchanged,
            climbed.findings.decision.reason,
            stopped_by(climbed.candidate) if climbed.candidate else None,
        )
        # The champion keeps the record of the run that promoted it.
        version = champion if unchanged else None
        if version is None and climbed.candidate is not None:
            version = register(progress, climbed.candidate, prepared, evaluation, verdict)
        promotion = None
        if version is not None:
            client.set_tag(run_id, tracking.VERSION, version.version)
            if verdict.decision is gating.Decision.promote:
                promotion = promote(progress, version, champion.version if champion else None, evaluation)

        control_model = climbed.trained.get("control")
        shuffled = control_gain(progress, evaluation, control_model) if control_model else None
        outputs = {"prepare": prepared, **climbed.outputs, "evaluate": evaluation}
        page = report(progress, plan.base, climbed, outputs, verdict, promotion, shuffled, time.monotonic() - started)
        return Result(
            run_id=run_id,
            stages={name: _stage_result(output) for name, output in outputs.items()},
            decision=climbed.findings.decision,
            preference=climbed.preference.sentence,
            evaluation=_evaluation(config, evaluation),
            control=shuffled,
            verdict=verdict,
            version=version.version if version else None,
            promotion=promotion,
            report=page,
            seconds=round(time.monotonic() - started, 3),
        )


def _steps(
    progress: Progress, plan: planning.Plan, prepared: store.Output, control: Literal["random-reward"] | None
) -> Steps:
    """The stages of the climb as Prefect tasks of this progression."""
    return Steps(
        sft=lambda stage: sft(progress, stage, plan.base, prepared).result(),
        probe=lambda stage, policy: probe(progress, stage, policy, prepared).result(),
        pairs=lambda stage, found: pairs(progress, stage, found, prepared).result(),
        dpo=lambda stage, start, paired: dpo(progress, stage, start, paired, prepared).result(),
        grpo=lambda stage, start, found: grpo(progress, stage, start, found.train_file, prepared).result(),
        control=lambda stage, start, found: grpo(progress, stage, start, found.train_file, prepared, control).result(),
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
