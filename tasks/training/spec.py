"""What a training stage is told: everything, resolved, in one JSON file."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field


def _absolute(path: Path) -> Path:
    if not path.is_absolute():
        raise ValueError("must be an absolute path")
    return path


AbsolutePath = Annotated[Path, AfterValidator(_absolute)]


class TrainingSpec(BaseModel):
    """The spec of `python -m tasks.training.sft SPEC` and `python -m tasks.training.grpo SPEC`."""

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
    samples_per_step: Annotated[int, Field(ge=0)] = 0
    """Completions of each GRPO generation batch kept in `samples.jsonl`."""


class CheckSpec(BaseModel):
    """The spec of `python -m tasks.training.check SPEC`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    stages: dict[Literal["sft", "grpo"], TrainingSpec]
    """The stages to check, each with the spec that it will get; neither model nor output needs to exist yet."""
