"""What a climb came to: its stages, its decisions, and the model that the gate is to judge."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tasks.deciding import Kept
from tasks.probe import Findings
from tasks.store import Output


@dataclass(frozen=True)
class Preference:
    """What became of DPO."""

    reason: str
    """Why it ran, or why not."""
    kept: Kept | None = None
    """Whether its model was kept; None where it did not run."""
    pairs: Mapping[str, Any] = field(default_factory=dict)
    """How many pairs there were, and of what they were made."""

    @property
    def sentence(self) -> str:
        """What became of it, in words."""
        if self.kept is None:
            return f"DPO did not run: {self.reason}."
        return f"DPO ran, for {self.reason}. {self.kept.reason}"


@dataclass(frozen=True)
class Climb:
    """How far the climb went."""

    outputs: dict[str, Output]
    """Of every stage, in their order."""
    probes: list[Findings]
    """Of SFT's model and, if DPO ran, of DPO's."""
    preference: Preference
    trained: dict[str, Output]
    """The models to measure: SFT's, DPO's if it was kept, GRPO's and its control's if they were trained."""
    candidate: Output | None
    """The model for the gate; None where the climb stopped at SFT."""

    @property
    def findings(self) -> Findings:
        """Those of the model that GRPO started from, or would have."""
        kept = self.preference.kept
        return self.probes[-1] if kept is None or kept.kept else self.probes[0]
