"""What can be known of training stages before anything runs: `python -m tasks.training.check SPEC`.

A process of its own, so that the one that asks imports no torch, opens no GPU and runs no reward of the user's.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tasks.errors import UserError
from tasks.probing.pairs import given_pairs
from tasks.problems import read_split
from tasks.processes.entry import run
from tasks.training import dpo, grpo, sft
from tasks.training.spec import CheckSpec, DPOSpec, GRPOSpec, TrainingSpec

if TYPE_CHECKING:
    from trl import GRPOConfig


def check(spec: CheckSpec) -> None:
    """Build each stage's TRL and PEFT configuration as the stage will, and look at its rows if they are prepared.

    The user's reward is loaded, and asked about a row if there is one. DPO needs no pairs here: they may be made later.
    Raises UserError with a line for every fault, which names the stage.
    """
    faults: list[str] = []
    if spec.sft:
        _check_sft(spec.sft, faults)
    if spec.dpo:
        _check_dpo(spec.dpo, faults)
    if spec.grpo:
        _check_grpo(spec.grpo, faults)
    if faults:
        raise UserError("\n".join(faults))


def _check_sft(spec: TrainingSpec, faults: list[str]) -> None:
    with _noted(faults):
        sft.arguments(spec)
    _check_adapter("sft", spec, faults)
    if _is_prepared(spec.data):
        with _noted(faults, "sft: "):
            sft.solved_rows(spec.data)


def _check_dpo(spec: DPOSpec, faults: list[str]) -> None:
    with _noted(faults):
        dpo.arguments(spec)
    _check_adapter("dpo", spec, faults)
    if _is_prepared(spec.data):
        with _noted(faults, "dpo: "):
            given_pairs(read_split(spec.data, "train"))


def _check_grpo(spec: GRPOSpec, faults: list[str]) -> None:
    from tasks.training.selection import dev_problems

    rows = grpo.verifiable_rows(spec.data) if _is_prepared(spec.data) else None
    with _noted(faults):
        config = grpo.arguments(spec)
        _check_vllm(config, faults)
        if rows is not None:
            with _noted(faults, "grpo: "):
                grpo.check_prompts(config, len(rows), spec.data)
    _check_adapter("grpo", spec, faults)
    with _noted(faults):
        grpo.own_reward(spec, rows or [])
    if rows is not None and spec.selection:
        with _noted(faults):
            dev_problems(spec.data, spec.selection.prompts, spec.seed)


def _check_vllm(config: "GRPOConfig", faults: list[str]) -> None:
    from trl.import_utils import is_vllm_available

    if config.use_vllm and not is_vllm_available():
        faults.append(
            "grpo.trainer.use_vllm is true, but vllm is not installed here; install it, or set grpo.trainer.use_vllm to"
            " false, which generates with transformers"
        )


def _check_adapter(stage: str, spec: TrainingSpec, faults: list[str]) -> None:
    from tasks.training.arguments import lora_config

    with _noted(faults):
        lora_config(stage, spec)


@contextmanager
def _noted(faults: list[str], prefix: str = "") -> Iterator[None]:
    try:
        yield
    except UserError as error:
        faults.append(f"{prefix}{error}")


def _is_prepared(data: Path) -> bool:
    return (data / "train.jsonl").is_file()


if __name__ == "__main__":
    run(CheckSpec, check)
