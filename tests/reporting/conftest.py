"""For the tests of the report: a page that is checked as it is read, and a report to start from."""

import json
from html.parser import HTMLParser

import pytest

from tasks.config.schema import Gate, Guard, Primary
from tasks.gating import decide
from tasks.reporting import Report, changed_items
from tasks.stats import mean_interval

VOID = {"meta", "link", "br"}
EVIL = '<script>alert("x")</script> & \'" {{ 7 * 7 }} </pre><!-- $x_1$'


class Page(HTMLParser):
    """The tags of a page, checked to be nested as they should; visible text by enclosing tag."""

    def __init__(self, html):
        super().__init__()
        self.open, self.tags, self.text = [], [], []
        self.feed(html)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] != "style":
            self.text.append(data)

    @property
    def visible(self):
        return " ".join(" ".join(self.text).split())


def models(wins, losses, n=400):
    before = {str(i): float(wins <= i < wins + losses) for i in range(n)}
    return before, {str(i): float(i < wins) for i in range(n)}


def rows(scores, completion):
    return [
        {"id": i, "question": f"{i}+1", "target": EVIL, "completion": f"{completion}{i}", "score": {"acc": s}}
        for i, s in scores.items()
    ]


def rung(model, scores):
    low, high = mean_interval(list(scores.values()))
    return {"model": model, "score": sum(scores.values()) / len(scores), "n": len(scores), "low": low, "high": high}


def report(wins=300, losses=8, **changes):
    sft, grpo = models(wins, losses)
    key, side = ("chains", "acc"), ("short", "acc")
    rules = Gate(primary=Primary(task="chains"), guards=[Guard(task="short")])
    verdict = decide({key: grpo, side: sft}, {"sft": {key: sft, side: sft}}, rules)
    steps = range(1, 21)
    content = {
        "name": "arithmetic",
        "run_id": "run-7",
        "started": "2031-02-03T04:05:00+00:00",
        "seconds": 71.4,
        "candidate": "grpo",
        "verdict": json.loads(verdict.model_dump_json()),
        "climb": [{"task": "chains", "metric": "acc", "rungs": [rung("sft", sft), rung("grpo", grpo)]}],
        "curves": [
            {"stage": "sft", "series": {"loss": [(s, 2 / s) for s in steps]}},
            {
                "stage": "grpo",
                "series": {
                    "reward": [(s, s / 20) for s in steps],
                    "reward_std": [(s, 0.1) for s in steps],
                    "completions/mean_length": [(s, 10 + s) for s in steps],
                    "frac_reward_zero_std": [(s, s / 40) for s in steps],
                    "entropy": [(s, 1 / s) for s in steps],
                    "kl": [(s, float("nan") if s == 5 else 0.01 * s) for s in steps],
                    "loss": [(s, 0.0) for s in steps],
                    "num_tokens": [(s, 100 * s) for s in steps],
                },
            },
        ],
        "stages": [{"name": "sft", "key": "ab" * 32, "cached": True, "seconds": 3723, "status": "completed"}],
        "samples": changed_items("sft", "chains", "acc", rows(sft, EVIL), rows(grpo, "fine")),
        "lineage": {
            "data": {"data/chains.jsonl": "0cc175b9c0f1b6a831c399e269772661"},
            "git_commit": "c0ffee",
            "git_dirty": True,
            "base_model": "data/base",
            "seed": 42,
            "packages": {"trl": "1.16.0"},
            "params": {"gate": {"confidence": 0.95}, "note": EVIL},
        },
    }
    return Report.model_validate(content | changes)


@pytest.fixture
def evil():
    """Text that does harm in a page, or breaks it, unless it is escaped."""
    return EVIL


@pytest.fixture
def parse():
    """Reads a page; fails where its tags are not nested."""
    return Page


@pytest.fixture
def make():
    """Makes the report of a run of so many wins and losses, with changes to its keys."""
    return report
