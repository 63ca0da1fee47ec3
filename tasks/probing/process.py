"""The probe: `python -m tasks.probing.process SPEC` (`tasks.probing.spec.ProbeSpec`).

It writes into the spec's output folder the attempts at prompts of the dev and the train split, `dev.jsonl` (each scored
by chance too) and `train.jsonl` (`tasks.probing.attempts`).
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tasks.errors import UserError
from tasks.probing.attempts import write
from tasks.probing.findings import Attempt
from tasks.probing.measures import measure
from tasks.probing.sampling import Progress, attempt, choose
from tasks.probing.spec import ProbeSpec
from tasks.problems import read_split
from tasks.processes import contract
from tasks.processes.entry import make_deterministic, run


def work(spec: ProbeSpec) -> None:
    """Probe the model and write the attempts; raises UserError for what the user can mend."""
    dev = choose(read_split(spec.data, "dev"), spec.dev_prompts, spec.seed)
    if not dev:
        raise UserError(
            f"{spec.data / 'dev.jsonl'}: no row can be verified, and whether GRPO is worth it is decided on the dev"
            " split; give a source with a `verifier` and an `answer` a share of it: data.sources.NAME.split.dev"
        )
    rows = read_split(spec.data, "train")
    train = choose(rows, spec.train_prompts, spec.seed)
    if Path(spec.model).is_absolute() and not (Path(spec.model) / "config.json").is_file():
        raise UserError(f"{spec.model} has no config.json; give the folder of a saved model")

    make_deterministic()
    model, tokenizer = load(spec)
    ends = contract.end_tokens(model, tokenizer)
    stated = contract.state(tokenizer, ends, [row.messages for row in rows], spec.data)
    contract.check_parent(stated, spec.parent_contract)
    for name, problems in (("dev", dev), ("train", train)):
        progress = _printing(name, len(problems), spec.samples)
        of_dev = name == "dev"
        probed = attempt(
            model, tokenizer, problems, spec.samples, spec.sampling, spec.seed, chance=of_dev, progress=progress
        )
        if of_dev:
            # A probe of which nothing is known fails here, where nothing of it is kept.
            measure(probed, group=2, max_tokens=spec.sampling.max_tokens)
            greedy = attempt(model, tokenizer, problems, 1, replace(spec.sampling, temperature=0.0), spec.seed)
            probed = [p.model_copy(update={"greedy": g.attempts[0]}) for p, g in zip(probed, greedy, strict=True)]
        write(spec.output / f"{name}.jsonl", probed)


def load(spec: ProbeSpec) -> tuple[Any, Any]:
    """The model, on the accelerator if there is one, and its tokenizer; raises UserError when they cannot be loaded."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source = {"revision": spec.revision or "main", "trust_remote_code": spec.trust_remote_code}
    try:
        tokenizer = AutoTokenizer.from_pretrained(spec.model, **source)
        model = AutoModelForCausalLM.from_pretrained(
            spec.model, dtype=getattr(torch, spec.dtype), use_safetensors=True, **source
        )
    except (OSError, ValueError) as error:
        raise UserError(f"{spec.model} cannot be loaded: {error}") from error
    if not tokenizer.chat_template:
        raise UserError(f"the tokenizer of {spec.model} has no chat template, and prompts are conversations")
    return model.to("cuda" if torch.cuda.is_available() else "cpu"), tokenizer


def _printing(name: str, prompts: int, samples: int) -> Progress:
    def progress(attempts: Sequence[Attempt]) -> None:
        right = sum(found.right for found in attempts) / len(attempts)
        print(f"{name}  {len(attempts) // samples}/{prompts} prompts  pass@1 {right:.2f}", flush=True)

    return progress


if __name__ == "__main__":
    run(ProbeSpec, work)
