import time
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.problems import Problem
from tasks.rewards import MAX_COMPLETION, Status, Verdict, verify
from tasks.rewards.numeric import check_gold, read_number


def ask(completion: str, answer: str = "42") -> Verdict:
    return verify(completion, Problem(id="p", source="s", prompt="40+2", answer=answer, verifier="numeric"))


NUMBERS = {
    "18": 18, "007": 7, "+5": 5, "-3": -3, "\u22123": -3, "\u20133": -3, "18.": 18,
    ".5": Fraction(1, 2), "2.50": Fraction(5, 2),
    "1,234": 1234, "1{,}234": 1234, r"1\,234": 1234, "1\u202f234": 1234, "-1,234,567.5": Fraction(-2469135, 2),
    "3/4": Fraction(3, 4), "3 / 4": Fraction(3, 4), "-6/4": Fraction(-3, 2), r"\frac{3}{4}": Fraction(3, 4),
    r"-\dfrac{3}{4}": Fraction(-3, 4), "1 1/2": Fraction(3, 2), "-1 1/2": Fraction(-3, 2),
    r"1\frac{1}{2}": Fraction(3, 2), "1.23e5": 123000, "2E-2": Fraction(1, 50), "1e308": 10**308,
    "$18": 18, "-$18": -18, "$-18": -18, r"\$18": 18, "€3.50": Fraction(7, 2), "£7": 7, "18 €": 18, "18$": 18,
    "$18$": 18, "$$18$$": 18, r"\(18\)": 18, "**18**": 18, "**18.**": 18, "$.50": Fraction(1, 2),
    "50%": 50, r"50\%": 50, "50 percent": 50, "90°": 90, "18 dollars": 18, "10 km": 10, "10km": 10,
    "60 miles per hour": 60, "5 km/h": 5, r"18\,\text{km}": 18, r"\text{18 apples}": 18, "3 Äpfel": 3,
    "9" * 100: 10**100 - 1,
}  # fmt: skip

NO_NUMBERS = [
    "", " ", "$", "-", ".", "x", "two", "½", "18½", "٣", "\uff15", "三", "5万", "∞", "nan", "inf", "0x10", "1_000",
    "1 234", "1,23", "0,123", "5,5", "1,2345", "1234,567", "1,234,56", "1{,}234,567", "1,234 567", "1.234.567",
    "40,41,42", "40, 41", "40 41", "40;41", "41 or 42", "42 or forty", "41-42", "1=2=42", "x=42", "=42", "42=42",
    "{42}",
    "--5", "- 5", "-$-5", "+-5", "5-", "1/0", r"\frac{1}{0}", "1/2/3", "1.5/2", "1 3/2", "1 1/0", r"\frac{-3}{4}",
    r"\frac12", "1e309", "1e-309", "1e999999999", "1e", "2e3.5", "e5", "7-5+5+7", "6*7", "6 times 7", "42!", "2^5",
    r"2\cdot 21", r"\sqrt{4}", r"\sum_{k=1}^{9}k", "5 million", "3 thousand", "2 dozen", "3 halves", "5k", "5M", "$5m",
    "18x", "2i", "2 pi", "18 and a half", "5 squared", "not 18", "18 is wrong", "18 a b c d", "18 apples 3", "9" * 101,
]  # fmt: skip


@pytest.mark.parametrize(("text", "value"), NUMBERS.items())
def test_what_a_number_is(text: str, value: Fraction | int) -> None:
    number = read_number(text)
    assert number is not None
    assert number.value == value


@pytest.mark.parametrize("text", NO_NUMBERS)
def test_what_no_number_is(text: str) -> None:
    assert read_number(text) is None


RIGHT = [
    "#42", "# 42", "#### 42", "####42.0", "7*6=42\n#42", "#42\nSo it is 42, not 41.", r"\boxed{42}", r"$\boxed{42}$.",
    r"\boxed {42}", r"#### \boxed{42}", r"#### $\boxed{42}$", "#42\n#42", "#42\n\\boxed{42.0}",
    r"\boxed{84/2} \boxed{42}",
    "<think>#41</think>#42", "<think>a</think>#41<think>b</think>\n#42", "guess 41 \\boxed{41}</think> #\n#42\r\n",
    "### Step 1: 40\n## 2. Add 2\n# **Answer**\n#42", "#42\n#\n####", "#### **42**", "#### $42", "#42 dollars", "#42%",
]  # fmt: skip

WRONG = {
    "another number": ("#41", Status.WRONG),
    "the sign": ("#-42", Status.WRONG),
    "a scale": ("#4200%", Status.WRONG),
    "digits within a number": ("#421", Status.WRONG),
    "two lines": ("#41\n#42", Status.WRONG),
    "two boxes": (r"\boxed{41}$ or maybe $\boxed{42}", Status.WRONG),
    "a line and a box": (r"#42" + "\n" + r"\boxed{41}", Status.WRONG),
    "a line with a box": (r"#41 \boxed{42}", Status.NO_ANSWER),
    "a listing of lines": ("\n".join(f"#{n}" for n in range(100)), Status.WRONG),
    "a listing of boxes": ("".join(rf"\boxed{{{n}}}" for n in range(100)), Status.WRONG),
    "a listing in a line": ("#40,41,42", Status.NO_ANSWER),
    "a listing in a box": (r"\boxed{40, 41, 42}", Status.NO_ANSWER),
    "a set": (r"\boxed{\{42\}}", Status.NO_ANSWER),
    "a chain": (r"\boxed{1=2=42}", Status.NO_ANSWER),
    "a range": ("#41-42", Status.NO_ANSWER),
    "a choice": (r"\boxed{41 \text{ or } 42}", Status.NO_ANSWER),
    "the question copied": ("#40+2", Status.NO_ANSWER),
    "the question boxed": (r"\boxed{40+2}", Status.NO_ANSWER),
    "an operator to work out": (r"\boxed{\sum_{k=1}^{1}42}", Status.NO_ANSWER),
    "a factorial": (r"\boxed{42!}", Status.NO_ANSWER),
    "a tower": (r"\boxed{9^{9^{9}}}", Status.NO_ANSWER),
    "an exponent without end": ("#42e999999999", Status.NO_ANSWER),
    "a division by zero": ("#42/0", Status.NO_ANSWER),
    "digits without end": ("#" + "4" * 20_000, Status.NO_ANSWER),
    "in the thinking only": (r"<think>\boxed{42}</think> I do not know", Status.NO_ANSWER),
    "in thinking that never ends": ("<think>\n#42", Status.NO_ANSWER),
    "before thinking that never ends": ("#42\n<think>", Status.NO_ANSWER),
    "in thinking begun before the completion": ("#42\n</think>\nso", Status.NO_ANSWER),
    "an unclosed box": (r"\boxed{42", Status.NO_ANSWER),
    "a box and an unclosed one": (r"\boxed{42} and \boxed{", Status.NO_ANSWER),
    "a box without braces": (r"\boxed 42", Status.NO_ANSWER),
    "an empty box": (r"\boxed{}", Status.NO_ANSWER),
    "a box in a box": (r"\boxed{\boxed{42}}", Status.NO_ANSWER),
    "not marked": ("The answer is 42.", Status.NO_ANSWER),
    "within a line": ("so #42", Status.NO_ANSWER),
    "too many marks": ("#####42", Status.NO_ANSWER),
    "in words": ("#forty-two", Status.NO_ANSWER),
    "nothing": ("", Status.NO_ANSWER),
    "marks only": ("#\n##\n", Status.NO_ANSWER),
    "another script": ("#\uff14\uff12", Status.NO_ANSWER),
}


@pytest.mark.parametrize("completion", RIGHT)
def test_what_is_right(completion: str) -> None:
    verdict = ask(completion)
    assert (verdict.score, verdict.status, verdict.detail) == (1.0, Status.RIGHT, "")


@pytest.mark.parametrize(("completion", "status"), WRONG.values(), ids=WRONG)
def test_what_is_not(completion: str, status: Status) -> None:
    verdict = ask(completion)
    assert (verdict.score, verdict.status) == (0.0, status)
    assert verdict.detail


def test_two_answers_are_told_from_a_wrong_one() -> None:
    assert ask("#41\n#42").detail == "two different answers"
    assert ask("#41").detail == "not 42"


@pytest.mark.parametrize(
    ("gold", "answer", "right"),
    [
        ("50", "50%", True), ("50%", "50", True), ("50%", r"50\%", True), ("50%", "50 percent", True),
        ("0.5", "50%", False), ("50%", "0.5", False), ("50%", "$50", False),
        ("10 km", "10 km", True), ("10 km", "10", True), ("10", "10 m", True), ("10 km", "10 m", False),
        ("$18", "18 dollars", True), ("18 dollars", "$18 dollars", True), ("$18", "€18", False),
        ("1 apple", "1 Apples", True), ("1/3", "0.33", False), ("0.5", "1/2", True), ("1e3", "1,000", True),
    ],
)  # fmt: skip
def test_a_unit_counts_where_both_sides_name_one(gold: str, answer: str, right: bool) -> None:
    assert ask(f"#{answer}", gold).status is (Status.RIGHT if right else Status.WRONG)


def test_a_gold_answer_that_is_no_number_is_no_fault_of_the_completion() -> None:
    problem = Problem(id="p", source="s", prompt="x", answer="forty-two", verifier="numeric")
    assert "'forty-two' is not one number" in str(check_gold(problem))
    assert verify("#42", problem).status is Status.INFRASTRUCTURE
    assert "is missing" in str(check_gold(problem.model_copy(update={"answer": None})))
    long = problem.model_copy(update={"answer": "9" * 10_000})
    assert len(str(check_gold(long))) < 300


@given(st.integers(-(10**90), 10**90) | st.decimals(-(10**20), 10**20, places=6) | st.fractions(max_denominator=10**9))
def test_every_number_is_right_for_itself(number: int | Decimal | Fraction) -> None:
    for text in (f"#{number}", f"#### {number}", f"$\\boxed{{{number}}}$"):
        assert ask(text, str(number)).status is Status.RIGHT
        assert ask(text, f"{Fraction(number) + 1}").status is Status.WRONG


@given(st.integers(-(10**30), 10**30))
def test_thousands_are_grouped_or_not(number: int) -> None:
    for separator in (",", "{,}", r"\,"):
        assert ask("#" + f"{number:,}".replace(",", separator), str(number)).status is Status.RIGHT


PIECES = ["#", "####", "\\boxed", "{", "}", "42", "-", ".", ",", "/", "\\frac", " ", "\n", "$", "%", "e", "**",
          "\\text", "<think>", "</think>", "km", "½", "\u202f", "\\,", "(", "=", "9" * 50,
          "\ud800", "\x00"]  # fmt: skip


@settings(max_examples=1000)
@given(st.text(max_size=200) | st.lists(st.sampled_from(PIECES), max_size=30).map("".join))
def test_nothing_breaks_it(completion: str) -> None:
    verdict = ask(completion)
    assert verdict.status in (Status.RIGHT, Status.WRONG, Status.NO_ANSWER)
    assert verdict.score == (verdict.status is Status.RIGHT)
    assert (verdict.extracted is None) <= (verdict.status is Status.NO_ANSWER)
    if verdict.status is Status.RIGHT:
        assert "42" in completion or "9" * 50 in completion


@pytest.mark.parametrize(
    "piece",
    [
        *PIECES,
        "\\boxed{",
        "\\boxed ",
        "#1\n",
        "# ",
        "#$*",
        "\\text{",
        "\\boxed{1}",
        "#\\text{",
        "a-",
        "1,",
        "1 1/",
        "\\frac{1}",
    ],
)
def test_time_is_linear(piece: str) -> None:
    for start in ("", "#", "#1", "#1 ", "\\boxed{", "\\boxed{1 "):
        completion = (start + piece * MAX_COMPLETION)[:MAX_COMPLETION]
        begun = time.process_time()
        ask(completion)
        assert time.process_time() - begun < 0.5
