"""The health of a training stage: `judge` says which alarms its logs raise, the callback `Health` acts on them."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from transformers import PreTrainedModel, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from tasks.config.schema import Alarm
from tasks.errors import UserError
from tasks.training.alarms import ALARMS, WEIGHTS, Definition, Row, Seen


@dataclass(frozen=True)
class Raised:
    """An alarm as it is raised: a line of `alarms.jsonl`."""

    step: int
    alarm: str
    value: float | None
    """The figure that exceeded the threshold; None when it is infinite."""
    threshold: float
    action: Literal["warn", "stop"]
    message: str
    """What was seen, and what to change."""


def judge(rows: Sequence[Row], alarms: Mapping[str, Alarm]) -> list[Raised]:
    """The alarms that the last of `rows` raises, in the order of `ALARMS`.

    An alarm is raised when its figure has been beyond the threshold for `patience` logs in a row, once, and again only
    after it has been within. Logs that do not tell the figure count for neither.
    """
    if not rows:
        return []
    return [
        raised
        for name, definition in ALARMS.items()
        if name in alarms and (raised := _raised(rows, name, definition, alarms[name])) is not None
    ]


def _raised(rows: Sequence[Row], name: str, definition: Definition, alarm: Alarm) -> Raised | None:
    if alarm.action == "off":
        return None
    last: Seen | None = None
    count = 0
    for index in reversed(range(len(rows))):
        seen = definition.figure(rows, index)
        if seen is None or math.isnan(seen.value):
            if last is None:
                return None
            continue
        last = last or seen
        beyond = seen.value > alarm.threshold if definition.side == "above" else seen.value < alarm.threshold
        if not beyond:
            break
        count += 1
        if count > alarm.patience:
            break
    if last is None or count != alarm.patience:
        return None
    return Raised(
        step=int(rows[-1].get("step", 0)),
        alarm=name,
        value=last.value if math.isfinite(last.value) else None,
        threshold=alarm.threshold,
        action=alarm.action,
        message=f"{last.text}; {definition.advice}",
    )


class Health(TrainerCallback):  # type: ignore[misc]  # transformers is not typed
    """Watches the trainer's logs: writes each alarm that is raised to a file of JSON lines and to stdout.

    One whose action is `stop` ends training. All processes judge alike and stop at the same step, for transformers and
    TRL gather what they log over the processes. The first one alone writes.
    """

    def __init__(self, alarms: Mapping[str, Alarm], path: Path) -> None:
        if unknown := sorted(alarms.keys() - ALARMS.keys()):
            raise UserError(f"there is no alarm {unknown[0]!r}; there are: {', '.join(ALARMS)}")
        self.alarms = alarms
        self.path = path
        self.rows: list[Row] = []
        self.stopped: Raised | None = None
        """The alarm that stopped the stage."""

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Leave an empty file where nothing is wrong."""
        if state.is_world_process_zero:
            self.path.touch()

    def on_step_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: PreTrainedModel,
        **kwargs: Any,
    ) -> None:
        """Have broken weights logged at once: the next step could not sample from them."""
        if not weights_are_finite(model):
            control.should_log = True

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any],
        model: PreTrainedModel,
        **kwargs: Any,
    ) -> None:
        """Judge one log; the trainer's closing summary is none.

        Raises FloatingPointError for a loss or weight that is not finite, unless the alarm `not_a_number` is on.
        """
        if "train_runtime" in logs:
            return
        row = {name: value for name, value in logs.items() if isinstance(value, int | float)}
        if args.fp16:
            # The scaler of the loss tries for what is too large, and leaves such a step out.
            row.pop("grad_norm", None)
        if not weights_are_finite(model):
            row[WEIGHTS] = math.nan
        watched = self.alarms.get("not_a_number")
        if watched is None or watched.action == "off":
            for name in ("loss", WEIGHTS):
                if not math.isfinite(row.get(name, 0.0)):
                    raise FloatingPointError(
                        f"step {state.global_step}: {name} is {row[name]}; lower the learning rate"
                    )
        self.rows.append({"step": state.global_step, **row})
        for raised in judge(self.rows, self.alarms):
            if raised.action == "stop":
                self.stopped = self.stopped or raised
                control.should_training_stop = True
            if state.is_world_process_zero:
                with self.path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(asdict(raised)) + "\n")
                print(f"alarm  {raised.alarm}  step {raised.step}  {raised.message}", flush=True)


def weights_are_finite(model: torch.nn.Module) -> bool:
    """Whether every weight that is trained is a finite number."""
    return all(bool(torch.isfinite(weight).all()) for weight in model.parameters() if weight.requires_grad)
