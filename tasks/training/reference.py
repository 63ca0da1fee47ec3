"""The check that GRPO is held to the model it started from."""

from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

TOLERANCE = 0.01
"""Nats a token. Rounding in bfloat16 stays an order below; another model, or an adapter left out, is far above."""


class ReferenceCheck(TrainerCallback):  # type: ignore[misc]  # transformers is not typed
    """Stops training when the KL divergence of the first step is not about 0.

    At the first step the policy has not been updated, so it is the reference. Anything else means that the KL term
    pulls towards another model, such as the base in place of the SFT model. Needs `logging_first_step`.
    """

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any],
        **kwargs: Any,
    ) -> None:
        """Look at the first step's log; later ones and runs without a KL term pass. Raises RuntimeError."""
        if state.global_step == 1 and abs(kl := logs.get("kl") or 0.0) > TOLERANCE:
            raise RuntimeError(
                f"the first step's KL divergence is {kl:.3g} and not 0, so the reference is not the model that training"
                " started from (or the model trains with dropout: set grpo.trainer.disable_dropout)"
            )
