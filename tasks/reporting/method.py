"""How the candidate was made: what was probed and decided, tried and dropped, watched and checked."""

from typing import Annotated, Literal

from pydantic import Field

from tasks.probing.findings import Decision, Measures
from tasks.reporting.section import Section, Value


class Probe(Section):
    """What a model could do before it was trained further, and whether GRPO was worth it."""

    model: Literal["sft", "dpo"]
    measures: Measures
    """On the dev split."""
    decision: Decision
    saved: str | None = None
    """What compute was saved where the climb ended here: a sentence."""


class Preference(Section):
    """DPO, and whether its model was kept."""

    pairs: int
    origin: Literal["made", "given"]
    """Whether the pairs were made of the policy's own answers or came with the data."""
    kept: bool
    reason: str
    before: float
    """pass@1 on the dev split, of the SFT model."""
    after: float
    """The same of DPO's model."""
    low: float
    """Interval of the difference `after - before`."""
    high: float
    chosen_tokens: float | None = None
    """The mean length of the answers that DPO prefers."""
    rejected_tokens: float | None = None


class Skipped(Section):
    """DPO was considered and not run."""

    skipped: str
    """Why: a sentence."""


class Difficulty(Section):
    """Which prompts GRPO trained on, as it started."""

    prompts: int
    """All that could be trained on: active, solved and unsolved."""
    active: int
    """Trained on: right sometimes, or not known."""
    solved: int
    """Set aside as too easy."""
    unsolved: int
    """Set aside as too hard."""
    unprobed: int
    """Those of the active prompts of which nothing is known."""
    zero_variance_before: Value = None
    """The expected share of groups whose completions all score the same, over all prompts that were probed."""
    zero_variance_expected: Value = None
    """The same over those of them that are trained on."""
    zero_variance: Value = None
    """The share that training had, on average."""


class Checkpoint(Section):
    """Which step's model was taken."""

    step: int
    accuracy: float
    """On the dev split, greedy and verified."""
    points: Annotated[list[tuple[int, float]], Field(min_length=1)]
    """Accuracy by step, in order; step 0 is the model that training started from."""
    stopped: str | None = None
    """Why training ended before its last step."""


class Alarm(Section):
    """An alarm that a training stage raised."""

    stage: str
    step: int
    alarm: str
    value: Value
    """None where it is no finite number."""
    threshold: float
    action: Literal["warn", "stop"]
    message: str


class Watch(Section):
    """A figure of a training stage that was watched."""

    stage: str
    alarm: str
    threshold: float
    patience: int
    """Logs in a row beyond the threshold that raise the alarm."""
    action: Literal["off", "warn", "stop"]


class Gain(Section):
    """A difference of two models' scores on the same items, with its interval."""

    difference: float
    low: float
    high: float
    p_value: float


class Control(Section):
    """GRPO's gain beside that of the same training with rewards that mean nothing."""

    task: str
    """What the gains were measured on."""
    real: Gain
    """Over the model that training started from."""
    control: Gain
    """The same of the control."""
    conclusion: str
