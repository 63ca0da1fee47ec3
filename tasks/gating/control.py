"""The control: what GRPO gains beside what the same training gains from rewards that mean nothing.

Shao et al. 2025, "Spurious rewards: rethinking training signals in RLVR", https://arxiv.org/abs/2506.10947: some models
gain on some benchmarks from random rewards, so a gain alone does not show that its reward has taught it.
"""

from collections.abc import Mapping

from pydantic import BaseModel, ConfigDict, computed_field

from tasks.gating.prose import number
from tasks.stats import PairedComparison, compare


class Control(BaseModel):
    """The gains of GRPO and of its control over the model that both started from, on one task."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    task: str
    metric: str
    grpo: PairedComparison
    control: PairedComparison
    excess: PairedComparison
    """GRPO against the control."""
    step: int | None
    """The control's checkpoint that is the best on dev; None where its last one was taken."""
    dev_accuracy: tuple[float, float] | None
    """The control's accuracy on dev at its start and at its last measurement."""

    @computed_field  # type: ignore[prop-decorator]  # as pydantic documents it
    @property
    def distinguishable(self) -> bool:
        """Whether the control's gain can be told from zero."""
        return _shown(self.control) != 0

    @computed_field  # type: ignore[prop-decorator]
    @property
    def conclusion(self) -> str:
        """What the gains say, in words."""
        gains = (
            f"On {self.task} GRPO gains {_points(self.grpo)}, the control with random rewards {_points(self.control)}."
        )
        control = {
            0: "The control's gain is indistinguishable from zero",
            1: "Random rewards gain as well",
            -1: "Random rewards made the model worse",
        }[_shown(self.control)]
        if _shown(self.grpo) <= 0:
            finding = "GRPO itself is not shown to gain, so there is nothing to explain."
        elif _shown(self.excess) > 0:
            finding = f"GRPO gains {_points(self.excess)} more than its control: that is what its reward has taught."
        else:
            finding = "GRPO is not shown to gain more, so its gain need not come from what its reward says."
        return f"{gains} {control}. {finding}{self._course()}"

    def _course(self) -> str:
        if self.step is None or self.dev_accuracy is None:
            return ""
        start, last = (100 * accuracy for accuracy in self.dev_accuracy)
        kept = "the model that it started from" if self.step == 0 else f"that of step {self.step}"
        return f" In training the control went from {start:.1f} % to {last:.1f} % on dev; its best model is {kept}."


def compare_control(
    task: str,
    metric: str,
    start: Mapping[str, float],
    grpo: Mapping[str, float],
    control: Mapping[str, float],
    confidence: float,
    step: int | None,
    dev_accuracy: tuple[float, float] | None,
) -> Control:
    """The three models' scores by item, which are the same for all, compared in pairs."""
    items = sorted(start)
    before, real, random = ([scores[item] for item in items] for scores in (start, grpo, control))
    return Control(
        task=task,
        metric=metric,
        grpo=compare(before, real, confidence),
        control=compare(before, random, confidence),
        excess=compare(random, real, confidence),
        step=step,
        dev_accuracy=dev_accuracy,
    )


def _shown(figures: PairedComparison) -> int:
    """1 for a gain that is shown, by the test and by the interval, -1 for a loss, 0 where zero is not ruled out."""
    if figures.p_value > 1 - figures.confidence or figures.low <= 0 <= figures.high:
        return 0
    return 1 if figures.difference > 0 else -1


def _points(figures: PairedComparison) -> str:
    low, difference, high = (number(100 * v, signed=True) for v in (figures.low, figures.difference, figures.high))
    return f"{difference} points ({100 * figures.confidence:g} % interval {low} to {high})"
