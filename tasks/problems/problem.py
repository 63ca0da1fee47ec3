"""The one row type: every stage, from SFT to evaluation, reads problems of this shape."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag, model_validator


def _number_as_text(value: object) -> object:
    """14 for "14": data sets store numeric answers and ids either way. A bool is not a number here."""
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


def _not_blank(text: str) -> str:
    if not text.strip():
        raise ValueError("is empty")
    return text


def _asks_something(messages: "list[Message]") -> "list[Message]":
    if not any(message.content.strip() for message in messages):
        raise ValueError("is empty")
    if messages[-1].role == "assistant":
        raise ValueError("ends with the assistant's turn: what the model should say belongs in `solution`")
    return messages


Text = Annotated[str, AfterValidator(_not_blank)]
NumberOrText = Annotated[str, BeforeValidator(_number_as_text), AfterValidator(_not_blank)]


class Message(BaseModel):
    """One turn of a conversation, as chat templates take it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    role: Literal["system", "user", "assistant", "tool"]
    content: str


Conversation = Annotated[list[Message], AfterValidator(_asks_something)]


class Problem(BaseModel):
    """A problem with whatever stages need: SFT a solution, GRPO and evaluation something to verify.

    The field names are TRL's where TRL has one (`prompt`, `chosen`, `rejected`).
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: NumberOrText
    """Unique within its source."""
    source: str
    """The name of its source in params.yaml."""
    prompt: Annotated[
        Annotated[Text, Tag("text")] | Annotated[Conversation, Tag("messages")],
        Discriminator(lambda value: "messages" if isinstance(value, list) else "text"),
    ]
    """What the model is asked. A text is one user turn."""
    answer: NumberOrText | None = None
    """The gold answer, as the verifier reads it."""
    verifier: str | None = None
    """The kind of verifier, a module of `tasks.rewards`; None means that there is nothing to verify."""
    solution: Text | None = None
    """A completion to learn from in SFT."""
    tests: list[Any] | None = None
    """What a verifier of programs runs."""
    chosen: Text | None = None
    """The better completion of a preference pair."""
    rejected: Text | None = None
    """The worse completion of a preference pair."""
    metadata: dict[str, Any] = Field(default_factory=dict)
    """Anything else worth keeping; no stage reads it."""

    @model_validator(mode="after")
    def pair_is_whole(self) -> "Problem":
        if (self.chosen is None) != (self.rejected is None):
            raise ValueError("`chosen` and `rejected` come together or not at all")
        return self

    @property
    def verifiable(self) -> bool:
        """Whether a completion can be judged."""
        return self.verifier is not None and (self.answer is not None or self.tests is not None)

    @property
    def messages(self) -> list[dict[str, str]]:
        """The prompt as a conversation, ready for a chat template."""
        if isinstance(self.prompt, str):
            return [{"role": "user", "content": self.prompt}]
        return [message.model_dump() for message in self.prompt]
