import json
import re
import subprocess
import sys
from html.parser import HTMLParser

import pytest
from pydantic import ValidationError

from tasks.config.schema import Gate, Guard, Primary
from tasks.gating import decide
from tasks.reporting import Report, changed_items, render
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


def make(wins=300, losses=8, **changes):
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


def test_the_page_says_what_the_run_did_in_the_order_a_reader_needs():
    page = Page(render(make(promotion={"version": "3", "alias": "champion", "previous": "2"})))
    places = [
        page.visible.index(text)
        for text in (
            "Version 3 of arithmetic is now @champion; before it, version 2 was.",
            "Primary chains (acc) against sft: from 2.0 % to 75.0 %, +73.0 points",
            "The climb",
            "The gate",
            "Training: grpo",
            "Training: sft",
            "Answers that changed",
            "300 improved, 8 got worse. Shown: 10.",
            "Stages",
            "of an earlier run",
            "Lineage",
            "c0ffee with changes that are not committed",
            "0cc175b9c0f1b6a831c399e269772661",
            '"confidence": 0.95',
            "trl==1.16.0",
        )
    ]
    assert places == sorted(places)
    assert "2031-02-03 04:05 UTC · took 1 min 11 s" in page.visible and "1 h 2 min" in page.visible


@pytest.mark.parametrize(
    ("wins", "losses", "label"), [(300, 8, "Promote"), (8, 300, "Hold"), (12, 8, "Inconclusive"), (0, 0, "Hold")]
)
def test_each_decision_has_its_headline_and_deciding_reason(wins, losses, label):
    report = make(wins, losses)
    page = Page(render(report))
    assert report.verdict.decision == {"Promote": "promote"}.get(label, label.lower())
    assert label in page.visible
    assert report.verdict.reasons[0] in page.visible


def test_the_page_needs_nothing_but_itself():
    html = render(make())
    page = Page(html)
    assert not {tag for tag, _ in page.tags} & {"script", "iframe", "img", "object", "embed", "base", "form"}
    links = [value for _, attrs in page.tags for key, value in attrs.items() if key in ("href", "src", "srcset")]
    assert links and all(link.startswith(("#", "data:")) for link in links)
    assert not re.search(r"url\((?!#)|@import|https?://(?!www\.w3\.org/2000/svg)", html)
    assert not any(key.startswith("on") for _, attrs in page.tags for key in attrs)
    policy = next(attrs["content"] for tag, attrs in page.tags if attrs.get("http-equiv"))
    assert policy.startswith("default-src 'none'") and "script-src" not in policy


def test_text_of_the_run_stays_text_wherever_it_stands():
    rungs = [rung(EVIL, {"a": 1.0, "b": 0.0}), rung("grpo", {"a": 1.0, "b": 1.0})]
    html = render(
        make(
            name=EVIL,
            run_id=EVIL,
            candidate=EVIL,
            climb=[{"task": EVIL, "metric": EVIL, "rungs": rungs}],
            curves=[{"stage": EVIL, "series": {"loss": [(1, 1.0)]}}],
            stages=[{"name": EVIL, "key": EVIL, "cached": False, "seconds": 1, "status": EVIL}],
            promotion={"version": EVIL, "alias": EVIL, "previous": EVIL},
        )
    )
    page = Page(html)
    assert "script" not in {tag for tag, _ in page.tags} and "<script" not in html.lower()
    assert page.visible.count('<script>alert("x")</script>') > 15
    assert page.visible.count("{{ 7 * 7 }}") > 15 and "49" not in page.visible


def test_charts_are_drawn_for_known_series_and_follow_the_colour_scheme():
    html = render(make())
    charts = re.findall(r"<svg.*?</svg>", html, flags=re.S)
    assert len(charts) == 1 + 6 + 1
    assert all('role="img"' in chart and "currentColor" in chart for chart in charts)
    assert "num_tokens" not in html
    reward = next(chart for chart in charts if 'aria-label="grpo, Reward: from 0.05 to 1"' in chart)
    assert "var(--band)" in reward and "var(--line)" in reward
    drawn = set(re.findall(r"#[0-9a-f]{6}", "".join(charts)))
    assert drawn == set(), "every colour comes from the page's style"
    assert ">75.0 %</text>" in charts[0] and ">grpo</text>" in charts[0] and "var(--accent)" in charts[0]
    ids = re.findall(r' id="([^"]+)"', html)
    assert len(ids) == len(set(ids)) and set(re.findall(r'(?:url\(|href=")#([\w-]+)', html)) <= set(ids)


def test_dollar_signs_in_a_name_are_no_formula():
    rungs = [rung("a $x_1$", {"a": 1.0, "b": 0.0})]
    assert ">a $x_1$</text>" in render(make(climb=[{"task": "t", "metric": "acc", "rungs": rungs}]))


def test_a_gap_in_a_curve_splits_its_line():
    def line(values):
        html = render(make(curves=[{"stage": "s", "series": {"kl": list(enumerate(values))}}]))
        chart = next(c for c in re.findall(r"<svg.*?</svg>", html, flags=re.S) if "KL from" in c)
        return max((path.count("M") for path in re.findall(r' d="([^"]*)"', chart) if path.count("L") > 3), default=0)

    assert line([0.1, 0.3, 0.2, 0.5, 0.1, 0.4]) == 1
    assert line([0.1, 0.3, 0.2, None, 0.1, 0.4, 0.2]) == 2


def test_the_same_report_gives_the_same_bytes_also_from_json():
    report = make()
    html = render(report)
    assert render(report) == html
    assert render(Report.model_validate_json(report.model_dump_json())) == html


def test_a_bare_report_still_has_its_page():
    report = make(climb=[], curves=[], stages=[], samples=None)
    page = Page(render(report))
    assert "Lineage" in page.visible and "Training" not in page.visible and "Answers" not in page.visible
    assert not any(tag == "svg" for tag, _ in page.tags)


def test_scores_that_are_no_shares_are_shown_as_they_are():
    rungs = [{"model": "sft", "score": 22.5, "n": 9, "low": 20, "high": 25}]
    html = render(make(climb=[{"task": "t", "metric": "length", "rungs": rungs}]))
    assert ">22.5</text>" in html and "22.50" in Page(html).visible


def test_an_unknown_key_is_refused():
    with pytest.raises(ValidationError, match="titel"):
        make(titel="x")


def test_the_package_loads_without_matplotlib():
    code = "import sys, tasks.reporting; sys.exit('matplotlib' in sys.modules or 'jinja2' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
