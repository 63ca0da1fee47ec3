"""Which weights a stage ends with: the best by verified accuracy on the dev split, and never broken ones."""

from pathlib import Path
from typing import Any

import torch
from accelerate.utils import gather_object
from safetensors.torch import load_file, save_file
from transformers import (
    PreTrainedModel,
    PreTrainedTokenizerBase,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

from tasks.config.schema import Selection
from tasks.errors import UserError
from tasks.probing.sampling import Sampling, attempt, choose
from tasks.problems import Problem, read_split
from tasks.training.health import weights_are_finite
from tasks.training.history import History


def dev_problems(data: Path, prompts: int, seed: int) -> list[Problem]:
    """At most `prompts` problems of the dev split that can be verified, those that the probe takes first.

    Raises UserError when there is none.
    """
    problems = choose(read_split(data, "dev"), prompts, seed)
    if not problems:
        raise UserError("grpo.selection needs dev rows: give a source a dev share, or set grpo.selection: false")
    return problems


class Checkpoint:
    """The weights that are trained, of all or of an adapter, at one moment: a safetensors file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def keep(self, model: torch.nn.Module) -> None:
        """Write the weights over the former ones, at once or not at all."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        partial = self.path.with_suffix(".partial")
        save_file({name: weight.detach().cpu().contiguous() for name, weight in _trained(model).items()}, partial)
        partial.replace(self.path)

    def restore(self, model: torch.nn.Module) -> None:
        """Give `model` the weights as they were kept, to the bit."""
        kept = load_file(self.path)
        with torch.no_grad():
            for name, weight in _trained(model).items():
                weight.copy_(kept[name])


class StartCheckpoint(TrainerCallback):  # type: ignore[misc]  # transformers is not typed
    """Keeps the weights that training starts from in `folder/start.safetensors`, for the case that it breaks them."""

    def __init__(self, folder: Path) -> None:
        self.checkpoint = Checkpoint(folder / "start.safetensors")

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: PreTrainedModel,
        **kwargs: Any,
    ) -> None:
        """Keep the weights."""
        if state.is_world_process_zero:
            self.checkpoint.keep(model)


class BestCheckpoint(TrainerCallback):  # type: ignore[misc]  # transformers is not typed
    """Keeps the weights with the best accuracy so far on `problems` in `folder/best.safetensors`.

    The accuracy is the share of the problems whose greedy completion is right by their verifiers, failures of the
    verifiers' own machinery left out; `history` gets it as `dev/accuracy`. It is measured before the first step, every
    `selection.eval_steps` and after the last one, and leaves the training as it would have been without it. Weights
    that are not finite are not measured. Training ends early after `selection.early_stopping_patience` measurements in
    a row without a better one (Goodfellow et al. 2016, "Deep Learning", algorithm 7.1).

    With several processes each one measures its share of the problems, and all see the same accuracy.
    """

    def __init__(
        self,
        selection: Selection,
        problems: list[Problem],
        tokenizer: PreTrainedTokenizerBase,
        max_tokens: int,
        history: History,
        folder: Path,
        seed: int,
    ) -> None:
        self.selection = selection
        self.problems = problems
        self.tokenizer = tokenizer
        self.max_tokens = max_tokens
        self.history = history
        self.checkpoint = Checkpoint(folder / "best.safetensors")
        self.seed = seed
        self.measured: dict[int, float] = {}
        """The accuracies by step."""
        self.stopped_early = False

    @property
    def best_step(self) -> int:
        """The first step with the best accuracy."""
        return max(self.measured, key=self.measured.__getitem__)

    @property
    def metrics(self) -> dict[str, float]:
        """What `metrics.json` says of the choice."""
        return {
            "best_step": self.best_step,
            "best_dev_accuracy": self.measured[self.best_step],
            "start_dev_accuracy": self.measured[min(self.measured)],
            "stopped_early": int(self.stopped_early),
        }

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: PreTrainedModel,
        **kwargs: Any,
    ) -> None:
        """Measure where training starts."""
        self._measure(args, state, model)

    def on_step_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: PreTrainedModel,
        **kwargs: Any,
    ) -> None:
        """Measure when it is time, and stop when nothing has become better for long."""
        if state.global_step % self.selection.eval_steps:
            return
        self._measure(args, state, model)
        since = sum(step > self.best_step for step in self.measured)
        if since >= self.selection.early_stopping_patience and state.global_step < state.max_steps:
            self.stopped_early = True
            control.should_training_stop = True

    def on_train_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: PreTrainedModel,
        **kwargs: Any,
    ) -> None:
        """Measure where training ends."""
        if state.global_step not in self.measured:
            self._measure(args, state, model)

    def _measure(self, args: TrainingArguments, state: TrainerState, model: PreTrainedModel) -> None:
        if not weights_are_finite(model):
            return
        share = self.problems[args.process_index :: args.world_size]
        sampling = Sampling(self.max_tokens, temperature=0.0, chat_template_kwargs=args.chat_template_kwargs or {})
        probed = attempt(model, self.tokenizer, share, 1, sampling, self.seed)
        right = gather_object([attempt.right for prompt in probed for attempt in prompt.judged])
        if not right:
            raise RuntimeError(f"step {state.global_step}: no completion of the dev problems could be verified")
        best = max(self.measured.values(), default=-1.0)
        accuracy = self.measured[state.global_step] = sum(right) / len(right)
        if state.is_world_process_zero:
            self.history.record(state.global_step, state.max_steps, {"dev/accuracy": accuracy})
            if accuracy > best:
                self.checkpoint.keep(model)


def _trained(model: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    return {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
