"""The demonstration: a balanced design, honest numbers, and a picture; once on the real model."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
from toy_tokenizers import smollm2

import attnprobe as ap
from attnprobe.demo import ANSWER, DOCUMENTS, GOLD, QUESTION, demo, demo_lines, rotations
from attnprobe.report.style import WIDTHS


def test_every_document_stands_once_at_every_position() -> None:
    prompts = rotations()
    assert len(prompts) == len(DOCUMENTS) == 10
    for position in range(10):
        assert {prompt.documents[position].id for prompt in prompts} == {document.id for document in DOCUMENTS}
    assert len({prompt.question for prompt in prompts}) == 1


def test_only_the_gold_document_holds_the_answer() -> None:
    holding = [document.id for document in DOCUMENTS if "47" in document.text]
    assert holding == [GOLD]
    assert "47 days" in ANSWER
    words = Counter(document.id for document in DOCUMENTS for _ in document.text.split())
    assert max(words.values()) < 1.5 * min(words.values())  # lengths must not make the curve


def test_demo_on_a_tiny_model(make_lm: Any, tmp_path: Path) -> None:
    lm = make_lm(max_position_embeddings=4096)
    result = demo(lm, tmp_path / "out")
    shares = np.array([one.curve.values for one in result.folder.results if one.curve is not None])
    assert result.mean.curve is not None
    np.testing.assert_allclose(result.mean.curve.values, shares.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(shares.sum(axis=1), 1, atol=1e-6)
    for one in result.folder.results:
        assert one.curve is not None
        assert one.answer.strip() == ANSWER
        place = one.curve.documents.index(GOLD)
        assert result.gold_shares[place] == one.curve.values[place]
    assert (result.gold_shares > 0).all()
    lines = demo_lines(result, "tiny")
    assert all(len(line) <= 80 for line in lines)
    table = [line for line in lines if re.match(r" *\d+ +\d+\.\d %", line)]
    assert [int(line.split()[0]) for line in table] == list(range(10))
    assert float(table[3].split()[1]) == pytest.approx(100 * result.mean.curve.values[3], abs=0.05)
    content = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert len(content["rotations"]) == 10
    image = matplotlib.image.imread(result.pictures[0])
    assert image.shape[1] == 300 * WIDTHS["page"]
    page = result.pages[1].read_text(encoding="utf-8")
    assert '<a href="./heatmap.html">Attention on rotation-0 (answer, the model&#x27;s own)</a> (heatmap.html)' in page
    assert "extras" not in page.split('<section id="text"')[1].split("</section>")[0]
    assert "first rotation with the model's own answer" in " ".join(" ".join(lines).split())
    assert "Every document stood once at every position" in page
    assert "no verdict on position" not in page
    assert QUESTION in page.split('<section id="verdict"')[0]
    assert demo(lm, tmp_path / "out").folder.n_measured == 0


@pytest.mark.slow
def test_demo_on_smollm2(tmp_path: Path) -> None:
    smollm2()  # skips where the model is not installed
    begin = time.process_time()
    result = demo(ap.load("smollm2", progress=False), tmp_path)
    assert time.process_time() - begin < 2 * 90  # 90 s on two cores, whoever else uses them
    curve = result.mean.curve
    assert curve is not None
    assert "47 days" in result.own_answer
    assert curve.head_middle is not None
    assert curve.tail_middle is not None
    assert curve.head_middle > 2
    assert curve.tail_middle > 1.3
    assert (result.gold_shares > curve.values).all()  # the document with the answer gets more at every position
    assert result.mean.residual < 1e-4
