"""What a run would do: its stages, their keys, and which of them are up to date."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tasks import evaluate, hub, prepare, registry, stage, store, tracking, train
from tasks.config import Configuration

if TYPE_CHECKING:
    from mlflow import MlflowClient


@dataclass(frozen=True)
class Plan:
    """The stages of a run, before anything has run."""

    base: hub.BaseModel
    prepare: store.Stage
    sft: store.Stage
    grpo: store.Stage

    @property
    def candidate(self) -> store.Stage:
        """The stage whose model is meant to become the champion."""
        return self.grpo

    def evaluate(self, config: Configuration, challenged: registry.Version | None) -> store.Stage:
        """The evaluation of this plan's models and of the champion that they challenge."""
        return evaluate.plan(config, self.base, self.prepare, [self.sft, self.grpo], challenged)


@dataclass(frozen=True)
class Row:
    """A line of the plan as it is shown."""

    stage: str
    key: str
    up_to_date: bool
    why: str


def make(config: Configuration) -> Plan:
    """The plan of a run.

    Raises:
        UserError: the base model, or the file of a source, is not there.
    """
    base = hub.resolve(config.params.model, config.root, config.place("model", "path"))
    prepared = prepare.plan(config)
    sft = train.plan(config, "sft", base, [prepared])
    grpo = train.plan(config, "grpo", base, [prepared, sft])
    return Plan(base, prepared, sft, grpo)


def check(config: Configuration, plan: Plan, evaluation: store.Stage, data: Path) -> None:
    """Check, before anything is trained, all that can be checked of the stages that would run.

    `data` is the prepared dataset. Where it has not been prepared yet, only arguments can be checked.

    Raises:
        UserError: TRL or PEFT rejects an argument, a task or a metric is unknown, there are too few rows.
    """
    stages = stage.stages_folder(config)
    training, measuring = (
        [each for each in candidates if store.explain(stages, each) != store.UP_TO_DATE]
        for candidates in ([plan.sft, plan.grpo], [evaluation])
    )
    train.check(config, plan.base, training, data)
    if measuring and data.is_dir():
        evaluate.check(config, data)


def champion(config: Configuration, client: "MlflowClient") -> registry.Version | None:
    """The model in production."""
    return registry.champion(client, config.params.registry.name)


def challenged(config: Configuration, plan: Plan, current: registry.Version | None) -> registry.Version | None:
    """The champion that the candidate has to beat; none where the candidate is, byte for byte, the champion."""
    candidate = store.peek(stage.stages_folder(config), plan.candidate)
    same = candidate is not None and current is not None and candidate.model_digest() == current.model_digest
    return None if same else current


def rows(config: Configuration, plan: Plan) -> list[Row]:
    """The plan as a table: what would run, and why; checked as far as it can be.

    Raises:
        UserError: as `check` does.
    """
    stages = stage.stages_folder(config)
    current = champion(config, tracking.connect(config.workspace)) if tracking.exists(config.workspace) else None
    evaluation = plan.evaluate(config, challenged(config, plan, current))
    check(config, plan, evaluation, prepare.dataset(store.output_folder(stages, plan.prepare)))
    planned = [plan.prepare, plan.sft, plan.grpo, evaluation]
    whys = [store.explain(stages, each) for each in planned]
    return [Row(s.name, s.key, why == store.UP_TO_DATE, why) for s, why in zip(planned, whys, strict=True)]
