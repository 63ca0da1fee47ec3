"""What a stage tells while it trains: `history.jsonl` for programs, one line a log for people."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments


class History(TrainerCallback):  # type: ignore[misc]  # transformers is not typed
    """Writes each log of the trainer to a file of JSON lines, `{"step": int, metric: number, ...}`, and to stdout.

    `plan` is printed first, with the number of steps. `shown` maps the words of the line of a log to the metrics that
    they stand for. A metric that is no finite number at a step is left out of that step.
    """

    def __init__(self, path: Path, plan: str, shown: Mapping[str, str]) -> None:
        self.path = path
        self.plan = plan
        self.shown = shown
        self.last: dict[str, float] = {}
        """The trainer's last log."""

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Say what is about to happen."""
        if state.is_world_process_zero:
            print(f"{self.plan}, {state.max_steps:,} steps", flush=True)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any],
        **kwargs: Any,
    ) -> None:
        """Record one log. The trainer's closing summary, which has no loss of a step, is left to `metrics.json`."""
        if not state.is_world_process_zero or "train_runtime" in logs:
            return
        self.last = finite(logs)
        self.record(state.global_step, state.max_steps, self.last)

    def record(self, step: int, max_steps: int, metrics: Mapping[str, float]) -> None:
        """Write a line for `step`, and print what is `shown` of it, or all of it where nothing of it is.

        For callbacks that measure something themselves, in the first process alone: through the trainer's own `log`
        they would make TRL average and forget the metrics that it has gathered so far.
        """
        numbers = finite(metrics)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step, **numbers}) + "\n")
        shown = {word: metric for word, metric in self.shown.items() if metric in numbers}
        figures = [f"{word} {numbers[metric]:.4g}" for word, metric in (shown or {key: key for key in numbers}).items()]
        print("  ".join([f"step {step}/{max_steps}", *figures]), flush=True)


def write_metrics(path: Path, metrics: Mapping[str, Any]) -> None:
    """Write the finite numbers among `metrics` as one flat JSON object."""
    path.write_text(json.dumps(finite(metrics), indent=1, sort_keys=True) + "\n", encoding="utf-8")


def finite(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Those of `metrics` that are finite numbers."""
    return {key: value for key, value in metrics.items() if isinstance(value, int | float) and math.isfinite(value)}
