"""What a training stage is told: everything, resolved, in one JSON file."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from tasks.config.schema import Alarm, Difficulty, Selection


def _absolute(path: Path) -> Path:
    if not path.is_absolute():
        raise ValueError("must be an absolute path")
    return path


AbsolutePath = Annotated[Path, AfterValidator(_absolute)]


class TrainingSpec(BaseModel):
    """The spec of `python -m tasks.training.sft SPEC`, and what those of the other stages have in common with it."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())

    model: Annotated[str, Field(min_length=1)]
    """The model to start from: an absolute folder or a Hugging Face model id."""
    revision: str | None = None
    """Commit of a Hugging Face model id."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """The type that the model is saved in, and, with LoRA, that the frozen weights are loaded in."""
    trust_remote_code: bool = False
    """Run Python code that comes with the model."""
    data: AbsolutePath
    """A prepared dataset."""
    output: AbsolutePath
    """An existing empty folder for `model/`, `history.jsonl`, `metrics.json` and, from GRPO, `samples.jsonl`."""
    seed: Annotated[int, Field(ge=0)]
    """Seeds the order of rows, the adapter's weights and the sampling of completions."""
    lora: dict[str, Any] | None = None
    """Arguments of `peft.LoraConfig`; null trains all weights."""
    trainer: dict[str, Any] = Field(default_factory=dict)
    """Arguments of the stage's TRL configuration class, verbatim."""
    parent_contract: AbsolutePath | None = None
    """The `contract.json` of the stage that made the model; None for a base model."""
    health: dict[str, Alarm] = Field(default_factory=dict)
    """Alarms by name (`tasks.training.alarms`)."""


class DPOSpec(TrainingSpec):
    """The spec of `python -m tasks.training.dpo SPEC`."""

    pairs: AbsolutePath
    """A `pairs.jsonl`: problems with `chosen` and `rejected`."""


class GRPOSpec(TrainingSpec):
    """The spec of `python -m tasks.training.grpo SPEC`."""

    samples_per_step: Annotated[int, Field(ge=0)] = 0
    """Completions of each generation batch kept in `samples.jsonl`."""
    reward: AbsolutePath | None = None
    """A Python file with `reward(completion, problem) -> float`; None rewards with the rows' verifiers."""
    probed: AbsolutePath | None = None
    """The probe's `train.jsonl` (`tasks.probing.attempts`), by which the difficulty filter knows the prompts."""
    difficulty: Difficulty | None = None
    """The filter of prompts; None trains on all."""
    selection: Selection | None = None
    """The choice of the checkpoint; None takes the last one."""
    control: Literal["random-reward"] | None = None
    """`random-reward` shuffles the rewards within each batch: what is gained then, no reward has taught."""


class CheckSpec(BaseModel):
    """The spec of `python -m tasks.training.check SPEC`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    sft: TrainingSpec | None = None
    """The spec that the stage will get, if it is to be checked; neither model nor output needs to exist yet."""
    dpo: DPOSpec | None = None
    grpo: GRPOSpec | None = None
