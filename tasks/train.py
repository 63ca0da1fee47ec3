"""Train: SFT on demonstrations, then GRPO against the verifier, each in a process of its own."""

import dataclasses
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State

from tasks import stage, store
from tasks.config import Configuration, nearest
from tasks.errors import UserError
from tasks.hub import BaseModel
from tasks.prepare import prepared_version
from tasks.stage import Progress
from tasks.training.spec import TrainingSpec

CODE = ("training", "processes", "rewards", "problems")


def plan(
    config: Configuration, name: Literal["sft", "grpo"], base: BaseModel, parents: list[store.Stage]
) -> store.Stage:
    """A training stage, from its parents, its parameters, the base model, the code and the packages."""
    section = config.params.sft if name == "sft" else config.params.grpo
    return store.Stage(
        name,
        {
            "parents": {parent.name: parent.key for parent in parents},
            "base": base.digest,
            "model": config.params.model.model_dump(exclude={"path", "revision"}),
            "seed": config.params.seed,
            "params": section.model_dump(mode="json", exclude={"timeout"}),
            "code": stage.code(*CODE),
            "packages": store.package_versions(stage.PACKAGES),
        },
    )


def check(config: Configuration, planned: store.Stage) -> None:
    """Hand the stage's arguments to TRL's and PEFT's classes, as the stage's own process will.

    Raises:
        UserError: an argument is unknown, has a value that they reject, or is decided by the stage.
    """
    from trl import GRPOConfig, SFTConfig

    from tasks.training import arguments

    name = planned.name
    section = config.params.sft if name == "sft" else config.params.grpo
    configuration = SFTConfig if name == "sft" else GRPOConfig
    known = [field.name for field in dataclasses.fields(configuration)]
    for argument in section.trainer:
        if argument not in known:
            place = config.place(name, "trainer", argument)
            hint = nearest(argument, known)
            raise UserError(f"{place}: {name}.trainer: {configuration.__name__} has no argument {argument!r}{hint}")
    nowhere = Path(tempfile.gettempdir()).resolve()
    spec = TrainingSpec(
        model=config.params.model.path,
        data=nowhere,
        output=nowhere,
        seed=config.params.seed,
        **section.model_dump(exclude={"timeout"}),
    )
    try:
        arguments.trainer_arguments(name, configuration, spec)
        arguments.lora_config(name, spec)
    except UserError as error:
        raise UserError(f"{config.place(name, 'trainer')}: {error}") from None


@task(name="sft", cache_policy=NO_CACHE)
def sft(progress: Progress, planned: store.Stage, base: BaseModel, prepared: store.Output) -> State[store.Output]:
    """Warm up: supervised fine-tuning of the base model on the training rows that have a solution."""
    return _train(progress, planned, base.path, base.revision, prepared)


@task(name="grpo", cache_policy=NO_CACHE)
def grpo(progress: Progress, planned: store.Stage, parent: store.Output, prepared: store.Output) -> State[store.Output]:
    """Climb: GRPO of the SFT model on the training rows that can be verified."""
    return _train(progress, planned, str(parent.folder / "model"), None, prepared)


def _train(
    progress: Progress, planned: store.Stage, model: str, revision: str | None, prepared: store.Output
) -> State[store.Output]:
    params = progress.config.params
    section = params.sft if planned.name == "sft" else params.grpo

    def work(folder: Path, run_id: str) -> Mapping[str, Any]:
        spec = TrainingSpec(
            model=model,
            revision=revision,
            dtype=params.model.dtype,
            trust_remote_code=params.model.trust_remote_code,
            data=prepared.folder,
            output=folder,
            seed=params.seed,
            **section.model_dump(exclude={"timeout"}),
        )
        stage.launch(progress, planned.name, f"tasks.training.{planned.name}", spec, folder, run_id, section.timeout)
        samples = folder / "samples.jsonl"
        if samples.exists():
            progress.client.log_artifact(run_id, str(samples))
        return {}

    return stage.run(
        progress,
        planned,
        work,
        params={"seed": params.seed, "model": params.model.model_dump(), **section.model_dump(mode="json")},
        summary=summary,
        datasets=[prepared_version(prepared, "train")],
    )


def summary(output: store.Output) -> dict[str, float]:
    """The stage's final metrics."""
    metrics: dict[str, float] = json.loads((output.folder / "metrics.json").read_bytes())
    return metrics
