"""What a run would do: its stages, their keys, and which of them are up to date."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tasks import evaluate, hub, pairs, prepare, probe, registry, store, train
from tasks.config import Configuration

if TYPE_CHECKING:
    from mlflow import MlflowClient


@dataclass(frozen=True)
class Plan:
    """The stages that a run may have, before anything has run. Which of them it has, the probe decides."""

    config: Configuration
    base: hub.BaseModel
    prepare: store.Stage
    sft: store.Stage

    def probe(self, policy: store.Stage) -> store.Stage:
        """The probe of a policy."""
        return probe.plan(self.config, self.prepare, policy)

    def pairs(self, probed: store.Stage) -> store.Stage:
        """The preference pairs, made of a probe's samples where the data has none."""
        return pairs.plan(self.config, self.prepare, probed)

    def dpo(self, paired: store.Stage) -> store.Stage:
        """DPO of the SFT model."""
        return train.plan(self.config, "dpo", self.base, [self.prepare, self.sft, paired])

    def grpo(self, policy: store.Stage) -> store.Stage:
        """GRPO of a policy, on the prompts that its probe has not set aside."""
        return train.plan(self.config, "grpo", self.base, [self.prepare, policy, self.probe(policy)])

    def control(self, policy: store.Stage) -> store.Stage:
        """The same GRPO, with rewards that mean nothing."""
        return train.plan(self.config, "control", self.base, [self.prepare, policy, self.probe(policy)])

    def evaluate(self, trained: Iterable[store.Stage], challenged: registry.Version | None) -> store.Stage:
        """The evaluation of trained models and of the champion that they challenge."""
        return evaluate.plan(self.config, self.base, self.prepare, list(trained), challenged)


def make(config: Configuration) -> Plan:
    """The plan of a run.

    Raises:
        UserError: the base model, or the file of a source, is not there.
    """
    base = hub.resolve(config.params.model, config.root, config.place("model", "path"))
    prepared = prepare.plan(config)
    return Plan(config, base, prepared, train.plan(config, "sft", base, [prepared]))


def champion(config: Configuration, client: "MlflowClient") -> registry.Version | None:
    """The model in production."""
    return registry.champion(client, config.params.registry.name)


def challenged(candidate: store.Output | None, current: registry.Version | None) -> registry.Version | None:
    """The champion that the candidate has to beat: none without a candidate, or where they are equal, byte for byte."""
    if candidate is None or current is None or candidate.manifest.model_digest() == current.model_digest:
        return None
    return current


def as_stage(output: store.Output) -> store.Stage:
    """The stage that an output is of."""
    return store.Stage(output.manifest.stage, output.manifest.inputs)
