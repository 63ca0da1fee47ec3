"""What training stages share once their trainer stands: train, tell, save."""

import shutil
from collections.abc import Mapping

import torch
import transformers

from tasks.training.history import History, write_metrics
from tasks.training.model import check_savable, save
from tasks.training.spec import TrainingSpec


def train_and_save(
    trainer: transformers.Trainer, spec: TrainingSpec, plan: str, shown: Mapping[str, str], rows: int
) -> None:
    """Train, and write `history.jsonl`, `model/` and `metrics.json` to the spec's output.

    `plan` opens what is printed, in a line; `shown` maps the words of the line that is printed at each log to metrics;
    `rows` is how many rows are trained on.
    The metrics are the last log's and the trainer's closing summary.
    """
    check_savable(trainer.model)
    history = History(spec.output / "history.jsonl", plan, shown)
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.add_callback(history)
    summary = trainer.train().metrics
    save(trainer, spec.output / "model", getattr(torch, spec.dtype))
    if trainer.is_world_process_zero():
        write_metrics(spec.output / "metrics.json", {**history.last, **summary, "rows": rows})
        shutil.rmtree(trainer.args.output_dir)
