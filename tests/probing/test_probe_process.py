"""The probe as a process of its own: what it writes, that it repeats, and how it refuses."""

import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from tasks.errors import UserError
from tasks.probing import measure, read
from tasks.probing.process import work
from tasks.probing.sampling import Sampling, attempt, choose
from tasks.probing.spec import ProbeSpec
from tasks.problems import Problem, read_split
from tasks.processes import contract


@pytest.fixture
def data(tmp_path, problems) -> Path:
    """Dev and train rows, the last of each without anything to verify."""
    folder = tmp_path / "prepared"
    folder.mkdir()
    unverifiable = Problem(id="open", source="chains", prompt="9+9", solution="#18")
    for split, rows in (("dev", problems[:6]), ("train", problems[4:]), ("eval", [])):
        lines = (row.model_dump_json(exclude_defaults=True) + "\n" for row in [*rows, unverifiable])
        (folder / f"{split}.jsonl").write_text("".join(lines))
    return folder


@pytest.fixture
def spec(tmp_path, data, base):
    """A spec with this much changed, and an output folder of its own."""

    def build(**changes: Any) -> ProbeSpec:
        output = tmp_path / f"output-{len(list(tmp_path.iterdir()))}"
        output.mkdir()
        given = {
            "model": str(base),
            "data": data,
            "output": output,
            "seed": 3,
            "samples": 4,
            "dev_prompts": 5,
            "train_prompts": 100,
            "sampling": Sampling(max_tokens=48, batch_size=8),
        }
        return ProbeSpec(**{**given, **changes})

    return build


def test_it_writes_attempts_at_chosen_prompts_and_tells_how_it_goes(spec, data, model, tokenizer):
    here = spec()
    path = here.output.with_suffix(".json")
    path.write_text(here.model_dump_json())
    command = [sys.executable, "-m", "tasks.probing.process", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(path.name for path in here.output.iterdir()) == ["dev.jsonl", "train.jsonl"]

    dev, train = read(here.output / "dev.jsonl"), read(here.output / "train.jsonl")
    assert [prompt.id for prompt in dev] == [problem.id for problem in choose(read_split(data, "dev"), 5, 3)]
    assert len(dev) == 5
    assert len(train) == 6
    assert all(found.chance is not None for prompt in dev for found in prompt.attempts)
    assert all(found.chance is None for prompt in train for found in prompt.attempts)
    chosen = choose(read_split(data, "dev"), 5, 3)
    sampled = [prompt.model_copy(update={"greedy": None}) for prompt in dev]
    assert sampled == attempt(model, tokenizer, chosen, 4, here.sampling, 3, chance=True)
    greedy = attempt(model, tokenizer, chosen, 1, replace(here.sampling, temperature=0.0), 3)
    assert [prompt.greedy for prompt in dev] == [prompt.attempts[0] for prompt in greedy]
    assert all(prompt.greedy is None for prompt in train)

    lines = done.stdout.splitlines()
    assert len(lines) == 6
    figures = measure(dev, group=4, max_tokens=48)
    assert lines[0].startswith("dev  2/5 prompts  pass@1 0.")
    assert lines[2] == f"dev  5/5 prompts  pass@1 {figures.pass_at_1:.2f}"
    assert lines[-1].startswith("train  6/6 prompts  pass@1 ")

    again = spec()
    work(again)
    for name in ("dev.jsonl", "train.jsonl"):
        assert (again.output / name).read_bytes() == (here.output / name).read_bytes()


def test_no_train_prompts_make_an_empty_file(spec):
    here = spec(train_prompts=0)
    work(here)
    assert (here.output / "train.jsonl").read_bytes() == b""
    assert read(here.output / "dev.jsonl")


def test_a_dev_split_without_anything_to_verify_is_refused(spec, data):
    lines = (data / "dev.jsonl").read_text().splitlines()
    (data / "dev.jsonl").write_text(lines[-1] + "\n")
    with pytest.raises(UserError) as error:
        work(spec())
    assert str(error.value) == (
        f"{data / 'dev.jsonl'}: no row can be verified, and whether GRPO is worth it is decided on the dev split; give"
        " a source with a `verifier` and an `answer` a share of it: data.sources.NAME.split.dev"
    )


def test_a_model_that_is_none_is_refused(spec, tmp_path):
    with pytest.raises(UserError, match=r"nowhere has no config\.json"):
        work(spec(model=str(tmp_path / "nowhere")))


def test_a_model_without_safetensors_is_refused(spec, base, tmp_path):
    folder = shutil.copytree(base, tmp_path / "model")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(UserError, match=r"model cannot be loaded: .*safetensors"):
        work(spec(model=str(folder)))


def test_a_model_without_a_chat_template_is_refused(spec, base, tmp_path):
    folder = shutil.copytree(base, tmp_path / "model")
    (folder / "chat_template.jinja").unlink()
    with pytest.raises(UserError, match="has no chat template"):
        work(spec(model=str(folder)))


def test_the_parents_contract_is_kept(spec, data, base, tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(base)
    messages = [row.messages for row in read_split(data, "train")]
    kept, broken = tmp_path / "kept", tmp_path / "broken"
    for folder in (kept, broken):
        folder.mkdir()
    contract.write(contract.state(tokenizer, [1], messages, data), kept)
    tokenizer.chat_template += " "
    contract.write(contract.state(tokenizer, [1], messages, data), broken)

    work(spec(parent_contract=kept / contract.FILE))
    with pytest.raises(UserError, match="another chat template"):
        work(spec(parent_contract=broken / contract.FILE))
