"""Build the tiny base model of the default run: 0.43 M parameters that can do sums on paper.

    python data/base.py [--out DIR] [--seed N] [--epochs N]

A Llama of two layers over a vocabulary of characters, trained from scratch on worked chains of
three to five integers in the chat format. Three in ten end with a line that states the answer (`#14`), so it has the
skill and rarely the form, which is where post-training starts: decoded greedily it writes out the steps and stops.
No chain of `data/arithmetic/` is in its corpus, so the evaluation is of unseen problems.

Takes about two minutes on two cores.
"""

import argparse
import random
from pathlib import Path

import arithmetic
import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

HERE = Path(__file__).parent
SPECIAL = ["<|pad|>", "<|end|>", "<|user|>", "<|assistant|>"]
ALPHABET = "0123456789+-=#\n"
TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
LENGTHS = {3: 1500, 4: 14000, 5: 11000}
ANSWER_SHARE = 0.3
BATCH, LEARNING_RATE = 64, 3e-3


def tokenizer() -> PreTrainedTokenizerFast:
    """One token a character, the roles and the end of a turn as special tokens."""
    vocabulary = {token: index for index, token in enumerate([*SPECIAL, *ALPHABET])}
    characters = Tokenizer(models.WordLevel(vocabulary, unk_token="<|pad|>"))
    characters.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    characters.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=characters,
        pad_token="<|pad|>",
        eos_token="<|end|>",
        additional_special_tokens=SPECIAL[2:],
        chat_template=TEMPLATE,
        model_max_length=128,
        clean_up_tokenization_spaces=False,
    )


def working(prompt: str, answered: bool) -> str:
    """The steps of a chain, and its answer if asked for."""
    return "\n".join([*arithmetic.steps(prompt), *([f"#{arithmetic.result(prompt)}"] if answered else [])])


def corpus(seed: int) -> list[list[dict[str, str]]]:
    """Worked chains as conversations, without the problems that are trained and evaluated on later."""
    kept_out = {row["prompt"] for name in arithmetic.FILES for row in arithmetic.rows(name)}
    rng = random.Random(f"base/{seed}")
    prompts = [
        prompt
        for length, count in LENGTHS.items()
        for prompt in arithmetic.distinct_chains(rng, length, count)
        if prompt not in kept_out
    ]
    return [
        [
            {"role": "user", "content": prompt},
            {"role": "assistant", "content": working(prompt, rng.random() < ANSWER_SHARE)},
        ]
        for prompt in prompts
    ]


def encode(chats: list[list[dict[str, str]]], tok: PreTrainedTokenizerFast) -> tuple[torch.Tensor, torch.Tensor]:
    """Input ids and labels, both (rows, longest); the loss covers the assistant's turn alone."""
    texts = [tok.apply_chat_template(chat, tokenize=False) for chat in chats]
    ids = tok(texts, padding=True, return_tensors="pt", add_special_tokens=False)["input_ids"]
    assistant = (ids == tok.convert_tokens_to_ids("<|assistant|>")).int().cumsum(1).bool()
    labels = ids.masked_fill(~assistant | (ids == tok.pad_token_id), -100)
    return ids, labels


def train(seed: int, epochs: int) -> tuple[LlamaForCausalLM, PreTrainedTokenizerFast]:
    torch.manual_seed(seed)
    tok = tokenizer()
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tok),
            hidden_size=128,
            intermediate_size=384,
            num_hidden_layers=2,
            num_attention_heads=4,
            max_position_embeddings=128,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=tok.eos_token_id,
            pad_token_id=tok.pad_token_id,
        )
    )
    ids, labels = encode(corpus(seed), tok)
    batches = len(ids) // BATCH
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * batches)
    for epoch in range(epochs):
        order = torch.randperm(len(ids))
        for batch in range(batches):
            rows = order[batch * BATCH : (batch + 1) * BATCH]
            loss = model(input_ids=ids[rows], labels=labels[rows]).loss
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
        print(f"epoch {epoch + 1}/{epochs}: loss {loss.item():.4f}", flush=True)
    model.generation_config = GenerationConfig(
        eos_token_id=tok.eos_token_id, pad_token_id=tok.pad_token_id, max_new_tokens=48
    )
    return model, tok


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=HERE / "base")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=4)
    options = parser.parse_args()
    model, tok = train(options.seed, options.epochs)
    model.save_pretrained(options.out)
    tok.save_pretrained(options.out)


if __name__ == "__main__":
    main()
