"""What a report shows: data that a run leaves as JSON, and from which its page can be made again."""

from datetime import datetime
from typing import Annotated, Any

from pydantic import Field, model_validator

from tasks.gating.verdict import Verdict
from tasks.reporting.method import Alarm, Checkpoint, Control, Difficulty, Preference, Probe, Skipped, Watch
from tasks.reporting.section import Section, Value


class Promotion(Section):
    """What the registry did."""

    version: str
    alias: str
    previous: str | None = None
    """The version that had the alias before."""


class Rung(Section):
    """One model's score on a task."""

    model: str
    score: float
    n: int
    low: float
    high: float
    """Interval of the score, at the verdict's confidence."""


class Climb(Section):
    """The models' scores on one task, in the order in which they were made."""

    task: str
    metric: str
    rungs: Annotated[list[Rung], Field(min_length=1)]


class Curves(Section):
    """What a training stage logged: points (step, value) by TRL's names. `charts.CURVES` says which are drawn."""

    stage: str
    series: dict[str, list[tuple[float, Value]]]


class Stage(Section):
    """One stage of the run."""

    name: str
    key: str
    """The digest of everything the stage depends on."""
    cached: bool
    """Whether an earlier run's output was used."""
    seconds: float
    status: str


class Answer(Section):
    """A model's answer to an item, with its score."""

    completion: str
    score: float


class ChangedItem(Section):
    """An item on which candidate and baseline do not score the same."""

    id: str
    task: str
    question: str
    gold: str
    baseline: Answer
    candidate: Answer

    @property
    def improved(self) -> bool:
        """Whether the candidate scores higher."""
        return self.candidate.score > self.baseline.score


class Samples(Section):
    """Some of the items that changed from baseline to candidate, and how many there are."""

    baseline: str
    improved: int
    worse: int
    items: list[ChangedItem]


class Lineage(Section):
    """Where the candidate comes from: what it takes to make it again."""

    data: dict[str, str]
    """The md5 of every data file."""
    git_commit: str | None
    git_dirty: bool = False
    base_model: str
    seed: int
    packages: dict[str, str]
    params: dict[str, Any]
    """The resolved parameters."""


class Report(Section):
    """All of a run that its page shows. `model_dump_json` and `model_validate_json` are its form on disk."""

    name: str
    """The registered model's name."""
    run_id: str
    started: datetime
    seconds: float
    candidate: str | None
    """The name of the model that the verdict is about, as the climb has it; None if the climb ended without one."""
    verdict: Verdict
    promotion: Promotion | None = None
    climb: list[Climb]
    probes: list[Probe] = Field(default_factory=list)
    """In the order in which they were made."""
    preference: Preference | Skipped | None = None
    difficulty: Difficulty | None = None
    checkpoint: Checkpoint | None = None
    alarms: list[Alarm] | None = None
    """What the training stages raised; None if none of them was watched."""
    health: list[Watch] = Field(default_factory=list)
    control: Control | None = None
    curves: list[Curves] = Field(default_factory=list)
    stages: list[Stage] = Field(default_factory=list)
    samples: Samples | None = None
    lineage: Lineage

    @model_validator(mode="after")
    def without_a_candidate_nothing_is_compared(self) -> "Report":
        if self.candidate is None and (self.promotion or self.samples or self.verdict.comparisons):
            raise ValueError("without a candidate there is no promotion, no comparison and no sample")
        return self

    @property
    def summit(self) -> str:
        """The model that the climb ended with: the candidate, or the model from which GRPO was not worth it."""
        if self.candidate is not None:
            return self.candidate
        return "dpo" if isinstance(self.preference, Preference) and self.preference.kept else "sft"
