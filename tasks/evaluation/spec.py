"""What an evaluation process is told: the models, the tasks and the settings that all of them share."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from tasks.config.schema import Name, Section


class EvaluatedModel(Section):
    """A model to measure."""

    path: str
    """An absolute folder or a Hugging Face model id."""
    revision: str | None = None
    """Branch, tag or commit of a Hugging Face model id."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    trust_remote_code: bool = False


class EvaluationSpec(Section):
    """One evaluation: every model on every task, with the same settings."""

    models: Annotated[dict[Name, EvaluatedModel], Field(min_length=1)]
    """Models by the name that their records and scores get."""
    tasks: Annotated[list[Name], Field(min_length=1)]
    """Names of lm-eval tasks: those of `include_path`, else lm-eval's own."""
    include_path: Path
    """The absolute folder of lm-eval tasks."""
    data: Path
    """The absolute folder of the prepared dataset; the tasks get it as lm-eval's metadata `prepared`."""
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
        dtypes = {name: model.dtype for name, model in self.models.items()}
        if len(set(dtypes.values())) > 1:
            raise ValueError(f"models are compared in one dtype only, for it changes answers: {dtypes}")
        return self
