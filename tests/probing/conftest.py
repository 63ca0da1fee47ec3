"""The embedded base model and problems that it solves at times."""

from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from tasks.problems import Problem

BASE = Path(__file__).parents[2] / "data" / "base"
ANSWERS = {
    "7-5+5+7": 14,
    "1+1": 2,
    "9-3-3": 3,
    "0+8-9+2": 1,
    "5+5+5+5+1": 21,
    "3-9+4-2": -4,
    "2+2": 4,
    "4-5-5": -6,
    "6-1-9+3": -1,
    "8+1-7": 2,
}
"""Of different lengths, in no order of length."""


@pytest.fixture(scope="session")
def base() -> Path:
    return BASE


@pytest.fixture(scope="session")
def problems() -> list[Problem]:
    return [
        Problem(id=prompt, source="chains", prompt=prompt, answer=str(answer), verifier="numeric")
        for prompt, answer in ANSWERS.items()
    ]


@pytest.fixture(scope="session")
def tokenizer():
    return AutoTokenizer.from_pretrained(BASE)


@pytest.fixture
def model():
    return AutoModelForCausalLM.from_pretrained(BASE)
