"""Probe: what a policy can do on the dev split, and whether GRPO from it is worth its cost."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.logging import get_run_logger

from tasks import deciding, probing, stage, store
from tasks.config import Configuration
from tasks.prepare import dataset, prepared_version
from tasks.probing.spec import ProbeSpec, sampling
from tasks.stage import Progress

CODE = ("probing", "processes", "rewards", "problems")
SETTINGS = ("samples", "dev_prompts", "train_prompts", "batch_size")


@dataclass(frozen=True)
class Findings:
    """A probe's output, read."""

    model: str
    """The stage whose model was probed."""
    output: store.Output
    dev: list[probing.ProbedPrompt]
    measures: probing.Measures
    decision: probing.Decision

    @property
    def train_file(self) -> Path:
        """The attempts at prompts of the train split."""
        return self.output.folder / "train.jsonl"

    @cached_property
    def train(self) -> list[probing.ProbedPrompt]:
        """The attempts at prompts of the train split, read."""
        return probing.read(self.train_file)


def plan(config: Configuration, prepare: store.Stage, policy: store.Stage) -> store.Stage:
    """The probe of a policy, from its key, the data, how it is sampled, the code and the packages."""
    return store.Stage(
        f"probe-{policy.name}",
        {
            "parents": {each.name: each.key for each in (prepare, policy)},
            "model": config.params.model.model_dump(exclude={"path", "revision"}),
            "seed": config.params.seed,
            "params": config.params.probe.model_dump(mode="json", include=set(SETTINGS)),
            "sampling": asdict(sampling(config.params.grpo.trainer, config.params.probe.batch_size)),
            "code": stage.code(*CODE),
            "packages": store.package_versions(stage.PACKAGES),
        },
    )


@task(name="probe", task_run_name="{planned.name}", cache_policy=NO_CACHE)
def probe(
    progress: Progress, planned: store.Stage, policy: store.Output, prepared: store.Output
) -> State[store.Output]:
    """Sample the policy's answers to prompts of the dev and train splits and verify them."""
    config = progress.config
    settings = config.params.probe

    def work(folder: Path, run_id: str) -> Mapping[str, Any]:
        spec = ProbeSpec(
            model=str(policy.folder / "model"),
            dtype=config.params.model.dtype,
            trust_remote_code=config.params.model.trust_remote_code,
            data=dataset(prepared.folder),
            output=folder,
            seed=config.params.seed,
            sampling=sampling(config.params.grpo.trainer, settings.batch_size),
            parent_contract=policy.folder / "contract.json",
            **settings.model_dump(include=set(SETTINGS) - {"batch_size"}),
        )
        stage.launch(progress, planned.name, "tasks.probing.process", spec, folder, run_id, settings.timeout)
        progress.client.log_artifact(run_id, str(folder / "dev.jsonl"))
        return {}

    model = planned.name.removeprefix("probe-")
    state = stage.run(
        progress,
        planned,
        work,
        params={"seed": config.params.seed, **settings.model_dump(mode="json")},
        summary=lambda output: _metrics(findings(config, model, output)),
        datasets=[prepared_version(prepared, split) for split in ("dev", "train")],
    )
    decision = findings(config, model, state.result()).decision
    logger = get_run_logger()
    logger.info(decision.reason)
    for note in decision.notes:
        logger.warning(note)
    return state


def findings(config: Configuration, model: str, output: store.Output) -> Findings:
    """The figures of a probe and what follows from them, by the thresholds in the parameters."""
    trainer = config.params.grpo.trainer
    dev = probing.read(output.folder / "dev.jsonl")
    max_tokens = sampling(trainer, config.params.probe.batch_size).max_tokens
    measures = probing.measure(dev, probing.group_size(trainer), max_tokens)
    return Findings(model, output, dev, measures, deciding.decide(measures, config.params.probe))


def _metrics(found: Findings) -> dict[str, float]:
    numbers = found.measures.model_dump(exclude={"histogram"})
    return {
        **{name: float(value) for name, value in numbers.items() if value is not None},
        **{f"histogram/{right}": float(count) for right, count in enumerate(found.measures.histogram)},
    }
