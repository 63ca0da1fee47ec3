"""What stands in for Qwen2.5 and GSM8K without hub and GPU: a random Qwen2, and problems in the form of GSM8K's."""

import json
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.conftest import fresh_checkout as fresh_checkout

PROJECT = Path(__file__).resolve().parents[2]
RECIPE = PROJECT / "recipes" / "qwen2.5-0.5b-gsm8k"
COUNTS = {"train": 120, "test": 8}
PAD, _, END = SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHATML = (
    "{% if messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n' }}"
    "{% endif %}"
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def questions(split: str) -> Iterator[dict[str, str]]:
    """Problems in two steps, with the calculator's annotations and the last line of GSM8K."""
    rng = random.Random(split)
    for _ in range(COUNTS[split]):
        name, thing = rng.choice(["Ann", "Ben", "Cem", "Dana"]), rng.choice(["apples", "pens", "shells"])
        first, bags, each = rng.randint(2, 90), rng.randint(2, 9), rng.randint(100, 400)
        more = bags * each
        total = first + more
        shown = f"{total:,}" if rng.random() < 0.3 else f"{total}"
        yield {
            "question": f"{name} has {first} {thing} and buys {bags} bags with {each} {thing} in each. "
            f"How many {thing} does {name} have then?",
            "answer": f"In the bags there are {bags}*{each} = <<{bags}*{each}={more}>>{more} {thing}.\n"
            f"So {name} has {first}+{more} = <<{first}+{more}={total}>>{total} {thing}.\n#### {shown}",
        }


@pytest.fixture(scope="session")
def gsm8k(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in the form of GSM8K: train.jsonl and test.jsonl."""
    folder = tmp_path_factory.mktemp("gsm8k")
    for split in COUNTS:
        lines = (json.dumps(row) + "\n" for row in questions(split))
        (folder / f"{split}.jsonl").write_text("".join(lines))
    return folder


@pytest.fixture(scope="session")
def tiny_qwen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Qwen2 of two layers with random weights, a byte-level BPE trained on the problems, and a ChatML template."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

    folder = tmp_path_factory.mktemp("qwen") / "tiny"
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=512, special_tokens=[*SPECIAL], initial_alphabet=alphabet, show_progress=False
    )
    bpe.train_from_iterator((text for row in questions("train") for text in row.values()), trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token=END, pad_token=PAD, chat_template=CHATML)
    end, pad = tokenizer.eos_token_id, tokenizer.pad_token_id
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=len(tokenizer),
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=1024,
            tie_word_embeddings=True,
            bos_token_id=pad,
            eos_token_id=end,
            pad_token_id=pad,
        )
    )
    # As Qwen2.5-Instruct has it: settings of its own for sampling, which no measurement may take over.
    model.generation_config = GenerationConfig(
        do_sample=True,
        temperature=0.7,
        top_p=0.8,
        top_k=20,
        repetition_penalty=1.1,
        bos_token_id=pad,
        eos_token_id=[end, pad],
        pad_token_id=pad,
    )
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def write_problems(*arguments: str | Path, project: Path = PROJECT) -> "subprocess.CompletedProcess[str]":
    """`python recipes/qwen2.5-0.5b-gsm8k/problems.py ARGUMENTS` in a project."""
    script = project / RECIPE.relative_to(PROJECT) / "problems.py"
    return subprocess.run([sys.executable, script, *arguments], cwd=project, capture_output=True, text=True)
