"""How far a run is decided before it begins: what earlier runs have left shows its stages up to the first new one."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flows import plan as planning
from flows.climb import Steps, climb
from flows.plan import Plan
from tasks import evaluate, prepare, registry, stage, store, tracking, train
from tasks.climbed import Climb
from tasks.config import Configuration
from tasks.errors import UserError
from tasks.problems import read_summary


@dataclass(frozen=True)
class Row:
    """A line of the plan as it is shown."""

    stage: str
    key: str
    """Empty where it depends on what a stage before it will find."""
    up_to_date: bool
    why: str


@dataclass(frozen=True)
class Outlook:
    """The stages of a run that are known before it begins."""

    known: list[store.Stage]
    done: list[store.Stage]
    """Those of them whose output is there."""
    climb: Climb | None
    """How far the climb goes, where every stage of it has an output already."""


class _Undecided(Exception):  # noqa: N818
    """The climb has come to a stage that has no output yet."""


def look(config: Configuration, plan: Plan, control: bool) -> Outlook:
    """Follow the climb through the outputs that are there."""
    stages = stage.stages_folder(config)
    known, done = [plan.prepare, plan.sft, plan.probe(plan.sft)], []

    def find(planned: store.Stage, *_: Any) -> store.Output:
        if planned not in known:
            known.append(planned)
        manifest = store.peek(stages, planned)
        if manifest is None or store.explain(stages, planned) != store.UP_TO_DATE:
            raise _Undecided
        done.append(planned)
        return store.Output(store.output_folder(stages, planned), manifest, cached=True)

    steps = Steps(sft=find, probe=find, pairs=find, dpo=find, grpo=find, control=find)
    try:
        return Outlook(known, done, climb(config, plan, find(plan.prepare), steps, control))
    except _Undecided:
        return Outlook(known, done, None)


def check(config: Configuration, plan: Plan, current: registry.Version | None, control: bool, data: Path) -> None:
    """Check, before anything is trained, all that can be checked of the stages that would or might run.

    `data` is the prepared dataset. Where it has not been prepared yet, only arguments can be checked.

    Raises:
        UserError: TRL or PEFT rejects an argument, a task or a metric is unknown, there are too few rows.
    """
    if data.is_dir() and not read_summary(data)["splits"]["dev"]["verifiable"]:
        raise UserError(
            f"{config.place('data', 'sources')}: data.sources: no row of the dev split can be verified, and whether to"
            " climb is decided on it; give a source with an `answer` a share of it, such as"
            " split: {train: 0.8, dev: 0.1, eval: 0.1}"
        )
    outlook = look(config, plan, control)
    train.check(config, plan.base, _to_train(config, outlook), data)
    expected = _evaluation(plan, outlook, current)
    stages = stage.stages_folder(config)
    if data.is_dir() and (expected is None or store.explain(stages, expected) != store.UP_TO_DATE):
        evaluate.check(config, data)


def rows(config: Configuration, plan: Plan, control: bool) -> list[Row]:
    """The plan as a table: what would run, and why; checked as far as it can be.

    Raises:
        UserError: as `check` does.
    """
    stages = stage.stages_folder(config)
    current = (
        planning.champion(config, tracking.connect(config.workspace)) if tracking.exists(config.workspace) else None
    )
    check(config, plan, current, control, prepare.dataset(store.output_folder(stages, plan.prepare)))
    outlook = look(config, plan, control)
    evaluation = _evaluation(plan, outlook, current)
    planned = [*outlook.known, *([evaluation] if evaluation else [])]
    whys = [store.explain(stages, each) for each in planned]
    found = [Row(s.name, s.key, why == store.UP_TO_DATE, why) for s, why in zip(planned, whys, strict=True)]
    return found if evaluation else [*found, *_open(config, found[-1].stage, control)]


def _evaluation(plan: Plan, outlook: Outlook, current: registry.Version | None) -> store.Stage | None:
    if outlook.climb is None:
        return None
    challenged = planning.challenged(outlook.climb.candidate, current)
    return plan.evaluate(map(planning.as_stage, outlook.climb.trained.values()), challenged)


def _to_train(config: Configuration, outlook: Outlook) -> set[train.Method]:
    """The methods of which a stage would run, or might."""
    if outlook.climb is not None:
        return set()
    done = {train.METHODS[each.name] for each in outlook.done if each.name in train.METHODS}
    unwanted: set[train.Method] = {"dpo"} if config.params.dpo.enabled is False else set()
    if config.params.probe.decision == "stop":
        unwanted.add("grpo")
    possible: set[train.Method] = {"sft", "dpo", "grpo"}
    return possible - done - unwanted


def _open(config: Configuration, last: str, control: bool) -> list[Row]:
    """The stages that may follow."""
    dpo = "as the probe of SFT and dpo.enabled decide"
    later = {} if config.params.dpo.enabled is False else {"pairs": dpo, "dpo": dpo, "probe-dpo": dpo}
    if config.params.probe.decision != "stop":
        later["grpo"] = "if the probe finds that it can teach something"
        if control:
            later["control"] = "after grpo"
    later["evaluate"] = "the models that there are then"
    names = list(later)
    start = names.index(last) + 1 if last in names else 0
    return [Row(name, "", False, later[name]) for name in names[start:]]
