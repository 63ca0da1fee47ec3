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
    they stand for. A metric that is no finite number at a
    step is left out of that step; a loss that is none stops the stage with FloatingPointError.
    """

    def __init__(self, path: Path, plan: str, shown: Mapping[str, str]) -> None:
        self.path = path
        self.plan = plan
        self.shown = shown
        self.last: dict[str, float] = {}

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
        if not math.isfinite(logs.get("loss", 0.0)):
            raise FloatingPointError(f"step {state.global_step}: the loss is {logs['loss']}; lower the learning rate")
        self.last = {key: value for key, value in logs.items() if _is_number(value)}
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": state.global_step, **self.last}) + "\n")
        figures = [f"{word} {self.last[key]:.4g}" for word, key in self.shown.items() if key in self.last]
        print("  ".join([f"step {state.global_step}/{state.max_steps}", *figures]), flush=True)


def write_metrics(path: Path, metrics: Mapping[str, Any]) -> None:
    """Write the finite numbers among `metrics` as one flat JSON object."""
    numbers = {key: value for key, value in metrics.items() if _is_number(value)}
    path.write_text(json.dumps(numbers, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)
