"""Sampling of attempts on the real tiny model: what is measured, and that measuring disturbs nothing."""

import copy
import dataclasses

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import GenerationConfig, TrainerCallback

from tasks.errors import UserError
from tasks.probing.sampling import Sampling, attempt, choose, strangers
from tasks.problems import Problem
from tasks.rewards import Status, verify

SAMPLING = Sampling(max_tokens=48)
GREEDY = dataclasses.replace(SAMPLING, temperature=0)


def chain(prompt: str, answer: str | None, **changes: object) -> Problem:
    fields = {"id": prompt, "source": "chains", "prompt": prompt, "answer": answer, "verifier": "numeric"}
    return Problem(**{**fields, **changes})


def test_attempts_are_verified_and_in_the_order_of_the_problems(model, tokenizer, problems):
    probed = attempt(model, tokenizer, problems, 8, SAMPLING, seed=1)
    assert [prompt.id for prompt in probed] == [problem.id for problem in problems]
    assert {len(prompt.attempts) for prompt in probed} == {8}
    for problem, prompt in zip(problems, probed, strict=True):
        for found in prompt.attempts:
            verdict = verify(found.completion, problem)
            assert (found.score, found.status, found.chance) == (verdict.score, verdict.status, None)
    statuses = {found.status for prompt in probed for found in prompt.attempts}
    assert {Status.RIGHT, Status.NO_ANSWER} <= statuses  # the base solves some, so there is something to compare


def test_the_seed_alone_decides(model, tokenizer, problems):
    first = attempt(model, tokenizer, problems, 4, SAMPLING, seed=1)
    torch.manual_seed(99)
    assert attempt(model, tokenizer, problems, 4, SAMPLING, seed=1) == first
    assert attempt(model, tokenizer, problems, 4, SAMPLING, seed=2) != first


def test_greedy_attempts_are_the_same_in_any_batch_and_alone(model, tokenizer, problems):
    together = attempt(model, tokenizer, problems, 2, GREEDY, seed=1)
    alone = [attempt(model, tokenizer, [problem], 1, GREEDY, seed=2)[0] for problem in problems]
    small = attempt(model, tokenizer, problems, 2, dataclasses.replace(GREEDY, batch_size=3), seed=3)
    assert len({len(prompt.id) for prompt in together}) > 3
    assert together == small
    for prompt, single in zip(together, alone, strict=True):
        assert prompt.attempts == single.attempts * 2


def test_every_sample_of_a_batch_is_a_sample_of_its_own(model, tokenizer, problems):
    (prompt,) = attempt(model, tokenizer, problems[:1], 16, SAMPLING, seed=1)
    assert len({found.completion for found in prompt.attempts}) > 1


def test_length_counts_the_end_and_a_cut_attempt_has_none(model, tokenizer, problems):
    whole = attempt(model, tokenizer, problems, 4, GREEDY, seed=1)
    for found in (found for prompt in whole for found in prompt.attempts):
        assert found.ended
        assert found.tokens == len(tokenizer(found.completion)["input_ids"]) + 1
    longest = max(found.tokens for prompt in whole for found in prompt.attempts)
    cut = attempt(model, tokenizer, problems, 4, dataclasses.replace(GREEDY, max_tokens=longest - 1), seed=1)
    for prompt, other in zip(whole, cut, strict=True):
        for found, short in zip(prompt.attempts, other.attempts, strict=True):
            assert short.ended == (found.tokens < longest)
            assert short.tokens == min(found.tokens, longest - 1)
    assert any(not found.ended for prompt in cut for found in prompt.attempts)


def test_of_the_models_own_configuration_only_the_ends_count(model, tokenizer, problems):
    before = attempt(model, tokenizer, problems, 4, SAMPLING, seed=1)
    own = GenerationConfig(
        do_sample=True,
        temperature=0.1,
        top_k=1,
        top_p=0.5,
        min_p=0.9,
        repetition_penalty=3.0,
        no_repeat_ngram_size=2,
        suppress_tokens=[5, 6, 7],
        max_new_tokens=2,
        eos_token_id=1,
    )
    model.generation_config = own
    assert attempt(model, tokenizer, problems, 4, SAMPLING, seed=1) == before
    assert model.generation_config is own

    mark = tokenizer("#")["input_ids"][0]
    model.generation_config = GenerationConfig(eos_token_id=[mark])
    marked = attempt(model, tokenizer, problems, 4, SAMPLING, seed=1)
    texts = [found.completion for prompt in marked for found in prompt.attempts]
    assert all("#" not in text.removesuffix("#") for text in texts)
    assert any(text.endswith("#") for text in texts)
    assert any(not text.endswith("#") for text in texts)  # the tokenizer's own end still counts
    assert all(found.ended for prompt in marked for found in prompt.attempts)


@pytest.mark.parametrize(
    "change", [{"temperature": 0.2}, {"top_k": 1}, {"top_p": 0.1}, {"min_p": 0.9}, {"repetition_penalty": 3.0}]
)
def test_every_setting_reaches_the_sampling(model, tokenizer, problems, change):
    plain = attempt(model, tokenizer, problems, 4, SAMPLING, seed=1)
    changed = dataclasses.replace(SAMPLING, **change)
    assert attempt(model, tokenizer, problems, 4, changed, seed=1) != plain
    by_name = dataclasses.replace(SAMPLING, generation_kwargs=change)
    assert attempt(model, tokenizer, problems, 4, by_name, seed=1) == attempt(
        model, tokenizer, problems, 4, changed, seed=1
    )


def test_what_is_measured_stays_as_it_was(model, tokenizer, problems):
    clean = attempt(model, tokenizer, problems, 2, SAMPLING, seed=1)
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.padding_side = "right"
    model.train()
    model.model.layers[0].eval()
    model.config.use_cache = False
    model.gradient_checkpointing_enable()
    modes = {name: module.training for name, module in model.named_modules()}
    weights = {name: weight.clone() for name, weight in model.named_parameters()}
    torch.manual_seed(12345)
    random_state = torch.get_rng_state()

    assert attempt(model, tokenizer, problems, 2, SAMPLING, seed=1) == clean

    assert torch.equal(torch.get_rng_state(), random_state)
    assert {name: module.training for name, module in model.named_modules()} == modes
    assert model.is_gradient_checkpointing
    assert (model.config.use_cache, tokenizer.padding_side) == (False, "right")
    assert all(torch.equal(weight, weights[name]) for name, weight in model.named_parameters())
    assert all(weight.requires_grad for weight in model.parameters())


def test_it_stays_so_when_measuring_fails(model, tokenizer, problems):
    def fail(_):
        raise RuntimeError("enough")

    model.train()
    torch.manual_seed(12345)
    own, random_state = model.generation_config, torch.get_rng_state()
    with pytest.raises(RuntimeError, match="enough"):
        attempt(model, tokenizer, problems, 2, SAMPLING, seed=1, progress=fail)
    assert model.training
    assert model.generation_config is own
    assert torch.equal(torch.get_rng_state(), random_state)


def test_an_adapter_is_part_of_the_model(model, tokenizer, problems):
    plain = attempt(model, tokenizer, problems, 4, SAMPLING, seed=1)
    own = model.generation_config
    adapted = get_peft_model(
        model, LoraConfig(task_type="CAUSAL_LM", r=4, lora_dropout=0.5, target_modules="all-linear")
    )
    adapted.train()
    trained = {name for name, weight in adapted.named_parameters() if weight.requires_grad}
    assert attempt(adapted, tokenizer, problems, 4, SAMPLING, seed=1) == plain  # a new adapter changes nothing

    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, weight in adapted.named_parameters():
            if "lora_B" in name:
                weight.normal_(std=0.3, generator=generator)
    assert attempt(adapted, tokenizer, problems, 4, SAMPLING, seed=1) != plain
    assert adapted.training
    assert {name for name, weight in adapted.named_parameters() if weight.requires_grad} == trained
    assert adapted.generation_config is own


@pytest.mark.parametrize("lora", [None, LoraConfig(task_type="CAUSAL_LM", r=4)], ids=["all weights", "adapter"])
def test_measuring_does_not_change_a_grpo_training(tmp_path, model, tokenizer, problems, lora):
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    found = []

    class Measure(TrainerCallback):
        def on_step_end(self, args, state, control, model, **kwargs):
            found.append(attempt(model, tokenizer, problems, 2, SAMPLING, seed=state.global_step))

    def train(folder, callbacks):
        config = GRPOConfig(
            output_dir=str(tmp_path / folder),
            max_steps=3,
            per_device_train_batch_size=8,
            num_generations=4,
            max_completion_length=24,
            learning_rate=1e-2,
            bf16=False,
            gradient_checkpointing=True,
            save_strategy="no",
            report_to="none",
            logging_steps=1,
            disable_tqdm=True,
        )
        trainer = GRPOTrainer(
            model=copy.deepcopy(model),
            reward_funcs=lambda completions, **_: [float(len(each[0]["content"])) for each in completions],
            args=config,
            train_dataset=Dataset.from_dict({"prompt": [problem.messages for problem in problems]}),
            processing_class=copy.deepcopy(tokenizer),
            peft_config=lora,
            callbacks=callbacks,
        )
        trainer.train()
        return dict(trainer.model.named_parameters())

    quiet, measured = train("quiet", []), train("measured", [Measure()])
    assert all(torch.equal(weight, measured[name]) for name, weight in quiet.items())
    assert len(found) == 3
    assert found[0] != found[2]


def test_chance_is_the_score_against_the_answer_of_another(model, tokenizer):
    # The second prompt's answer is the first one's true result.
    problems = [chain("7-5+5+7", "99"), chain("1+1", "14"), chain("2+2", "4", source="other")]
    probed = attempt(model, tokenizer, problems, 16, SAMPLING, seed=1, chance=True)
    swapped = [problems[0].model_copy(update={"answer": "14"}), problems[1].model_copy(update={"answer": "99"})]
    for prompt, other in zip(probed[:2], swapped, strict=True):
        assert [found.chance for found in prompt.attempts] == [
            verify(found.completion, other).score for found in prompt.attempts
        ]
    assert not any(found.right for found in probed[0].attempts)
    assert any(found.chance == 1 for found in probed[0].attempts)
    assert {found.chance for found in probed[2].attempts} == {None}


def test_strangers_share_source_and_verifier_and_differ_in_the_answer():
    problems = [
        chain("a", "1"),
        chain("b", "1"),
        chain("c", "2"),
        chain("d", "3", source="other"),
        chain("e", None, tests=["assert True"], verifier="code"),
        chain("f", "4", verifier="choice"),
        chain("g", "1"),
    ]
    found = strangers(problems)
    assert [other and other.answer for other in found] == ["2", "2", "1", None, None, None, "2"]
    assert [other.id for other in found if other] == ["a", "b", "c", "g"]


def test_choose_takes_verifiable_problems_and_does_not_move_when_rows_are_added():
    problems = [chain(f"{number}+1", str(number + 1)) for number in range(60)]
    unverifiable = [chain("q", None), chain("r", "1", verifier=None)]
    taken = choose([*problems, *unverifiable], 20, seed=1)
    assert len(taken) == 20
    assert choose(list(reversed(problems)), 20, seed=1) == taken
    assert choose(problems, 20, seed=2) != taken
    assert {problem.id for problem in choose(problems, 100, seed=1)} == {problem.id for problem in problems}
    added = [chain(f"{number}+2", str(number + 2)) for number in range(30)]
    more = choose([*added, *problems], 20, seed=1)
    assert [problem for problem in more if problem in problems] == taken[: sum(each in problems for each in more)]
    assert any(problem in added for problem in more)


def test_progress_is_told_after_every_batch(model, tokenizer, problems):
    seen = []
    batches = dataclasses.replace(SAMPLING, batch_size=8)
    probed = attempt(
        model, tokenizer, problems, 2, batches, seed=1, progress=lambda attempts: seen.append(list(attempts))
    )
    assert [len(attempts) for attempts in seen] == [8, 16, 20]
    first = seen[-1][:2]
    assert first in [prompt.attempts for prompt in probed]


def test_a_model_without_an_end_is_refused(model, tokenizer, problems):
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.eos_token = None
    model.generation_config.eos_token_id = None
    with pytest.raises(UserError, match="no token that ends a completion"):
        attempt(model, tokenizer, problems, 1, SAMPLING, seed=1)


def test_a_prompt_that_the_template_refuses_is_named(model, tokenizer, problems):
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.chat_template = "{% if '2+2' in messages[0]['content'] %}{{ raise_exception('no 2+2') }}{% endif %}x"
    with pytest.raises(UserError, match=r"problem '2\+2' of source 'chains': .*no 2\+2"):
        attempt(model, tokenizer, problems, 1, SAMPLING, seed=1)


def test_the_template_gets_its_arguments(model, tokenizer, problems):
    plain = attempt(model, tokenizer, problems[:1], 4, SAMPLING, seed=1)
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.chat_template = "{% if other %}{{ '<|user|>1+1<|end|><|assistant|>' }}{% else %}" + (
        tokenizer.chat_template + "{% endif %}"
    )
    assert attempt(model, tokenizer, problems[:1], 4, SAMPLING, seed=1) == plain
    told = dataclasses.replace(SAMPLING, chat_template_kwargs={"other": True})
    assert attempt(model, tokenizer, problems[:1], 4, told, seed=1) != plain
