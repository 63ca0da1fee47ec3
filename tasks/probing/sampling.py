"""Attempts at problems: completions sampled from a model as GRPO samples them, each one verified."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import field
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from tasks.errors import UserError
from tasks.probing.findings import Attempt, ProbedPrompt
from tasks.problems import Problem
from tasks.processes.contract import end_tokens
from tasks.rewards import verify

if TYPE_CHECKING:
    import torch
    from peft import PeftModel
    from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

Progress = Callable[[Sequence[Attempt]], None]
"""Told after every batch all attempts so far, those at one prompt next to each other."""


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class Sampling:
    """How completions are sampled, in the terms of `trl.GRPOConfig`, and how many at a time."""

    max_tokens: Annotated[int, Field(ge=1)]
    """Tokens after which a completion is cut (`max_completion_length`)."""
    temperature: Annotated[float, Field(ge=0)] = 1.0
    """0 takes the likeliest token each time."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Field(ge=0)] = 0
    """0 takes all tokens."""
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0)] = 1.0
    batch_size: Annotated[int, Field(ge=1)] = 256
    """Completions generated at a time. Other batches draw other samples."""
    chat_template_kwargs: dict[str, Any] = field(default_factory=dict)
    """What the chat template is told beside the messages."""
    generation_kwargs: dict[str, Any] = field(default_factory=dict)
    """More arguments of `transformers.GenerationConfig`; they win over what is above."""


def attempt(
    model: "PreTrainedModel | PeftModel",
    tokenizer: "PreTrainedTokenizerBase",
    problems: Sequence[Problem],
    samples: int,
    sampling: Sampling,
    seed: int,
    chance: bool = False,
    progress: Progress | None = None,
) -> list[ProbedPrompt]:
    """Sample `samples` completions of each problem and verify them; the order is that of the problems.

    A problem's messages are rendered by the chat template with the generation prompt. Of the model's own
    generation_config.json only the tokens that end a completion count. With `chance` each completion is scored a second
    time, against the answer of another problem (`strangers`).

    The model stays on its device and in its dtype. It and torch's random numbers are left as they were found, so that
    measuring a model while it is trained does not change the training. The same seed gives the same attempts on the
    same device, if torch is deterministic there.

    Raises UserError when nothing is known to end a completion, or when the chat template refuses a prompt.
    """
    ends = end_tokens(model, tokenizer)
    if not ends:
        raise UserError("the model names no token that ends a completion; set eos_token_id in generation_config.json")
    prompts = [_render(tokenizer, problem, sampling) for problem in problems]
    others = strangers(problems) if chance else [None] * len(problems)
    # Prompts of about the same length together: less padding.
    order = sorted(range(len(problems)), key=lambda index: len(prompts[index]))
    work = [index for index in order for _ in range(samples)]
    config = generation_config(tokenizer, ends, sampling)
    found: list[Attempt] = []
    with _undisturbed(model, seed):
        for start in range(0, len(work), sampling.batch_size):
            batch = work[start : start + sampling.batch_size]
            completions = _generate(model, [prompts[index] for index in batch], config)
            texts = tokenizer.batch_decode(completions, skip_special_tokens=True)
            for index, ids, text in zip(batch, completions, texts, strict=True):
                verdict, other = verify(text, problems[index]), others[index]
                found.append(
                    Attempt(
                        completion=text,
                        tokens=len(ids),
                        ended=ids[-1] in ends,
                        score=verdict.score,
                        status=verdict.status,
                        chance=None if other is None else verify(text, other).score,
                    )
                )
            if progress is not None:
                progress(found)
    by_problem = {index: found[place * samples : (place + 1) * samples] for place, index in enumerate(order)}
    return [
        ProbedPrompt(id=problem.id, source=problem.source, attempts=by_problem[index])
        for index, problem in enumerate(problems)
    ]


def choose(problems: Sequence[Problem], count: int, seed: int) -> list[Problem]:
    """At most `count` of the problems that can be verified: a seeded choice that rests on their ids alone.

    It is in no order of the file's, and rows that are added or removed change it by no more than their own places.
    """

    def place(problem: Problem) -> bytes:
        return hashlib.sha256(f"{seed}\0{problem.source}\0{problem.id}".encode()).digest()

    return sorted((problem for problem in problems if problem.verifiable), key=place)[:count]


def strangers(problems: Sequence[Problem]) -> list[Problem | None]:
    """Each problem with the answer of another in place of its own: a completion that is right by it was guessed.

    The other is the next one, cyclically, of the same source and verifier that has a different answer. None where
    there is none, and where a problem is not verified by its answer.
    """
    groups: dict[tuple[str, str | None], list[int]] = {}
    for index, problem in enumerate(problems):
        if problem.answer is not None:
            groups.setdefault((problem.source, problem.verifier), []).append(index)
    found: list[Problem | None] = [None] * len(problems)
    for group in groups.values():
        for place, index in enumerate(group):
            following = (problems[other].answer for other in group[place + 1 :] + group[:place])
            answer = next((answer for answer in following if answer != problems[index].answer), None)
            if answer is not None:
                found[index] = problems[index].model_copy(update={"answer": answer})
    return found


def generation_config(tokenizer: "PreTrainedTokenizerBase", ends: list[int], sampling: Sampling) -> "GenerationConfig":
    """What `generate` is told: the arguments that `trl.GRPOTrainer` gives it."""
    from transformers import GenerationConfig

    arguments = {
        "max_new_tokens": sampling.max_tokens,
        "do_sample": True,
        "pad_token_id": ends[0] if tokenizer.pad_token_id is None else tokenizer.pad_token_id,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": ends,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "repetition_penalty": sampling.repetition_penalty,
        # A trainer turns the cache off in the model's configuration, and without one the time is quadratic.
        "use_cache": True,
        "disable_compile": True,
        **sampling.generation_kwargs,
    }
    if sampling.temperature == 0:
        arguments |= {"do_sample": False, "temperature": None, "top_p": None, "top_k": None, "min_p": None}
    return GenerationConfig(**arguments)


def _render(tokenizer: "PreTrainedTokenizerBase", problem: Problem, sampling: Sampling) -> list[int]:
    import jinja2

    try:
        rendered = tokenizer.apply_chat_template(
            problem.messages,
            add_generation_prompt=True,
            tokenize=True,
            return_dict=True,
            **sampling.chat_template_kwargs,
        )
    except jinja2.TemplateError as error:
        raise UserError(
            f"problem {problem.id!r} of source {problem.source!r}: the model's chat template refuses it: {error}"
        ) from error
    ids: list[int] = rendered["input_ids"]
    return ids


def _generate(
    model: "PreTrainedModel | PeftModel", prompts: list[list[int]], config: "GenerationConfig"
) -> list[list[int]]:
    """A completion's ids for each prompt's, up to and with the first that ends it."""
    import torch

    def padded(rows: list[list[int]], value: int) -> "torch.Tensor":
        tensors = [torch.tensor(row) for row in rows]
        batch = torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True, padding_value=value, padding_side="left")
        return batch.to(model.device)

    ids = padded(prompts, config.pad_token_id)
    mask = padded([[1] * len(prompt) for prompt in prompts], 0)
    # PEFT takes the inputs by keyword only.
    generated = model.generate(input_ids=ids, attention_mask=mask, generation_config=config)
    completions: list[list[int]] = generated[:, ids.shape[1] :].tolist()
    ends = set(config.eos_token_id)
    return [_cut(completion, ends) for completion in completions]


def _cut(completion: list[int], ends: set[int]) -> list[int]:
    length = next((place for place, token in enumerate(completion, 1) if token in ends), len(completion))
    return completion[:length]


@contextmanager
def _undisturbed(model: "PreTrainedModel | PeftModel", seed: int) -> Iterator[None]:
    """Seeded random numbers and a model that neither trains nor has a generation configuration of its own.

    All is as before when it is over. Transformers would fill what it is not told from the model's configuration.
    Gradient checkpointing, which turns the cache off, sleeps in a model that does not train.
    """
    import torch
    from peft import PeftModel
    from transformers import GenerationConfig

    base = model.get_base_model() if isinstance(model, PeftModel) else model
    own = base.generation_config
    modes = [(module, module.training) for module in model.modules()]
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())), torch.no_grad():
        torch.manual_seed(seed)
        base.generation_config = GenerationConfig()
        model.eval()
        try:
            yield
        finally:
            base.generation_config = own
            for module, training in modes:
                module.training = training
