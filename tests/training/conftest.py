"""The embedded base model and a small prepared dataset of chains."""

import json
import random
from pathlib import Path

import pytest

from tasks.training.spec import TrainingSpec

BASE = Path(__file__).parents[2] / "data" / "base"


def rows(count: int) -> list[dict[str, object]]:
    rng = random.Random(7)
    found = []
    for index in range(count):
        a, b, c = (rng.randint(1, 9) for _ in range(3))
        worked = f"{a}+{b}={a + b}\n{a + b}-{c}={a + b - c}\n#{a + b - c}"
        found.append(
            {
                "id": f"row-{index}",
                "source": "chains",
                "prompt": f"{a}+{b}-{c}",
                "answer": str(a + b - c),
                "verifier": "numeric",
                "solution": worked if index % 3 else f"#{a + b - c}",
            }
        )
    return found


@pytest.fixture(scope="session")
def base() -> Path:
    return BASE


@pytest.fixture(scope="session")
def data(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("prepared")
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows(64)))
    return folder


@pytest.fixture
def spec_of(tmp_path, base, data, quick):
    """A spec with this much changed: `trainer` is added to the quick arguments."""

    def build(trainer=None, **changed) -> TrainingSpec:
        output = tmp_path / f"output-{len(list(tmp_path.iterdir()))}"
        output.mkdir()
        fields = {"model": str(base), "data": data, "output": output, "seed": 1, **changed}
        return TrainingSpec(**fields, trainer={**quick, "max_steps": 2, **(trainer or {})})

    return build


@pytest.fixture(scope="session")
def quick() -> dict[str, object]:
    """Trainer arguments for the tiny model on a CPU."""
    return {"bf16": False, "gradient_checkpointing": False, "logging_steps": 1}
