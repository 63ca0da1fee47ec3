"""Train: SFT on demonstrations, then GRPO against the verifier, each in a process of its own."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State

from tasks import stage, store
from tasks.config import Configuration
from tasks.config.schema import GRPO, SFT
from tasks.hub import BaseModel
from tasks.prepare import dataset, prepared_version
from tasks.stage import Progress
from tasks.training.spec import CheckSpec, TrainingSpec

CODE = ("training", "processes", "rewards", "problems")
Name = Literal["sft", "grpo"]


def plan(config: Configuration, name: Name, base: BaseModel, parents: list[store.Stage]) -> store.Stage:
    """A training stage, from its parents, its parameters, the base model, the code and the packages."""
    section = _section(config, name)
    return store.Stage(
        name,
        {
            "parents": {parent.name: parent.key for parent in parents},
            "base": base.digest,
            "model": config.params.model.model_dump(exclude={"path", "revision"}),
            "seed": config.params.seed,
            "params": section.model_dump(mode="json", exclude={"timeout"}),
            "files": {argument: store.file_digest(file) for argument, file in _files(config, name).items()},
            "code": stage.code(*CODE),
            "packages": store.package_versions(stage.PACKAGES),
        },
    )


def check(config: Configuration, base: BaseModel, planned: list[store.Stage], data: Path) -> None:
    """Hand the arguments of stages to TRL's and PEFT's classes, as they will, in a process of its own.

    `data` is the prepared dataset, whose rows are looked at too, or a folder without one.

    Raises:
        UserError: an argument is unknown, rejected or decided by the stage, or there are too few rows.
    """
    names: list[Name] = [name for name in ("sft", "grpo") if any(each.name == name for each in planned)]
    if not names:
        return

    def spec(folder: Path) -> CheckSpec:
        return CheckSpec(stages={name: _spec(config, name, base.path, base.revision, data, folder) for name in names})

    stage.check(config, "tasks.training.check", spec)


@task(name="sft", task_run_name="sft", cache_policy=NO_CACHE)
def sft(progress: Progress, planned: store.Stage, base: BaseModel, prepared: store.Output) -> State[store.Output]:
    """Warm up: supervised fine-tuning of the base model on the training rows that have a solution."""
    return _train(progress, planned, "sft", base.path, base.revision, prepared)


@task(name="grpo", task_run_name="grpo", cache_policy=NO_CACHE)
def grpo(progress: Progress, planned: store.Stage, parent: store.Output, prepared: store.Output) -> State[store.Output]:
    """Climb: GRPO of the SFT model on the training rows that can be verified."""
    return _train(progress, planned, "grpo", str(parent.folder / "model"), None, prepared)


def _train(
    progress: Progress, planned: store.Stage, name: Name, model: str, revision: str | None, prepared: store.Output
) -> State[store.Output]:
    config = progress.config
    section = _section(config, name)

    def work(folder: Path, run_id: str) -> Mapping[str, Any]:
        spec = _spec(config, name, model, revision, dataset(prepared.folder), folder)
        stage.launch(progress, name, f"tasks.training.{name}", spec, folder, run_id, section.timeout)
        samples = folder / "samples.jsonl"
        if samples.exists():
            progress.client.log_artifact(run_id, str(samples))
        return {}

    return stage.run(
        progress,
        planned,
        work,
        params={
            "seed": config.params.seed,
            "model": config.params.model.model_dump(),
            **section.model_dump(mode="json"),
        },
        summary=summary,
        datasets=[prepared_version(prepared, "train")],
    )


def summary(output: store.Output) -> dict[str, float]:
    """The stage's final metrics."""
    metrics: dict[str, float] = json.loads((output.folder / "metrics.json").read_bytes())
    return metrics


def _section(config: Configuration, name: Name) -> SFT | GRPO:
    return config.params.sft if name == "sft" else config.params.grpo


def _spec(
    config: Configuration, name: Name, model: str, revision: str | None, data: Path, output: Path
) -> TrainingSpec:
    section = _section(config, name).model_dump(exclude={"timeout"})
    section["trainer"] |= {argument: str(file) for argument, file in _files(config, name).items()}
    return TrainingSpec(
        model=model,
        revision=revision,
        dtype=config.params.model.dtype,
        trust_remote_code=config.params.model.trust_remote_code,
        data=data,
        output=output,
        seed=config.params.seed,
        **section,
    )


def _files(config: Configuration, name: Name) -> dict[str, Path]:
    """Arguments of the trainer that name a file of the project, such as chat_template_path."""
    trainer = _section(config, name).trainer
    files = {argument: config.root / value for argument, value in trainer.items() if isinstance(value, str)}
    return {argument: file for argument, file in files.items() if file.is_file()}
