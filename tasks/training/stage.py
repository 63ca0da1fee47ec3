"""What training stages share once their trainer stands: train, watch, choose the weights, save."""

import shutil
from collections.abc import Mapping
from pathlib import Path

import torch
import transformers

from tasks.training.health import Health
from tasks.training.history import History, write_metrics
from tasks.training.model import check_savable, save
from tasks.training.selection import BestCheckpoint, StartCheckpoint
from tasks.training.spec import TrainingSpec


def train_and_save(
    trainer: transformers.Trainer,
    spec: TrainingSpec,
    history: History,
    rows: int,
    *,
    best: BestCheckpoint | None = None,
    extra_metrics: Mapping[str, float] | None = None,
) -> None:
    """Train, and write `history.jsonl`, `alarms.jsonl`, `model/` and `metrics.json` to the spec's output.

    `rows` is how many rows are trained on. What is saved are the weights that `best` has chosen; without it the last
    ones, or those of the start when an alarm stopped the stage.
    The metrics are the last log's, the trainer's closing summary, what `best` found, whether an alarm stopped the
    stage, and `extra_metrics`. Callbacks that record to `history` themselves may be on the trainer already.
    """
    check_savable(trainer.model)
    trainer.remove_callback(transformers.PrinterCallback)
    health = Health(spec.health, spec.output / "alarms.jsonl")
    may_stop = any(alarm.action == "stop" for alarm in spec.health.values())
    start = StartCheckpoint(Path(trainer.args.output_dir)) if best is None and may_stop else None
    for callback in (history, health, best, start):
        if callback is not None:
            trainer.add_callback(callback)
    summary = trainer.train().metrics
    if trainer.is_world_process_zero():
        if best is not None:
            best.checkpoint.restore(trainer.model)
        elif start is not None and health.stopped is not None:
            start.checkpoint.restore(trainer.model)
        save(trainer, spec.output / "model", getattr(torch, spec.dtype))
        write_metrics(
            spec.output / "metrics.json",
            {
                **history.last,
                **summary,
                **(best.metrics if best is not None else {}),
                "stopped_by_alarm": int(health.stopped is not None),
                "rows": rows,
                **(extra_metrics or {}),
            },
        )
        shutil.rmtree(trainer.args.output_dir)
