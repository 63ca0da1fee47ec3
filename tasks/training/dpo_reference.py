"""The check that DPO is held to the model it started from."""

from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from tasks.training.reference import TOLERANCE


class ReferenceCheck(TrainerCallback):  # type: ignore[misc]  # transformers is not typed
    """Stops training when the rewards of the first step are not about 0.

    At the first step the policy has not been updated, so it is the reference, and the implicit reward
    beta * log(policy / reference) of any answer is 0. Anything else means that pairs are weighed against another model,
    such as the base in place of the SFT model. `tokens` is the mean length of an answer, for the tolerance is one for
    each token. Needs `logging_first_step`.
    """

    def __init__(self, beta: float, tokens: float) -> None:
        self.beta = beta
        self.tokens = tokens

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any],
        **kwargs: Any,
    ) -> None:
        """Look at the first step's log; later ones pass. Raises RuntimeError."""
        if state.global_step != 1 or "rewards/margins" not in logs:
            return
        rewards = {name: logs[f"rewards/{name}"] for name in ("chosen", "rejected", "margins")}
        if max(map(abs, rewards.values())) > TOLERANCE * self.beta * self.tokens:
            told = ", ".join(f"rewards/{name} {value:.3g}" for name, value in rewards.items())
            raise RuntimeError(
                f"the first step's rewards are not 0 ({told}), so the reference is not the model that training started"
                " from (or the model trains with dropout: set dpo.trainer.disable_dropout)"
            )
