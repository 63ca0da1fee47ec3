"""What an evaluation process is told: the models, the tasks and the settings that all of them share."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from tasks.config.schema import Name, Section, TaskName


class EvaluatedModel(Section):
    """A model to measure."""

    path: str
    """An absolute folder or a Hugging Face model id."""
    revision: str | None = None
    """Branch, tag or commit of a Hugging Face model id."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    trust_remote_code: bool = False
    contract: Path | None = None
    """The `contract.json` of the stage that made the model; None for one that was not trained on the spec's data."""
    chat_template_from: str | None = None
    """A folder whose chat template this model is asked in, if it has none of its own."""
    own_prompt: bool = False
    """It may read the items in another chat template than the others, as a champion of another model family does."""


class EvaluationSpec(Section):
    """One evaluation: every model on every task, with the same settings."""

    models: dict[Name, EvaluatedModel]
    """Models by the name that their records and scores get; there may be none with `check_only`."""
    tasks: Annotated[list[TaskName], Field(min_length=1)]
    """Names of lm-eval tasks: those of `include_path`, else lm-eval's own."""
    include_path: Path
    """The absolute folder of lm-eval tasks."""
    data: Path
    """The absolute folder of the prepared dataset; the tasks get it as lm-eval's metadata `prepared`."""
    metrics: dict[TaskName, list[str]] = Field(default_factory=dict)
    """What the gate takes of a task, by lm-eval's name for it."""
    check_only: bool = False
    """Only see whether tasks, items and metrics are there; no model is loaded."""
    batch_size: Annotated[int, Field(ge=1)]
    limit: Annotated[int, Field(ge=1)] | None = None
    """Only the first so many items of each task."""
    seed: Annotated[int, Field(ge=0)]
    output: Path
    """The existing, empty folder that everything is written into."""

    @model_validator(mode="after")
    def comparable(self) -> "EvaluationSpec":
        if len(set(self.tasks)) < len(self.tasks):
            raise ValueError("a task is named twice")
        if not self.models and not self.check_only:
            raise ValueError("no model is named, so there is nothing to evaluate")
        if unknown := sorted(self.metrics.keys() - set(self.tasks)):
            raise ValueError(f"metrics of task {unknown[0]}, which is not evaluated")
        dtypes = {name: model.dtype for name, model in self.models.items()}
        if len(set(dtypes.values())) > 1:
            raise ValueError(f"models are compared in one dtype only, for it changes answers: {dtypes}")
        return self
