"""What can be known of a training stage before anything runs: `python -m tasks.training.check SPEC`.

A process of its own, so that the one that asks imports no torch and opens no GPU.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tasks.errors import UserError
from tasks.processes.entry import run
from tasks.training import grpo, sft
from tasks.training.spec import CheckSpec


def check(spec: CheckSpec) -> None:
    """Build each stage's TRL and PEFT configuration as the stage will, and look at its rows if they are prepared.

    Raises UserError with a line for every fault, which names the stage.
    """
    from tasks.training.arguments import lora_config

    faults: list[str] = []
    if training := spec.stages.get("sft"):
        with _noted(faults):
            sft.arguments(training)
        with _noted(faults):
            lora_config("sft", training)
        if _is_prepared(training.data):
            with _noted(faults, "sft: "):
                sft.solved_rows(training.data)
    if training := spec.stages.get("grpo"):
        with _noted(faults):
            config = grpo.arguments(training)
            if _is_prepared(training.data):
                with _noted(faults, "grpo: "):
                    grpo.check_prompts(config, len(grpo.verifiable_rows(training.data)), training.data)
        with _noted(faults):
            lora_config("grpo", training)
    if faults:
        raise UserError("\n".join(faults))


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
