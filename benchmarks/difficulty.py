"""How many generated tokens GRPO takes to 90 % dev accuracy, with the difficulty filter and without it.

    python benchmarks/difficulty.py [--seeds N]

The train split is mixed on purpose: chains of three integers, which the SFT model nearly always solves, chains of nine,
which it nearly never does, and a few chains of four, which it solves sometimes. The dev split has chains of four. Each
seed draws its own problems and trains and probes its own SFT model; from it GRPO runs twice, with the probe's samples
and without, and is stopped as soon as the dev accuracy is there. All stages are the pipeline's own processes.

Counted are the tokens that are generated to learn from: the completions of the training and, with the filter, those of
the probe. The measurements of the dev accuracy, the same for both, are not.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "data")]

import arithmetic  # noqa: E402

from tasks.probing.attempts import read  # noqa: E402
from tasks.problems import Problem  # noqa: E402

TRAIN = {3: 160, 9: 160, 4: 40}
"""Problems to train on, by the length of their chains."""
DEV = {4: 128}
DEMONSTRATIONS = {3: (600, 0.0), 4: (400, arithmetic.BARE_SHARE)}
"""By length: how many, and the share of them that is the bare answer."""
GOAL = 0.9
SAMPLES, GROUP, PROMPTS, MAX_TOKENS = 4, 8, 16, 48
QUICK = {"bf16": False, "gradient_checkpointing": False, "logging_steps": 1}
SFT = {**QUICK, "max_steps": 200, "per_device_train_batch_size": 32, "learning_rate": 5e-4}
GRPO = {
    **QUICK,
    "max_steps": 400,
    "per_device_train_batch_size": PROMPTS * GROUP,
    "num_generations": GROUP,
    "max_completion_length": MAX_TOKENS,
    "learning_rate": 5e-6,
    "lr_scheduler_type": "constant",
}
EVAL_STEPS = 4


@dataclass(frozen=True)
class Climb:
    """A GRPO run, until it was at the goal or out of steps."""

    steps: int
    tokens: int
    """Of its completions."""
    dev: float
    """The last accuracy measured."""

    @property
    def arrived(self) -> bool:
        return self.dev >= GOAL


@dataclass(frozen=True)
class Comparison:
    """What one seed gives."""

    pass_rates: dict[int, float]
    """Of the SFT model, by the length of the chains."""
    probe_tokens: int
    active: int
    filtered: Climb
    unfiltered: Climb

    @property
    def ratio(self) -> float:
        """Tokens without the filter to those with it, its probe included."""
        return self.unfiltered.tokens / (self.filtered.tokens + self.probe_tokens)

    @property
    def ratio_of_training(self) -> float:
        """The same without the probe's tokens."""
        return self.unfiltered.tokens / self.filtered.tokens


def write_data(folder: Path, seed: int) -> None:
    """The prepared datasets `sft` and `grpo`, of distinct problems."""
    rng = random.Random(seed)
    needed = {length: TRAIN[length] + DEV.get(length, 0) for length in TRAIN}
    drawn: dict[int, list[str]] = {}
    for length, count in needed.items():
        extra = DEMONSTRATIONS.get(length, (0, 0.0))[0]
        drawn[length] = list(arithmetic.distinct_chains(rng, length, count + extra))

    def take(length: int, count: int, bare: float | None = None) -> list[Problem]:
        chains, drawn[length] = drawn[length][:count], drawn[length][count:]
        return [problem(chain, None if bare is None else rng.random() < bare) for chain in chains]

    splits = {
        "sft/train": [row for length, (count, bare) in DEMONSTRATIONS.items() for row in take(length, count, bare)],
        "grpo/train": [row for length, count in TRAIN.items() for row in take(length, count)],
        "grpo/dev": [row for length, count in DEV.items() for row in take(length, count)],
    }
    for name, rows in splits.items():
        path = folder / f"{name}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(row.model_dump_json(exclude_defaults=True) + "\n" for row in rows), encoding="utf-8")


def problem(chain: str, bare: bool | None) -> Problem:
    """A chain as a problem, with a demonstration unless `bare` is None."""
    answer = f"#{arithmetic.result(chain)}"
    solution = None if bare is None else answer if bare else "\n".join([*arithmetic.steps(chain), answer])
    return Problem(
        id=chain,
        source=str(len(arithmetic.steps(chain)) + 1),
        prompt=chain,
        answer=arithmetic.result(chain),
        verifier="numeric",
        solution=solution,
    )


def start(folder: Path, module: str, spec: dict[str, Any]) -> subprocess.Popen[str]:
    """Start a stage process; what it says goes to a file beside its output."""
    output = Path(spec["output"])
    output.mkdir(parents=True)
    path = folder / f"{output.name}.json"
    path.write_text(json.dumps(spec), encoding="utf-8")
    log = (folder / f"{output.name}.log").open("w", encoding="utf-8")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", module, str(path)]
    return subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log, text=True, env=environment)


def complete(folder: Path, module: str, spec: dict[str, Any]) -> Path:
    """Run a stage to its end; returns its output. Raises RuntimeError with what it said when it fails."""
    if start(folder, module, spec).wait():
        raise RuntimeError((folder / f"{Path(spec['output']).name}.log").read_text(encoding="utf-8"))
    return Path(spec["output"])


def climb(folder: Path, name: str, spec: dict[str, Any]) -> Climb:
    """Run GRPO until the goal is reached, or to its end."""
    spec = {**spec, "output": str(folder / name)}
    process = start(folder, "tasks.training.grpo", spec)
    history = Path(spec["output"]) / "history.jsonl"
    while process.poll() is None:
        time.sleep(0.5)
        if progress(history).arrived:
            process.terminate()
            process.wait()
            return progress(history)
    if process.returncode:
        raise RuntimeError((folder / f"{name}.log").read_text(encoding="utf-8"))
    return progress(history)


def progress(history: Path) -> Climb:
    """How far a run is, by its history; at the goal it ends, whatever it has written since."""
    steps, tokens, dev, measured = 0, 0.0, 0.0, 0
    lines = history.read_text(encoding="utf-8").splitlines(keepends=True) if history.is_file() else []
    for line in lines:
        if not line.endswith("\n"):
            break
        entry = json.loads(line)
        if "completions/mean_length" in entry:
            steps, tokens = entry["step"], tokens + entry["completions/mean_length"] * PROMPTS * GROUP
        if "dev/accuracy" in entry:
            dev, measured = entry["dev/accuracy"], entry["step"]
        # A step's accuracy is written before its log, which has its tokens.
        if dev >= GOAL and measured <= steps:
            break
    if measured > steps:
        dev = 0.0
    return Climb(steps, round(tokens), dev)


def compare(folder: Path, seed: int) -> Comparison:
    """Data, SFT, the probe and both GRPO runs of a seed."""
    write_data(folder, seed)
    common = {"seed": seed, "dtype": "float32"}
    sft = {"model": str(ROOT / "data" / "base"), "data": str(folder / "sft"), "output": str(folder / "sft-out")}
    model = complete(folder, "tasks.training.sft", {**common, **sft, "trainer": SFT}) / "model"
    probing = {
        "model": str(model),
        "data": str(folder / "grpo"),
        "output": str(folder / "probe-out"),
        "samples": SAMPLES,
        "dev_prompts": 1,
        "train_prompts": sum(TRAIN.values()),
        "sampling": {"max_tokens": MAX_TOKENS},
    }
    probe = complete(folder, "tasks.probing.process", {**common, **probing}) / "train.jsonl"
    probed = read(probe)
    spec = {
        **common,
        "model": str(model),
        "data": str(folder / "grpo"),
        "trainer": GRPO,
        "selection": {"eval_steps": EVAL_STEPS, "prompts": sum(DEV.values()), "early_stopping_patience": 10**6},
    }
    filtered = climb(folder, "filtered", {**spec, "probed": str(probe), "difficulty": {}})
    unfiltered = climb(folder, "unfiltered", spec)
    attempts = {length: [a for p in probed if p.source == str(length) for a in p.attempts] for length in TRAIN}
    comparison = Comparison(
        pass_rates={length: sum(a.right for a in found) / len(found) for length, found in attempts.items()},
        probe_tokens=sum(attempt.tokens for found in attempts.values() for attempt in found),
        active=json.loads((folder / "filtered" / "difficulty.json").read_text(encoding="utf-8"))["active"],
        filtered=filtered,
        unfiltered=unfiltered,
    )
    print(f"seed {seed}: {comparison}", file=sys.stderr, flush=True)
    return comparison


def table(comparisons: dict[int, Comparison]) -> str:
    """A row for each seed, and the medians of the ratios."""
    columns = [
        "seed",
        f"pass rate of lengths {', '.join(map(str, TRAIN))}",
        "active",
        "steps with",
        "steps without",
        "probe tokens",
        "training tokens with",
        "training tokens without",
        "ratio, probe counted",
        "ratio, training alone",
    ]
    rows = [columns, ["---"] * len(columns)]
    for seed, each in comparisons.items():
        runs = each.filtered, each.unfiltered
        cells = [
            seed,
            ", ".join(f"{rate:.2f}" for rate in each.pass_rates.values()),
            each.active,
            *(run.steps if run.arrived else f"> {run.steps}" for run in runs),
            f"{each.probe_tokens:,}",
            *(f"{run.tokens:,}" for run in runs),
            f"{each.ratio:.2f}",
            f"{each.ratio_of_training:.2f}",
        ]
        rows.append([str(cell) for cell in cells])
    found = comparisons.values()
    return (
        "\n".join(f"| {' | '.join(row)} |" for row in rows)
        + f"\n\nWithout the filter it takes, in the median of {len(found)} seeds,"
        f" {median(each.ratio for each in found):.2f} times the tokens with the probe counted, and"
        f" {median(each.ratio_of_training for each in found):.2f} times in training alone."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    seeds = range(1, parser.parse_args().seeds + 1)
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(2) as pool:
        folders = [Path(scratch) / str(seed) for seed in seeds]
        print(table(dict(zip(seeds, pool.map(compare, folders, seeds), strict=True))))


if __name__ == "__main__":
    main()
