"""The schema of params.yaml: every setting of a run, its type and its meaning.

Unknown keys are errors. The `trainer` and `lora` sections are handed to TRL's and PEFT's classes as they are, so
their documentation is the reference; `tasks.training.check` checks them against those classes.
"""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

Share = Annotated[float, Field(ge=0, le=1)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$")]
"""Something that stands in file names and run names."""
TaskName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$")]
"""A task's name in lm-eval."""


class Section(BaseModel):
    """A frozen part of params.yaml that takes no key it does not know."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


class Model(Section):
    """The base model: where every progression starts."""

    path: str
    """A local folder (relative to the project) or a Hugging Face model id."""
    revision: str | None = None
    """Branch, tag or commit of a Hugging Face model id; resolved to a commit before anything runs."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """The type that models are saved and evaluated in. Training of all weights keeps them in float32."""
    trust_remote_code: bool = False
    """Run Python code that comes with the model. Only for models whose code was read."""


class Split(Section):
    """Shares of a source's problems that go to each split; a problem's place is a hash of its prompt."""

    train: Share = 0.0
    dev: Share = 0.0
    eval: Share = 0.0

    @model_validator(mode="after")
    def shares_add_up(self) -> "Split":
        total = self.train + self.dev + self.eval
        if abs(total - 1) > 1e-9:
            raise ValueError(f"the shares train, dev and eval must add up to 1, not {total:g}")
        return self


class Source(Section):
    """One file of problems."""

    path: Path
    """JSON lines, relative to the project. A missing file that DVC knows is pulled or reproduced."""
    split: Split
    verifier: Name = "numeric"
    """The kind of verifier for rows that name none: a module of `tasks.rewards`."""


class Data(Section):
    """Where problems come from and how they are split."""

    sources: Annotated[dict[Name, Source], Field(min_length=1)]
    """Sources by name. The name stays on every row, so that an lm-eval task can pick its items by it."""


class Training(Section):
    """A training stage."""

    lora: dict[str, Any] | None = None
    """Arguments of `peft.LoraConfig`; null trains all weights."""
    timeout: Annotated[float, Field(gt=0)] = 86400.0
    """Seconds after which the stage is stopped as failed."""
    trainer: dict[str, Any] = Field(default_factory=dict)
    """Arguments of the stage's TRL configuration class, verbatim."""

    @model_validator(mode="after")
    def no_secrets(self) -> "Training":
        if "hub_token" in self.trainer:
            raise ValueError("trainer.hub_token: parameters are logged, so no secret belongs there; set HF_TOKEN")
        return self


class SFT(Training):
    """Supervised fine-tuning on rows with a solution (`trl.SFTConfig`)."""


class Probe(Section):
    """What the policy can do before it is trained further: samples of dev and train prompts, verified.

    It samples as GRPO will: temperature, length and the like are those of `grpo.trainer`.
    """

    samples: Annotated[int, Field(ge=2)] = 8
    """Completions of each prompt; the k of pass@k."""
    dev_prompts: Annotated[int, Field(ge=1)] = 256
    """Prompts of the dev split, at most: the decision rests on them."""
    train_prompts: Annotated[int, Field(ge=0)] = 512
    """Prompts of the train split, at most: DPO's pairs are made of them, and GRPO's difficulty filter knows them."""
    batch_size: Annotated[int, Field(ge=1)] = 256
    """Completions generated at a time."""
    decision: Literal["auto", "climb", "stop"] = "auto"
    """Whether GRPO runs: as the figures say, always, or never."""
    no_signal: Share = 0.05
    """No signal when the model is above guessing by no more than this, in k attempts and in one."""
    ceiling: Share = 0.95
    """No headroom when pass@1, or the accuracy of greedy answers, is at or above this."""
    headroom: Share = 0.03
    """No headroom when pass@k is above pass@1 by less than this."""
    timeout: Annotated[float, Field(gt=0)] = 86400.0
    """Seconds after which the probe is stopped as failed."""


class Alarm(Section):
    """When a figure of a training stage is out of health, and what then."""

    threshold: float
    """The figure's limit; which figure, and on which side of it trouble lies, is in `tasks.training.alarms`."""
    patience: Annotated[int, Field(ge=1)] = 1
    """Logs in a row that it must be exceeded."""
    action: Literal["off", "warn", "stop"] = "warn"
    """`stop` ends the stage with the last good checkpoint, and the gate does not promote it."""


def _over(defaults: dict[str, dict[str, Any]]) -> BeforeValidator:
    """Lay what is given of some alarms over the defaults of all; an alarm that is not among them is refused."""

    def merge(given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        if unknown := sorted(map(str, given.keys() - defaults.keys())):
            raise ValueError(f"there is no alarm {unknown[0]!r}; there are: {', '.join(defaults)}")
        laid = {
            name: {**defaults[name], **value} if isinstance(value, dict) else value for name, value in given.items()
        }
        return {**defaults, **laid}

    return BeforeValidator(merge)


GRPO_ALARMS: dict[str, dict[str, Any]] = {
    "not_a_number": {"threshold": 0, "patience": 1, "action": "stop"},
    "reward_collapse": {"threshold": 0.5, "patience": 3, "action": "stop"},
    "reward_hacking": {"threshold": 0.2, "patience": 3, "action": "stop"},
    "infrastructure": {"threshold": 0.02, "patience": 3, "action": "stop"},
    "kl": {"threshold": 2.0, "patience": 3, "action": "stop"},
    "zero_variance": {"threshold": 0.8, "patience": 10, "action": "warn"},
    "truncated": {"threshold": 0.3, "patience": 10, "action": "warn"},
    "entropy_collapse": {"threshold": 0.01, "patience": 10, "action": "warn"},
    "clip_ratio": {"threshold": 0.1, "patience": 10, "action": "warn"},
    "reward_jump": {"threshold": 0.5, "patience": 1, "action": "warn"},
    "length_explosion": {"threshold": 4.0, "patience": 3, "action": "warn"},
}
DPO_ALARMS: dict[str, dict[str, Any]] = {
    "not_a_number": {"threshold": 0, "patience": 1, "action": "stop"},
    "chosen_reward": {"threshold": -0.5, "patience": 3, "action": "warn"},
}


class DPO(Training):
    """Direct preference optimisation on pairs of a right and a wrong answer (`trl.DPOConfig`)."""

    enabled: Literal["auto", True, False] = "auto"
    """Whether it runs. `auto`: when the data has pairs (`chosen`, `rejected`), or when the probe finds a signal too
    thin for GRPO, for then most groups would be without spread."""
    thin_signal: Share = 0.8
    """With `auto`: the expected share of groups without spread from which DPO goes first."""
    pairs_per_prompt: Annotated[int, Field(ge=1)] = 2
    """Pairs made of one prompt's samples, at most."""
    health: Annotated[dict[str, Alarm], _over(DPO_ALARMS)] = Field(default_factory=dict, validate_default=True)
    """Alarms by name; what is not given stays at its default."""


class Selection(Section):
    """Which checkpoint a GRPO run ends with: the best by verified greedy accuracy on the dev split."""

    eval_steps: Annotated[int, Field(ge=1)] = 10
    """Steps between two measurements."""
    prompts: Annotated[int, Field(ge=1)] = 256
    """Prompts of the dev split, at most."""
    early_stopping_patience: Annotated[int, Field(ge=1)] = 3
    """Measurements in a row without a better one after which training ends."""


class Difficulty(Section):
    """Which prompts GRPO trains on: those that the policy solves sometimes, by the probe's samples."""

    min_pass_rate: Share = 0.0
    """Prompts with this pass rate or a lower one are set aside as too hard."""
    max_pass_rate: Share = 1.0
    """Prompts with this pass rate or a higher one are set aside as solved."""
    reprobe_steps: Annotated[int, Field(ge=1)] | None = None
    """Steps after which all prompts that were probed are probed again; null never does."""


class GRPO(Training):
    """Group relative policy optimisation on rows with something to verify (`trl.GRPOConfig`)."""

    samples_per_step: Annotated[int, Field(ge=0)] = 8
    """Completions kept with their scores at each step, for people to read."""
    reward: Path | None = None
    """A Python file of the project with `reward(completion: str, problem: Problem) -> float`, trained on in place of
    the rows' verifiers. The verifiers then stand beside it as the independent judge."""
    difficulty: Difficulty | Literal[False] = Difficulty()
    """The filter of prompts; false trains on all."""
    selection: Selection | Literal[False] = Selection()
    """The choice of the checkpoint; false takes the last one."""
    health: Annotated[dict[str, Alarm], _over(GRPO_ALARMS)] = Field(default_factory=dict, validate_default=True)
    """Alarms by name; what is not given stays at its default."""


class Evaluation(Section):
    """How lm-eval measures the models."""

    include_path: Path = Path("evals")
    """The folder of lm-eval tasks, relative to the project."""
    tasks: Annotated[list[TaskName], Field(min_length=1)]
    """Names of lm-eval tasks; the gate's rules name some of them."""
    batch_size: Annotated[int, Field(ge=1)] = 8
    """Items per batch. Fixed, for results depend on it in low precision."""
    limit: Annotated[int, Field(ge=1)] | None = None
    """Only the first so many items of each task: for smoke tests, never for a verdict worth having."""
    timeout: Annotated[float, Field(gt=0)] = 86400.0
    """Seconds after which the evaluation is stopped as failed."""

    @model_validator(mode="after")
    def tasks_are_named_once(self) -> "Evaluation":
        if len(set(self.tasks)) < len(self.tasks):
            raise ValueError(f"a task is named twice: {', '.join(self.tasks)}")
        return self


class Primary(Section):
    """The rule that the candidate must win by."""

    task: str
    metric: str = "acc"
    min_gain: Annotated[float, Field(ge=0)] = 0.01
    """The smallest gain worth a promotion, in the metric's own unit."""


class Guard(Section):
    """A task on which the candidate must not fall by more than a margin."""

    task: str
    metric: str = "acc"
    margin: Annotated[float, Field(ge=0)] = 0.02


class Gate(Section):
    """When a candidate replaces the champion."""

    primary: Primary
    guards: list[Guard] = Field(default_factory=list)
    confidence: Annotated[float, Field(gt=0.5, lt=1)] = 0.95
    """Level of the intervals; the tests use one minus this as their level."""

    @property
    def rules(self) -> tuple[Primary | Guard, ...]:
        """All rules, the primary one first."""
        return (self.primary, *self.guards)

    @model_validator(mode="after")
    def a_rule_for_each_task_and_metric(self) -> "Gate":
        if len({(rule.task, rule.metric) for rule in self.rules}) < len(self.rules):
            raise ValueError("a task and metric may stand in one rule only")
        return self


class Registry(Section):
    """Where models are registered."""

    name: Annotated[str, Field(pattern=r"^[^/:]+$")]
    """The registered model's name in MLflow; `models:/NAME@champion` is the model in production."""


class Params(Section):
    """Every setting of a run."""

    workspace: Path = Path(".ratchet")
    """The folder that all outputs go to, relative to the project."""
    seed: Annotated[int, Field(ge=0)] = 42
    """The one seed of the run."""
    model: Model
    data: Data
    sft: SFT = SFT()
    probe: Probe = Probe()
    dpo: DPO = DPO()
    grpo: GRPO = GRPO()
    evaluation: Evaluation
    gate: Gate
    registry: Registry

    @model_validator(mode="after")
    def gate_tasks_are_evaluated(self) -> "Params":
        for rule in self.gate.rules:
            if rule.task not in self.evaluation.tasks:
                known = ", ".join(self.evaluation.tasks)
                raise ValueError(f"the gate needs task {rule.task!r}, which evaluation.tasks does not name ({known})")
        return self
