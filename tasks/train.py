"""Train: SFT on demonstrations, DPO on pairs, GRPO against the verifier, each in a process of its own."""

import json
from collections import Counter
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State

from tasks import pairs, stage, store, tracking
from tasks.config import Configuration
from tasks.config.schema import Training
from tasks.errors import UserError
from tasks.hub import BaseModel
from tasks.launcher import StageFailed
from tasks.prepare import dataset, prepared_version
from tasks.stage import Progress
from tasks.training.spec import CheckSpec, DPOSpec, GRPOSpec, TrainingSpec

CODE = ("training", "probing", "processes", "rewards", "problems")
Method = Literal["sft", "dpo", "grpo"]
METHODS: dict[str, Method] = {"sft": "sft", "dpo": "dpo", "grpo": "grpo", "control": "grpo"}
"""The training stages, and the method of each: the control is GRPO whose rewards mean nothing."""


LEFT = ("model", "metrics.json", "alarms.jsonl", "contract.json")
"""What every training stage leaves."""


def plan(config: Configuration, name: str, base: BaseModel, parents: list[store.Stage]) -> store.Stage:
    """A training stage, from its parents, its parameters, the base model, the code and the packages."""
    method = METHODS[name]
    return store.Stage(
        name,
        {
            "parents": {parent.name: parent.key for parent in parents},
            "base": base.digest,
            "model": config.params.model.model_dump(exclude={"path", "revision"}),
            "seed": config.params.seed,
            "params": _settings(config, method).model_dump(mode="json", exclude=POLICY),
            "files": {key: store.path_digest(path) for key, path in _files(config, method).items()},
            "code": stage.code(*CODE),
            "packages": store.package_versions(_packages(config, method)),
        },
    )


POLICY = {"timeout", "enabled", "thin_signal", "pairs_per_prompt"}
"""Settings of a stage that its process has no use for."""


def check(config: Configuration, base: BaseModel, methods: set[Method], data: Path) -> None:
    """Hand the arguments of stages to TRL's and PEFT's classes, as they will, in a process of its own.

    `data` is the prepared dataset, whose rows are looked at too, or a folder without one.

    Raises:
        UserError: an argument is unknown, rejected or decided by the stage, or there are too few rows.
    """
    if not methods:
        return

    def spec(folder: Path) -> CheckSpec:
        common: dict[str, Any] = {"model": base.path, "revision": base.revision, "data": data, "output": folder}
        return CheckSpec(
            sft=TrainingSpec(**_common(config, "sft"), **common) if "sft" in methods else None,
            dpo=DPOSpec(**_common(config, "dpo"), **common, pairs=folder / "pairs.jsonl") if "dpo" in methods else None,
            grpo=GRPOSpec(**_grpo(config), **common) if "grpo" in methods else None,
        )

    stage.check(config, "tasks.training.check", spec)


@task(name="sft", task_run_name="sft", cache_policy=NO_CACHE)
def sft(progress: Progress, planned: store.Stage, base: BaseModel, prepared: store.Output) -> State[store.Output]:
    """Warm up: supervised fine-tuning of the base model on the training rows that have a solution."""

    def spec(folder: Path) -> TrainingSpec:
        common = _common(progress.config, "sft")
        return TrainingSpec(
            model=base.path, revision=base.revision, data=dataset(prepared.folder), output=folder, **common
        )

    return _train(progress, planned, spec, [prepared_version(prepared, "train")])


@task(name="dpo", task_run_name="dpo", cache_policy=NO_CACHE)
def dpo(
    progress: Progress, planned: store.Stage, parent: store.Output, paired: store.Output, prepared: store.Output
) -> State[store.Output]:
    """Sharpen: direct preference optimisation of the SFT model on pairs of a right and a wrong answer."""

    def spec(folder: Path) -> DPOSpec:
        common = {**_common(progress.config, "dpo"), **_from(parent)}
        return DPOSpec(data=dataset(prepared.folder), output=folder, pairs=pairs.file(paired.folder), **common)

    return _train(progress, planned, spec, [pairs.version(paired)])


@task(name="grpo", task_run_name="{planned.name}", cache_policy=NO_CACHE)
def grpo(
    progress: Progress,
    planned: store.Stage,
    parent: store.Output,
    probed: Path,
    prepared: store.Output,
    control: Literal["random-reward"] | None = None,
) -> State[store.Output]:
    """Climb: GRPO of a model on the training rows that can be verified.

    `probed` is what the probe found of the train split; `control` shuffles the rewards.
    """

    def spec(folder: Path) -> GRPOSpec:
        common = {**_grpo(progress.config), **_from(parent)}
        return GRPOSpec(data=dataset(prepared.folder), output=folder, probed=probed, control=control, **common)

    return _train(progress, planned, spec, [prepared_version(prepared, split) for split in ("train", "dev")])


def _train(
    progress: Progress, planned: store.Stage, spec: Any, datasets: list[tracking.DatasetVersion]
) -> State[store.Output]:
    config = progress.config
    settings = _settings(config, METHODS[planned.name])

    def work(folder: Path, run_id: str) -> Mapping[str, Any]:
        module = f"tasks.training.{METHODS[planned.name]}"
        try:
            stage.launch(progress, planned.name, module, spec(folder), folder, run_id, settings.timeout)
        finally:
            left = [folder / name for name in ("samples.jsonl", "difficulty.json", "alarms.jsonl", "contract.json")]
            for file in [*left, *_files(config, METHODS[planned.name]).values()]:
                if file.is_file():
                    progress.client.log_artifact(run_id, str(file))
        if missing := [name for name in LEFT if not (folder / name).exists()]:
            raise StageFailed(f"{module} ended as if its work was done, but left no {', '.join(missing)}")
        return {}

    return stage.run(
        progress,
        planned,
        work,
        params={
            "seed": config.params.seed,
            "model": config.params.model.model_dump(),
            **settings.model_dump(mode="json"),
        },
        summary=summary,
        datasets=datasets,
    )


def summary(output: store.Output) -> dict[str, float]:
    """The stage's final metrics, and how often each alarm was raised."""
    raised = Counter(f"alarms/{alarm['alarm']}" for alarm in alarms(output))
    return {**metrics(output), **{name: float(count) for name, count in raised.items()}}


def metrics(output: store.Output) -> Mapping[str, float]:
    """The final metrics of a training stage."""
    found: Mapping[str, float] = json.loads((output.folder / "metrics.json").read_bytes())
    return found


def dev_accuracy(output: store.Output) -> list[tuple[int, float]]:
    """What a GRPO stage measured on dev, by step; empty where it measured nothing."""
    rows = [json.loads(line) for line in (output.folder / "history.jsonl").read_bytes().splitlines()]
    return [(row["step"], row["dev/accuracy"]) for row in rows if "dev/accuracy" in row]


def alarms(output: store.Output) -> list[dict[str, Any]]:
    """The alarms that a training stage raised, in their order."""
    return [json.loads(line) for line in (output.folder / "alarms.jsonl").read_bytes().splitlines()]


def stopped_by(output: store.Output) -> str | None:
    """What stopped a training stage before its end, if an alarm did, in words."""
    stops = [alarm for alarm in alarms(output) if alarm["action"] == "stop"]
    if not stops:
        return None
    first = stops[0]
    return f"The alarm {first['alarm']} stopped {output.manifest.stage} at step {first['step']}: {first['message']}"


def _settings(config: Configuration, method: Method) -> Training:
    settings: Training = getattr(config.params, method)
    return settings


def _common(config: Configuration, method: Method) -> dict[str, Any]:
    """What the spec of any training stage takes from the parameters."""
    settings = _settings(config, method)
    return {
        "dtype": config.params.model.dtype,
        "trust_remote_code": config.params.model.trust_remote_code,
        "seed": config.params.seed,
        "lora": settings.lora,
        "trainer": {**settings.trainer, **{key: str(file) for key, file in _trainer_files(config, method).items()}},
        **settings.model_dump(include={"health"}),
    }


def _grpo(config: Configuration) -> dict[str, Any]:
    settings = config.params.grpo
    return {
        **_common(config, "grpo"),
        "samples_per_step": settings.samples_per_step,
        "reward": _reward(config),
        "difficulty": settings.difficulty or None,
        "selection": settings.selection or None,
    }


def _from(parent: store.Output) -> dict[str, Any]:
    return {"model": str(parent.folder / "model"), "parent_contract": parent.folder / "contract.json"}


def _files(config: Configuration, method: Method) -> dict[str, Path]:
    """Every file of the project that the stage reads, by the setting that names it."""
    reward = _reward(config) if method == "grpo" else None
    return {**_trainer_files(config, method), **({"reward": reward} if reward and reward.is_file() else {})}


def _reward(config: Configuration) -> Path | None:
    """The file of the user's reward, if there is one; raises UserError for one outside the project."""
    given = config.params.grpo.reward
    if given is None:
        return None
    file = (config.root / given).resolve()
    if not file.is_relative_to(config.root.resolve()):
        raise UserError(
            f"{config.place('grpo', 'reward')}: grpo.reward: {given} lies outside the project; copy it into the project"
        )
    return file


def _packages(config: Configuration, method: Method) -> tuple[str, ...]:
    """What the stage's output depends on: with vLLM, which makes the completions, on that as well."""
    uses_vllm = method == "grpo" and config.params.grpo.trainer.get("use_vllm") and find_spec("vllm")
    return (*stage.PACKAGES, "vllm") if uses_vllm else stage.PACKAGES


def _trainer_files(config: Configuration, method: Method) -> dict[str, Path]:
    """Arguments of the trainer that name a file or folder of the project, such as chat_template_path."""
    trainer = _settings(config, method).trainer
    template = str(trainer.get("chat_template_path", ""))
    if template.endswith(".jinja") and not (config.root / template).is_file():
        place = config.place(method, "trainer", "chat_template_path")
        raise UserError(f"{place}: {method}.trainer.chat_template_path: there is no file {template} in {config.root}")
    files = {argument: config.root / value for argument, value in trainer.items() if isinstance(value, str)}
    return {argument: path for argument, path in files.items() if path.exists()}
