"""How the candidate came about, as the report tells it: probes, DPO, difficulty, checkpoint, alarms, control."""

import json
from typing import Any

from tasks import gating, problems
from tasks.climbed import Climb, Preference
from tasks.config import Configuration
from tasks.prepare import dataset
from tasks.probe import Findings
from tasks.probing import group_size
from tasks.stats import PairedComparison
from tasks.store import Output
from tasks.train import METHODS, alarms, dev_accuracy, metrics, stopped_by


def story(config: Configuration, climbed: Climb, prepared: Output, control: gating.Control | None) -> dict[str, Any]:
    """The fields of `reporting.Report` that tell of the method."""
    grpo = climbed.outputs.get("grpo")
    trained = {name: output for name, output in climbed.outputs.items() if name in METHODS}
    return {
        "probes": [_probe(config, found, climbed, prepared) for found in climbed.probes],
        "preference": _preference(climbed.preference),
        "difficulty": grpo and _difficulty(grpo),
        "checkpoint": grpo and _checkpoint(config, grpo),
        "alarms": [{"stage": name, **alarm} for name, output in trained.items() for alarm in alarms(output)],
        "health": [
            {"stage": name, "alarm": alarm, **settings.model_dump()}
            for name in trained
            if name in ("dpo", "grpo")
            for alarm, settings in getattr(config.params, name).health.items()
        ],
        "control": control and _control(control),
    }


def _probe(config: Configuration, found: Findings, climbed: Climb, prepared: Output) -> dict[str, Any]:
    ended = found is climbed.findings and not found.decision.climbs
    return {
        "model": found.model,
        "measures": found.measures,
        "decision": found.decision,
        "saved": saved(config, prepared) if ended else None,
    }


def saved(config: Configuration, prepared: Output) -> str:
    """What a GRPO stage that does not run would have generated at most."""
    trainer = config.params.grpo.trainer
    steps = int(trainer.get("max_steps", -1))
    group, limit = group_size(trainer), int(trainer.get("max_completion_length", 512))
    if steps > 0:
        each = int(trainer.get("per_device_train_batch_size", 8)) * int(trainer.get("gradient_accumulation_steps", 1))
        completions, what = steps * each, f"{steps:,} steps"
    else:
        rows = problems.read_summary(dataset(prepared.folder))["splits"]["train"]["verifiable"]
        epochs = float(trainer.get("num_train_epochs", 3))
        completions, what = round(epochs * rows) * group, f"{epochs:g} epochs over {rows:,} prompts"
    return f"{what} of GRPO did not run: {completions:,} completions, up to {completions * limit:,} tokens."


def _preference(preference: Preference) -> dict[str, Any]:
    if preference.kept is None:
        return {"skipped": f"{preference.reason[0].upper()}{preference.reason[1:]}."}
    figures, counts = preference.kept.figures, preference.pairs
    return {
        "pairs": counts["pairs"],
        "origin": counts["origin"],
        "kept": preference.kept.kept,
        "reason": preference.kept.reason,
        "before": figures.baseline_mean,
        "after": figures.candidate_mean,
        "low": figures.low,
        "high": figures.high,
        "chosen_tokens": counts.get("mean_chosen_tokens"),
        "rejected_tokens": counts.get("mean_rejected_tokens"),
    }


def _difficulty(grpo: Output) -> dict[str, Any] | None:
    file = grpo.folder / "difficulty.json"
    if not file.exists():
        return None
    found = json.loads(file.read_bytes())
    return {
        **{name: found[name] for name in ("prompts", "active", "unprobed", "zero_variance_before")},
        **{name: len(found[name]) for name in ("solved", "unsolved")},
        "zero_variance_expected": found["zero_variance_after"],
        "zero_variance": metrics(grpo).get("zero_variance"),
    }


def _checkpoint(config: Configuration, grpo: Output) -> dict[str, Any] | None:
    found = metrics(grpo)
    if "best_step" not in found or not config.params.grpo.selection:
        return None
    patience = config.params.grpo.selection.early_stopping_patience
    early = (
        f"Training ended early: {patience} measurements in a row were no better." if found["stopped_early"] else None
    )
    return {
        "step": int(found["best_step"]),
        "accuracy": found["best_dev_accuracy"],
        "points": dev_accuracy(grpo),
        "stopped": stopped_by(grpo) or early,
    }


def _control(control: gating.Control) -> dict[str, Any]:
    return {
        "task": control.task,
        "real": _gain(control.grpo),
        "control": _gain(control.control),
        "conclusion": control.conclusion,
    }


def _gain(figures: PairedComparison) -> dict[str, float]:
    return {"difference": figures.difference, "low": figures.low, "high": figures.high, "p_value": figures.p_value}
