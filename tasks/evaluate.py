"""Evaluate: lm-eval on every model of the progression, on the same items with the same settings, in one process."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State

from tasks import stage, store
from tasks.config import Configuration
from tasks.evaluation.spec import EvaluatedModel, EvaluationSpec
from tasks.hub import BaseModel
from tasks.prepare import dataset, prepared_version
from tasks.registry import Version
from tasks.stage import Progress

PACKAGES = (*stage.PACKAGES, "lm-eval")
MODULE = "tasks.evaluation.process"


def plan(
    config: Configuration, base: BaseModel, prepare: store.Stage, trained: list[store.Stage], champion: Version | None
) -> store.Stage:
    """The evaluation, from the models' keys, the items, the tasks' files, the settings, the code and the packages."""
    models = {"base": base.digest, **{model.name: model.key for model in trained}}
    if champion is not None:
        models["champion"] = champion.model_digest
    return store.Stage(
        "evaluate",
        {
            "parents": {prepare.name: prepare.key},
            "models": models,
            "model": config.params.model.model_dump(exclude={"path", "revision"}),
            "seed": config.params.seed,
            "params": config.params.evaluation.model_dump(mode="json", exclude={"timeout", "include_path"}),
            "tasks": _tasks_digest(config),
            "code": stage.code("evaluation", "processes", "rewards", "problems"),
            "packages": store.package_versions(PACKAGES),
        },
    )


def check(config: Configuration, data: Path) -> None:
    """See whether the tasks are there, have items in the prepared dataset, and yield the metrics that the gate takes.

    Raises:
        UserError: one is not, with the nearest that is.
    """
    stage.check(config, MODULE, lambda folder: _spec(config, {}, data, folder, check_only=True))


def _tasks_digest(config: Configuration) -> str:
    return store.digest(store.file_digests(config.root / config.params.evaluation.include_path))


@task(name="evaluate", task_run_name="evaluate", cache_policy=NO_CACHE)
def evaluate(
    progress: Progress,
    planned: store.Stage,
    base: BaseModel,
    trained: Mapping[str, store.Output],
    champion: Path | None,
    prepared: store.Output,
) -> State[store.Output]:
    """Measure the base model, the trained ones and the champion (a transformers folder), if there is one to beat."""
    config = progress.config

    def work(folder: Path, run_id: str) -> Mapping[str, Any]:
        loading = config.params.model.model_dump(include={"dtype", "trust_remote_code"})
        models = {
            name: EvaluatedModel(path=str(model.folder / "model"), contract=model.folder / "contract.json", **loading)
            for name, model in trained.items()
        }
        first = next(iter(models.values()))
        start = EvaluatedModel(path=base.path, revision=base.revision, chat_template_from=first.path, **loading)
        models = {"base": start, **models}
        if champion is not None:
            models["champion"] = EvaluatedModel(path=str(champion), own_prompt=True, **loading)
        spec = _spec(config, models, dataset(prepared.folder), folder)
        stage.launch(progress, planned.name, MODULE, spec, folder, run_id, config.params.evaluation.timeout)
        progress.client.log_artifacts(run_id, str(folder / "records"), "records")
        return {}

    return stage.run(
        progress,
        planned,
        work,
        params={"seed": config.params.seed, **config.params.evaluation.model_dump(mode="json")},
        summary=summary,
        datasets=[prepared_version(prepared, "eval")],
    )


def _spec(
    config: Configuration, models: dict[str, EvaluatedModel], data: Path, output: Path, check_only: bool = False
) -> EvaluationSpec:
    settings = config.params.evaluation
    metrics: dict[str, list[str]] = {}
    for rule in config.params.gate.rules:
        metrics.setdefault(rule.task, []).append(rule.metric)
    return EvaluationSpec(
        models=models,
        tasks=settings.tasks,
        metrics=metrics,
        include_path=config.root / settings.include_path,
        data=data,
        batch_size=settings.batch_size,
        limit=settings.limit,
        seed=config.params.seed,
        output=output,
        check_only=check_only,
    )


def scores(output: store.Output) -> dict[str, dict[str, dict[str, float]]]:
    """Means by model, task and metric; `n` is the number of items."""
    found: dict[str, dict[str, dict[str, float]]] = json.loads((output.folder / "scores.json").read_bytes())
    return found


def item_scores(output: store.Output, model: str, task_name: str, metric: str) -> dict[str, float]:
    """A metric of a model's answers by item."""
    return {row["id"]: float(row["score"][metric]) for row in records(output, model, task_name)}


def records(output: store.Output, model: str, task_name: str) -> list[dict[str, Any]]:
    """A model's answers to a task, in the order of the items."""
    lines = (output.folder / "records" / model / f"{task_name}.jsonl").read_bytes().splitlines()
    return [json.loads(line) for line in lines]


def summary(output: store.Output) -> dict[str, float]:
    """Every mean under `task/metric/model`."""
    return {
        f"{task_name}/{metric.replace(',', '/')}/{model}": value
        for model, tasks in scores(output).items()
        for task_name, metrics in tasks.items()
        for metric, value in metrics.items()
    }
