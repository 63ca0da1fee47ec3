"""Write the problems of the recipe: chains of three small integers in symbols or in words, answered step by step.

    python recipes/smollm2-135m/problems.py [--out DIR]

Two files of one JSON object per line (`id`, `prompt`, `answer`, `solution`):

- `symbols.jsonl`: 800 chains such as `Compute 8 - 12 + 11.`
- `words.jsonl`: 400 chains such as `What is eight minus twelve plus eleven?`

No chain is in both. Every row carries a demonstration, and half of them are the bare answer line `#### 7`, so that a
model warmed up on them learns the form of an answer and, half of the time, to blurt it out.

The numbers are drawn from a fixed seed and nothing else, so every machine writes the same bytes.
"""

import argparse
import json
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

OUT = Path(__file__).resolve().parents[2] / "data" / "smollm2"
SEED = 135
FILES = {"symbols": 800, "words": 400}
BARE_SHARE = 0.5
# fmt: off
NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
           "thirteen", "fourteen")
# fmt: on
SIGNS = {"+": "plus", "-": "minus"}

Chain = tuple[int, str, int, str, int]
"""Integers from 1 to 14 with the signs between them."""


def draw(rng: random.Random) -> Chain:
    first, second, third = (rng.randint(1, len(NUMBERS) - 1) for _ in range(3))
    return first, rng.choice("+-"), second, rng.choice("+-"), third


def distinct_chains(rng: random.Random) -> Iterator[Chain]:
    """Chains without end, none of them twice."""
    seen: set[Chain] = set()
    while True:
        chain = draw(rng)
        if chain not in seen:
            seen.add(chain)
            yield chain


def in_symbols(chain: Chain) -> str:
    return f"Compute {' '.join(map(str, chain))}."


def in_words(chain: Chain) -> str:
    return f"What is {' '.join(SIGNS[part] if isinstance(part, str) else NUMBERS[part] for part in chain)}?"


def combine(left: int, sign: str, right: int) -> int:
    return left + right if sign == "+" else left - right


def working(chain: Chain) -> tuple[list[str], int]:
    """The steps of a chain, one operation a line, and its value."""
    first, sign, second, next_sign, third = chain
    between = combine(first, sign, second)
    value = combine(between, next_sign, third)
    return [f"{first} {sign} {second} = {between}", f"{between} {next_sign} {third} = {value}"], value


def rows() -> dict[str, list[dict[str, str]]]:
    """The problems of each file, as they stand in it."""
    rng = random.Random(SEED)
    chains = distinct_chains(rng)
    files: dict[str, list[dict[str, str]]] = {}
    for name, count in FILES.items():
        files[name] = []
        for index in range(count):
            chain = next(chains)
            steps, value = working(chain)
            lines = [f"#### {value}"] if rng.random() < BARE_SHARE else [*steps, f"#### {value}"]
            prompt = in_symbols(chain) if name == "symbols" else in_words(chain)
            row = {"id": f"{name}-{index:04d}", "prompt": prompt, "answer": str(value), "solution": "\n".join(lines)}
            files[name].append(row)
    return files


def write(path: Path, problems: list[dict[str, str]]) -> None:
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=f".{path.name}-", delete=False) as stream:
        stream.writelines(json.dumps(row) + "\n" for row in problems)
    Path(stream.name).replace(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=OUT)
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    for name, problems in rows().items():
        write(out / f"{name}.jsonl", problems)
        print(f"{out / name}.jsonl: {len(problems)} problems")


if __name__ == "__main__":
    main()
