"""Evaluate: lm-eval on every model of the progression, on the same items with the same settings, in one process."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State

from tasks import stage, store
from tasks.config import Configuration, nearest
from tasks.errors import UserError
from tasks.evaluation.spec import EvaluatedModel, EvaluationSpec
from tasks.hub import BaseModel
from tasks.prepare import prepared_version
from tasks.registry import Version
from tasks.stage import Progress

PACKAGES = (*stage.PACKAGES, "lm-eval")


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
            "tasks": store.code_digest(config.root / config.params.evaluation.include_path),
            "code": stage.code("evaluation", "processes", "rewards", "problems"),
            "packages": store.package_versions(PACKAGES),
        },
    )


def check(config: Configuration) -> None:
    """Look the tasks' names up: in the folder's YAML files, and only for a name that is not there in lm-eval's index.

    Raises:
        UserError: there is no such folder or task.
    """
    folder = config.root / config.params.evaluation.include_path
    if not folder.is_dir():
        raise UserError(f"{config.place('evaluation', 'include_path')}: evaluation.include_path: no folder {folder}")
    ours = {
        match[1]
        for file in folder.rglob("*.yaml")
        if (match := re.search(r"^task: *[\"']?([^\s\"']+)", file.read_text(encoding="utf-8"), re.MULTILINE))
    }
    unknown = [name for name in config.params.evaluation.tasks if name not in ours]
    if not unknown:
        return
    from lm_eval.tasks import TaskManager

    theirs = set(TaskManager(include_path=str(folder)).all_subtasks)
    for name in unknown:
        if name not in theirs:
            hint = nearest(name, sorted(ours)) or nearest(name, sorted(theirs))
            place = config.place("evaluation", "tasks", config.params.evaluation.tasks.index(name))
            raise UserError(f"{place}: evaluation.tasks: neither {folder} nor lm-eval has a task {name!r}{hint}")


@task(name="evaluate", cache_policy=NO_CACHE)
def evaluate(
    progress: Progress,
    planned: store.Stage,
    base: BaseModel,
    trained: Mapping[str, store.Output],
    champion: Path | None,
    prepared: store.Output,
) -> State[store.Output]:
    """Measure the base model, the trained ones and the champion (a transformers folder), if there is one to beat."""
    params = progress.config.params
    settings = params.evaluation

    def work(folder: Path, run_id: str) -> Mapping[str, Any]:
        loading = params.model.model_dump(include={"dtype", "trust_remote_code"})
        models = {"base": EvaluatedModel(path=base.path, revision=base.revision, **loading)}
        for name, output in trained.items():
            models[name] = EvaluatedModel(path=str(output.folder / "model"), **loading)
        if champion is not None:
            models["champion"] = EvaluatedModel(path=str(champion), **loading)
        spec = EvaluationSpec(
            models=models,
            tasks=settings.tasks,
            include_path=progress.config.root / settings.include_path,
            data=prepared.folder,
            batch_size=settings.batch_size,
            limit=settings.limit,
            seed=params.seed,
            output=folder,
        )
        stage.launch(progress, planned.name, "tasks.evaluation.process", spec, folder, run_id, settings.timeout)
        progress.client.log_artifacts(run_id, str(folder / "records"), "records")
        return {}

    return stage.run(
        progress,
        planned,
        work,
        params={"seed": params.seed, **settings.model_dump(mode="json")},
        summary=summary,
        datasets=[prepared_version(prepared, "eval")],
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
