"""The base model that is shipped is the one that its script builds."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tasks.training.model import end_tokens

DATA = Path(__file__).resolve().parents[1] / "data"
ITEMS = 200


def skill(folder: Path, problems: Path) -> float:
    """Share of problems that a model works out right, greedily; it need not state the answer."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    rows = [json.loads(line) for line in problems.read_text().splitlines()[:ITEMS]]
    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(folder)
    prompts = tokenizer.apply_chat_template(
        [[{"role": "user", "content": row["prompt"]}] for row in rows],
        add_generation_prompt=True,
        padding=True,
        return_tensors="pt",
        return_dict=True,
    )
    answers = model.generate(**prompts, do_sample=False, max_new_tokens=48)[:, prompts["input_ids"].shape[1] :]
    texts = tokenizer.batch_decode(answers, skip_special_tokens=True)
    return sum(text.split("=")[-1] == row["answer"] for text, row in zip(texts, rows, strict=True)) / len(rows)


@pytest.fixture(scope="module")
def problems(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("arithmetic")
    subprocess.run([sys.executable, DATA / "arithmetic.py", "--out", folder], check=True)
    return folder


def test_the_problems_are_the_same_bytes_everywhere(problems: Path) -> None:
    import hashlib

    lock = (DATA / "dvc.lock").read_text()
    for file in problems.iterdir():
        assert hashlib.md5(file.read_bytes(), usedforsecurity=False).hexdigest() in lock


def test_the_shipped_base_is_small_safe_and_ends_its_turn() -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    files = list((DATA / "base").iterdir())
    assert sum(file.stat().st_size for file in files) < 2_000_000
    assert {file.suffix for file in files} == {".json", ".jinja", ".safetensors"}
    model = AutoModelForCausalLM.from_pretrained(DATA / "base")
    tokenizer = AutoTokenizer.from_pretrained(DATA / "base")
    assert tokenizer.convert_ids_to_tokens(sorted(end_tokens(model, tokenizer))) == ["<|end|>"]


@pytest.mark.slow
def test_a_rebuilt_base_is_as_good_as_the_shipped_one(problems: Path, tmp_path: Path) -> None:
    subprocess.run([sys.executable, DATA / "base.py", "--out", tmp_path / "base"], check=True, stdout=subprocess.PIPE)
    for name in ("chains", "short", "long"):
        shipped = skill(DATA / "base", problems / f"{name}.jsonl")
        rebuilt = skill(tmp_path / "base", problems / f"{name}.jsonl")
        assert shipped >= 0.98
        assert rebuilt >= shipped - 0.02
