"""The question asked before a promotion: `python -m tasks.serving.smoke SPEC`.

A fresh process loads the registered model from its URI, as a server would, and asks it what the evaluation asked.
It writes `smoke.json` into the output folder and fails unless the answers are those that the evaluation recorded.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Annotated

from pydantic import Field

from tasks.config.schema import Section
from tasks.processes import entry


class Prompt(Section):
    """A question and the answer that the evaluation recorded."""

    messages: list[dict[str, str]]
    expected: str | None
    """None where the evaluation asked in another form, with examples say: then any answer will do but an empty one."""


class SmokeSpec(Section):
    """Which model to ask, and what."""

    tracking_uri: str
    model_uri: str
    """Such as `models:/NAME/3` or `models:/NAME@champion`."""
    prompts: Annotated[list[Prompt], Field(min_length=1)]
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    """The longest answer; the task's `max_gen_toks` makes answers that were cut off comparable too."""
    min_equal: Annotated[float, Field(ge=0, le=1)] = 1.0
    """Share of answers that must be the recorded ones. Batches change answers in bfloat16 and float16, not in float32;
    an empty answer never passes unless an empty one was recorded."""
    output: Path
    """The existing folder that `smoke.json` is written into."""


def work(spec: SmokeSpec) -> None:
    """Ask every prompt; ends the process with a message and exit code 1 if the answers are not the recorded ones."""
    os.environ["MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR"] = "false"
    import mlflow

    mlflow.set_tracking_uri(spec.tracking_uri)
    mlflow.set_registry_uri(spec.tracking_uri)
    started = time.monotonic()
    model = mlflow.pyfunc.load_model(spec.model_uri)
    loaded = time.monotonic()
    answers = model.predict([{"messages": p.messages, "max_tokens": spec.max_tokens} for p in spec.prompts])
    rows = [
        {"messages": prompt.messages, "expected": prompt.expected, "answer": answer}
        for prompt, answer in zip(spec.prompts, answers, strict=True)
    ]
    different = [row for row in rows if _is_wrong(row["answer"], row["expected"])]
    report = {
        "model_uri": spec.model_uri,
        "asked": len(rows),
        "equal": len(rows) - len(different),
        "load_seconds": round(loaded - started, 3),
        "answer_seconds": round(time.monotonic() - loaded, 3),
        "answers": rows,
    }
    (spec.output / "smoke.json").write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"{spec.model_uri}  asked {len(rows)}  as evaluated {len(rows) - len(different)}", flush=True)
    empty = [row for row in different if not row["answer"]]
    if empty or len(rows) - len(different) < spec.min_equal * len(rows):
        worst = (empty or different)[0]
        sys.exit(
            f"{spec.model_uri} does not answer as it did when it was evaluated ({len(different)} of {len(rows)} "
            f"differ): to {worst['messages']} it answers {worst['answer']!r}, recorded is {worst['expected']!r}"
        )


def _is_wrong(answer: str, expected: str | None) -> bool:
    return not answer if expected is None else answer != expected


if __name__ == "__main__":
    entry.run(SmokeSpec, work)
