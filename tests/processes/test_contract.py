"""The contract of stages, with real tokenizers: what counts as the same, and what is refused and how."""

import shutil
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, ByT5Tokenizer, PreTrainedTokenizerFast, Qwen2Tokenizer

from tasks.errors import UserError
from tasks.processes import contract

BASE = Path(__file__).parents[2] / "data" / "base"
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
PROMPTS = [[{"role": "user", "content": f"what is {n}+{n}?"}] for n in range(70)]


def byte_pairs(text: str = "user assistant what is the answer") -> Tokenizer:
    """Byte pairs as Qwen's, which put `<s>` before a text as Llama's do."""
    found = Tokenizer(models.BPE())
    found.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    found.decoder = decoders.ByteLevel()
    found.train_from_iterator(
        [text] * 3,
        trainers.BpeTrainer(
            vocab_size=300,
            special_tokens=["<s>", "<|endoftext|>", "<|im_start|>", "<|im_end|>"],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    found.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return found


def chatml(template: str = CHATML, **changed) -> PreTrainedTokenizerFast:
    names = {"bos_token": "<s>", "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=byte_pairs(), **{**names, **changed})
    tokenizer.chat_template = template
    return tokenizer


def qwen() -> Qwen2Tokenizer:
    model = byte_pairs().model
    vocab = {model.id_to_token(number): number for number in range(300)}
    found = Qwen2Tokenizer(vocab={word: number for word, number in vocab.items() if word}, merges=[])
    found.add_special_tokens({"eos_token": "<|im_end|>", "additional_special_tokens": ["<|im_start|>"]})
    found.chat_template = CHATML
    return found


def bytes_alone() -> ByT5Tokenizer:
    """A tokenizer that is Python code, without the `tokenizers` library."""
    found = ByT5Tokenizer()
    found.chat_template = CHATML
    return found


def loaded(folder: Path, tokenizer):
    tokenizer.save_pretrained(folder)
    return AutoTokenizer.from_pretrained(folder)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "prepared"
    folder.mkdir()
    for split in ("train", "dev", "eval"):
        (folder / f"{split}.jsonl").write_text(f'{{"id": "{split}"}}\n')
    return folder


@pytest.fixture
def stage(tmp_path: Path, data: Path):
    """The contract of a stage with this tokenizer, as its successor finds it: the file in the stage's folder."""

    def build(tokenizer, ends=(3,), name="sft") -> Path:
        folder = tmp_path / name
        folder.mkdir()
        contract.write(contract.state(tokenizer, ends, PROMPTS, data), folder)
        return folder / "contract.json"

    return build


@pytest.mark.parametrize("build", [chatml, qwen, bytes_alone, lambda: AutoTokenizer.from_pretrained(BASE)])
def test_a_tokenizer_that_was_saved_loaded_and_used_is_the_same(tmp_path: Path, data: Path, build) -> None:
    tokenizer, prompts = build(), [[{"role": "user", "content": "1+2"}]]
    before = contract.state(tokenizer, [1], prompts, data)
    once = loaded(tmp_path / "once", tokenizer)
    once.padding_side = "left"
    once(["1", "1+2"], padding="max_length", max_length=9, truncation=True)
    assert contract.state(once, [1], prompts, data) == before
    assert contract.state(loaded(tmp_path / "twice", once), [1], prompts, data) == before


def test_what_changes_the_ids_of_a_text_makes_another_tokenizer() -> None:
    found = [byte_pairs() for _ in range(5)]
    found[1].add_tokens(["answer"])
    found[2].pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    found[3].post_processor = processors.TemplateProcessing(single="$A <s>", special_tokens=[("<s>", 0)])
    found[4] = byte_pairs("another text to learn pairs from")
    digests = [contract.tokenizer_digest(PreTrainedTokenizerFast(tokenizer_object=each)) for each in found]
    assert len(set(digests)) == 5
    slow, more = bytes_alone(), bytes_alone()
    more.add_tokens(["answer"])
    assert contract.tokenizer_digest(slow) != contract.tokenizer_digest(more)


def test_the_file_tells_of_content_alone(tmp_path: Path, data: Path, stage) -> None:
    here = stage(chatml())
    shutil.copytree(data, tmp_path / "elsewhere" / "copy")
    there = tmp_path / "elsewhere"
    contract.write(contract.state(chatml(), [3, 3], PROMPTS, there / "copy"), there)
    assert here.read_bytes() == (there / "contract.json").read_bytes()
    assert str(tmp_path).encode() not in here.read_bytes()
    assert contract.read(here).end_tokens == (3,)
    assert list(contract.read(here).data) == ["dev.jsonl", "eval.jsonl", "train.jsonl"]


def test_a_stage_like_its_parent_and_one_without_a_parent_pass(data: Path, stage) -> None:
    stated = contract.state(chatml(), [3], PROMPTS, data)
    contract.check_parent(stated, stage(chatml()))
    contract.check_parent(stated, None)


@pytest.mark.parametrize(
    ("changed", "ends", "says"),
    [
        ({"template": CHATML.replace("\n", "")}, [3], "^another chat template: not what the model in {folder} was"),
        ({"eos_token": "<|endoftext|>"}, [1, 3], r"^other end tokens, ids \[1, 3\] in place of \[3\]: not what"),
        ({"extra_special_tokens": ["<turn>"]}, [3], "^another tokenizer: not what the model in {folder} was trained"),
        ({"template": "x"}, [1], r"^another chat template and other end tokens, ids \[1\].*save.*run all stages again"),
    ],
)  # fmt: skip
def test_a_stage_that_reads_or_ends_otherwise_than_its_parent_is_refused(
    data: Path, stage, changed, ends, says
) -> None:
    parent = stage(chatml())
    stated = contract.state(chatml(**changed), ends, PROMPTS, data)
    with pytest.raises(UserError, match=says.replace("{folder}", str(parent.parent))):
        contract.check_parent(stated, parent)


def test_other_data_are_refused_by_the_files_that_differ(data: Path, stage) -> None:
    parent = stage(chatml())
    (data / "dev.jsonl").write_text('{"id": "other"}\n')
    (data / "eval.jsonl").unlink()
    stated = contract.state(chatml(), [3], PROMPTS, data)
    with pytest.raises(UserError, match=rf"not those that {parent.parent} was.*: dev\.jsonl, eval\.jsonl differ"):
        contract.check_parent(stated, parent)


def test_a_template_that_writes_the_time_is_found_out(data: Path, stage) -> None:
    dated = CHATML + "{{ strftime_now('%f') }}"
    parent = stage(chatml(dated))
    with pytest.raises(UserError, match=r"the same prompts become other token ids .* such as today's date"):
        contract.check_parent(contract.state(chatml(dated), [3], PROMPTS, data), parent)


def test_a_parent_without_a_contract_is_told(tmp_path: Path, data: Path) -> None:
    stated = contract.state(chatml(), [3], PROMPTS, data)
    missing = tmp_path / "contract.json"
    with pytest.raises(UserError, match=rf"^{missing}: the stage has left no contract .*; run that stage again$"):
        contract.check_parent(stated, missing)
    missing.write_text('{"tokenizer": 1}')
    with pytest.raises(UserError, match=rf"^{missing}: not a contract .*; run that stage again$"):
        contract.check_parent(stated, missing)


def test_prompts_are_the_template_and_nothing_added() -> None:
    tokenizer = chatml("<s>" + CHATML)
    assert tokenizer("what").input_ids[0] == 0
    (ids,) = contract.prompt_ids(tokenizer, PROMPTS[:1])
    assert tokenizer.decode(ids) == "<s><|im_start|>user\nwhat is 0+0?<|im_end|>\n<|im_start|>assistant\n"
    assert ids.count(0) == 1
    contract.check_same_ids(tokenizer, PROMPTS, contract.prompt_ids(tokenizer, PROMPTS), "grpo")


def test_a_beginning_that_is_there_twice_is_shown() -> None:
    """The template writes `<s>`; its text, tokenized as any other text, gets one more."""
    tokenizer = chatml("<s>" + CHATML)
    texts = [tokenizer.apply_chat_template(each, tokenize=False, add_generation_prompt=True) for each in PROMPTS]
    with pytest.raises(UserError) as raised:
        contract.check_same_ids(tokenizer, PROMPTS, tokenizer(texts).input_ids, "grpo")
    assert str(raised.value).startswith(
        "grpo reads other token ids than the chat template gives, in prompt 1: token 1 is '<s>' (0) in"
        " '<s><s><|im_start|>user\\n' and should be '<|im_start|>' (2) in '<s><|im_start|>user\\n"
    )


def test_a_prompt_that_goes_on_or_ends_early_is_shown_where_it_does() -> None:
    tokenizer = chatml()
    whole = contract.prompt_ids(tokenizer, PROMPTS)
    with pytest.raises(
        UserError, match=rf"in prompt 3: token {len(whole[2]) - 1} is the end in .* and should be '\\n'"
    ):
        contract.check_same_ids(tokenizer, PROMPTS, [*whole[:2], whole[2][:-1], *whole[3:]], "dpo")
    with pytest.raises(
        UserError, match=rf"in prompt 1: token {len(whole[0])} is '<\|im_end\|>' \(3\) in .* the end in"
    ):
        contract.check_same_ids(tokenizer, PROMPTS, [[*whole[0], 3], *whole[1:]], "dpo")


@pytest.mark.parametrize(("configured", "ends"), [(None, [3]), (1, [1, 3]), ([3, 1], [3, 1])])
def test_a_turn_ends_where_generation_stops_and_where_the_tokenizer_says(configured, ends) -> None:
    from transformers import GenerationConfig

    assert contract.configured_ends(GenerationConfig(eos_token_id=configured), chatml()) == ends
