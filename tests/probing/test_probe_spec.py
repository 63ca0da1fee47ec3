"""That the probe samples as GRPO will: the settings against TRL's own configuration and trainer."""

import copy
from dataclasses import asdict

import pytest
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from tasks.errors import UserError
from tasks.probing.sampling import Sampling, generation_config
from tasks.probing.spec import DEFAULTS, ProbeSpec, group_size, sampling
from tasks.processes.contract import end_tokens


def test_the_defaults_are_trls():
    fields = GRPOConfig.__dataclass_fields__
    assert {name: fields[name].default for name in DEFAULTS} == DEFAULTS
    assert sampling({}, 256) == Sampling(max_tokens=512)
    assert group_size({}) == 8


def test_the_trainers_arguments_are_taken():
    given = {
        "temperature": 0.7,
        "top_p": 0.9,
        "top_k": 40,
        "min_p": 0.05,
        "repetition_penalty": 1.1,
        "max_completion_length": 128,
        "num_generations": 16,
        "learning_rate": 1e-6,
    }
    found = sampling(given, 32)
    assert found == Sampling(128, 0.7, 0.9, 40, 0.05, 1.1, batch_size=32)
    assert group_size(given) == 16


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"temperature": 0.7, "top_p": 0.9, "top_k": 3, "min_p": 0.05, "repetition_penalty": 1.1},
        {"generation_kwargs": {"max_new_tokens": 12, "min_p": 0.2, "suppress_tokens": [4]}},
    ],
)
def test_generate_is_told_what_grpo_tells_it(tmp_path, model, tokenizer, problems, arguments):
    model.generation_config.eos_token_id = [1, 5]
    arguments = {"max_completion_length": 24, **arguments}
    trainer = GRPOTrainer(
        model=copy.deepcopy(model),
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=GRPOConfig(output_dir=str(tmp_path), bf16=False, report_to="none", **arguments),
        train_dataset=Dataset.from_dict({"prompt": [problem.messages for problem in problems]}),
        processing_class=copy.deepcopy(tokenizer),
    )
    ours = generation_config(tokenizer, end_tokens(model, tokenizer), sampling(arguments, 8)).to_dict()
    theirs = trainer.generation_config.to_dict()
    assert {name for name in ours if ours[name] != theirs[name]} == {"use_cache"}


def test_max_tokens_is_what_generate_is_told():
    assert sampling({"generation_kwargs": {"max_new_tokens": 12}}, 8).max_tokens == 12


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            {"max_completion_length": None},
            "grpo.trainer.max_completion_length: Input should be a valid integer, not None",
        ),
        ({"temperature": "hot"}, "grpo.trainer.temperature: .*not 'hot'"),
        ({"top_p": 1.5}, "grpo.trainer.top_p: .*less than or equal to 1, not 1.5"),
        ({"chat_template_kwargs": "x"}, "grpo.trainer.chat_template_kwargs: .*not 'x'"),
    ],
)
def test_a_value_that_is_none_is_named_as_the_user_wrote_it(arguments, said):
    with pytest.raises(UserError, match=said):
        sampling(arguments, 8)


def test_a_spec_survives_its_file(tmp_path):
    spec = ProbeSpec(
        model="m",
        data=tmp_path,
        output=tmp_path,
        seed=1,
        samples=8,
        dev_prompts=1,
        train_prompts=0,
        sampling=sampling({"min_p": 0.1, "chat_template_kwargs": {"a": 1}}, 8),
    )
    assert ProbeSpec.model_validate_json(spec.model_dump_json()) == spec
    unknown = spec.model_dump(mode="json") | {"sampling": asdict(spec.sampling) | {"beams": 2}}
    with pytest.raises(ValueError, match=r"sampling\.beams"):
        ProbeSpec.model_validate(unknown)
