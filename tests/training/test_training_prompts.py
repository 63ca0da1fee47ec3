"""What SFT and GRPO make of prompts, and the contract that SFT leaves: with real TRL, on tokenizers that tempt it."""

import json
import shutil

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from tasks.errors import UserError
from tasks.problems import read_split
from tasks.processes import contract
from tasks.training import sft

MARKED = (
    "{% for m in messages %}{% if m.role == 'assistant' %}<|assistant|>{% generation %}{{ m.content }}<|end|>"
    "{% endgeneration %}{% else %}<|user|>{{ m.content }}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def prompts(data):
    return [row.messages for row in read_split(data, "train")]


def changed_template(base, folder, old, new):
    """A copy of the base with something else in its chat template."""
    shutil.copytree(base, folder)
    template = folder / "chat_template.jinja"
    assert old in template.read_text()
    template.write_text(template.read_text().replace(old, new))
    return folder


def contract_of_saved(spec):
    """What a later stage states of the model that the stage has saved."""
    folder = spec.output / "model"
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    return contract.state(tokenizer, contract.end_tokens(model, tokenizer), prompts(spec.data), spec.data)


@pytest.mark.parametrize(
    "trainer",
    [
        {},
        {"chat_template_path": "given.jinja"},
        {"assistant_only_loss": True, "chat_template_path": "given.jinja"},
        {"completion_only_loss": False},
        {"shuffle_dataset": True},
        {"packing": True, "max_length": 64},
    ],
)
def test_the_contract_is_that_of_the_saved_model(spec_of, tmp_path, trainer):
    if "chat_template_path" in trainer:
        (tmp_path / "given.jinja").write_text(MARKED)
        trainer = {**trainer, "chat_template_path": str(tmp_path / "given.jinja")}
    spec = spec_of(trainer)
    sft.train(spec)
    assert contract.read(spec.output / "contract.json") == contract_of_saved(spec)
    assert str(tmp_path) not in (spec.output / "contract.json").read_text()


@pytest.mark.parametrize("end", ["<|user|>", "#"])
def test_an_end_that_sft_sets_is_in_the_contract(spec_of, base, tmp_path, end):
    """Saved, the ordinary word `#` becomes one that is split off: the contract is of what is saved."""
    model = changed_template(base, tmp_path / "model", "'<|end|>'", f"'{end}'")
    spec = spec_of({"eos_token": end}, model=str(model))
    sft.train(spec)
    stated = contract.read(spec.output / "contract.json")
    before = AutoTokenizer.from_pretrained(base)
    assert stated.end_tokens == tuple(sorted({1, before.convert_tokens_to_ids(end)}))
    assert stated == contract_of_saved(spec)
    assert (stated.tokenizer == contract.tokenizer_digest(before)) == (end == "<|user|>")


@pytest.mark.parametrize("trainer", [{}, {"packing": True, "max_length": 64}])
def test_a_template_that_opens_a_given_answer_otherwise_is_refused(spec_of, base, tmp_path, trainer):
    model = changed_template(base, tmp_path / "model", "{{ '<|assistant|>' }}", "{{ '<|assistant|>\n' }}")
    with pytest.raises(UserError, match=r"begins an answer that is given otherwise.*in row row-0, token 8 is '#'.*\\n"):
        sft.train(spec_of(trainer, model=str(model)))


def test_a_template_that_writes_the_date_is_refused(spec_of, base, tmp_path):
    model = changed_template(base, tmp_path / "model", "{% for", "{{ strftime_now('%d') }}{% for")
    with pytest.raises(UserError, match=r"today's date.*write a fixed date into a copy of it, named in sft\."):
        sft.train(spec_of(model=str(model)))


def test_prompts_that_saving_would_change_are_refused(spec_of, data, tmp_path):
    """The end is an ordinary word of the vocabulary: once saved, the tokenizer splits it off from its space."""
    words = Tokenizer(models.BPE())
    words.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    words.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    learn = trainers.BpeTrainer(special_tokens=["<pad>"], initial_alphabet=alphabet, show_progress=False)
    words.train_from_iterator(["halt halt now halt", "halt"], learn)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>")  # noqa: S106
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m.role }}: {{ m.content }}halt{% endfor %}"
        "{% if add_generation_prompt %}assistant: {% endif %}"
    )
    assert "halt" in tokenizer.get_vocab()
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), **sizes)).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    rows = [json.loads(line) for line in (data / "train.jsonl").read_text().splitlines()]
    for row in rows:
        row["prompt"] = "now halt " + row["prompt"]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(
        UserError, match=r"^sft reads other token ids than the chat template gives, in prompt 1: .*halt"
    ):
        sft.train(spec_of({"eos_token": "halt"}, model=str(tmp_path / "model"), data=tmp_path))


def test_a_stage_holds_to_the_contract_of_its_parent(spec_of, tmp_path):
    first = spec_of()
    sft.train(first)
    made = {"model": str(first.output / "model"), "parent_contract": first.output / "contract.json"}
    second = spec_of(**made)
    sft.train(second)
    assert (second.output / "contract.json").read_bytes() == (first.output / "contract.json").read_bytes()

    changed_template(first.output / "model", tmp_path / "changed", "{% for", "{{ '#' }}{% for")
    third = spec_of(**{**made, "model": str(tmp_path / "changed")})
    with pytest.raises(UserError, match=f"^another chat template: not what the model in {first.output} was trained"):
        sft.train(third)
    assert not {path.name for path in third.output.iterdir()} & {"model", "contract.json"}


@pytest.fixture
def grpo_trainer(base, data, tmp_path):
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    def build(**arguments) -> GRPOTrainer:
        return GRPOTrainer(
            model=str(base),
            reward_funcs=lambda completions, **_: [0.0] * len(completions),
            args=GRPOConfig(output_dir=str(tmp_path / "work"), report_to="none", bf16=False, **arguments),
            train_dataset=Dataset.from_dict({"prompt": prompts(data)}),
            processing_class=AutoTokenizer.from_pretrained(base),
        )

    return build


def test_what_grpo_samples_from_is_what_sft_has_taught(grpo_trainer, data):
    from tasks.training.model import trainer_prompt_ids

    trainer = grpo_trainer()
    found = trainer_prompt_ids(trainer, prompts(data))
    # The method is not TRL's to keep, so the stage does not call it; that the two agree is seen here.
    assert found == trainer._tokenize_prompts(prompts(data))[0]
    contract.check_same_ids(trainer.processing_class, prompts(data), found, "grpo")


def test_template_arguments_of_grpo_alone_are_found_out(grpo_trainer, data):
    from tasks.training.model import trainer_prompt_ids

    trainer = grpo_trainer(chat_template_kwargs={"thinks": True})
    trainer.processing_class.chat_template += "{% if thinks %}#{% endif %}"
    found = trainer_prompt_ids(trainer, prompts(data))
    assert found == trainer._tokenize_prompts(prompts(data))[0]
    with pytest.raises(UserError, match=r"^grpo reads other .* is '#' .* the end .*chat_template_kwargs changes"):
        contract.check_same_ids(trainer.processing_class, prompts(data), found, "grpo")
