"""The model code that MLflow stores beside the weights (models from code) and runs wherever the model is served.

It must run with nothing of this project installed. A request is a list of conversations, and each answer is the text
of the assistant's next turn:

    {"inputs": [{"messages": [{"role": "user", "content": "7-5+5+7"}], "max_tokens": 48}]}

Decoding is greedy unless a temperature is given. Of the model's own generation_config.json only the special tokens
are used, as in its evaluation, so that the same question gets the answer that was measured.
"""

from typing import Any

import mlflow
from mlflow.pyfunc import PythonModel, PythonModelContext
from pydantic import BaseModel

MAX_TOKENS = 256


class Message(BaseModel):
    role: str
    content: str


class Conversation(BaseModel):
    messages: list[Message]
    max_tokens: int | None = None
    """The longest answer, in tokens; null: 256."""
    temperature: float | None = None
    """Sampling temperature; null or 0: greedy."""


class Chat(PythonModel):  # type: ignore[misc]
    def load_context(self, context: PythonModelContext) -> None:
        """Load the transformers folder that the artifact `model` is."""
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

        folder = context.artifacts["model"]
        device = "cuda" if torch.cuda.is_available() else "cpu"
        loading = {"trust_remote_code": context.model_config["trust_remote_code"]}
        self.tokenizer = AutoTokenizer.from_pretrained(folder, **loading)
        model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto", use_safetensors=True, **loading)
        self.model = model.to(device).eval()
        own = self.model.generation_config
        self.model.generation_config = GenerationConfig(
            bos_token_id=own.bos_token_id, eos_token_id=own.eos_token_id, pad_token_id=own.pad_token_id
        )

    def predict(self, context: PythonModelContext, model_input: list[Conversation], params: Any = None) -> list[str]:
        """The assistant's next turn of each conversation."""
        return [self.answer(conversation) for conversation in model_input]

    def answer(self, conversation: Conversation) -> str:
        """The assistant's next turn."""
        messages = [message.model_dump() for message in conversation.messages]
        prompt = self.tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
        ).to(self.model.device)
        sampling = {"do_sample": True, "temperature": conversation.temperature} if conversation.temperature else {}
        tokens = self.model.generate(**prompt, max_new_tokens=conversation.max_tokens or MAX_TOKENS, **sampling)
        return str(self.tokenizer.decode(tokens[0, prompt["input_ids"].shape[1] :], skip_special_tokens=True))


mlflow.models.set_model(Chat())
