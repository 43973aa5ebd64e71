"""Comparison of RoPE scalings: its texts, its measurements against plain passes, and the whole command."""

from __future__ import annotations

import csv
import hashlib
import json
import shutil
import struct
import tracemalloc
import warnings
from dataclasses import replace
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_folder import save_tiny_model
from toy_tokenizers import CHATML, bytelevel, with_template
from typer.testing import CliRunner

import attnprobe as ap
from attnprobe import rope_study
from attnprobe.cli import app
from attnprobe.cli_options import depth_parts
from attnprobe.cli_rope import compare
from attnprobe.estimates import json_values
from attnprobe.grid_config import load_config
from attnprobe.prompt import encode_answer
from attnprobe.rope_cells import measure_text, spread
from attnprobe.rope_config import RopeConfig
from attnprobe.rope_data import RopePlan
from attnprobe.rope_folder import read_rope, rope_about
from attnprobe.rope_needles import NeedleText, arrangement, needle_text
from attnprobe.rope_options import Margins, RopeOptions, scaling_names, short_name
from attnprobe.tasks.items import NeedleItem

WINDOW = 700
LENGTHS = (480, 900)
ANSWERS = ("62 cars", "dark green", "Ilse", "dock 17", "barley", "QX-4", "22:14")
ITEMS = tuple(
    NeedleItem(
        id=f"item{number}",
        domain="a place",
        wordings=(f"Thing {'abcdefg'[number]} is {answer}.",),
        question=f"What is thing {'abcdefg'[number]}?",
        answer=answer,
        foil="nothing at all",
    )
    for number, answer in enumerate(ANSWERS)
)
OPTIONS = RopeOptions(lengths=LENGTHS, depths=(0, 0.5, 1), texts=2, n_heads=2)


def text_of(length: int, number: int = 0, options: RopeOptions = OPTIONS) -> NeedleText:
    return needle_text(ITEMS, number, length, options, with_template(bytelevel, CHATML))


def prompt_ids(text: NeedleText, tokenizer: Any) -> list[tuple[int, ...]]:
    return [
        (*encoded.token_ids, *encode_answer(encoded, tokenizer, needle.answer)[0])
        for needle in text.needles
        for encoded in [needle.prompt.encode(tokenizer)]
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_tiny_model(tmp_path_factory.mktemp("model"), max_position_embeddings=WINDOW))


@pytest.fixture(scope="module")
def needles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("needles") / "needles.jsonl"
    keys = ("id", "wordings", "question", "answer", "foil")
    lines = [json.dumps({key: getattr(item, key) for key in keys}) + "\n" for item in ITEMS]
    path.write_text("".join(lines), encoding="utf-8")
    return path


def test_every_prompt_of_a_text_has_its_length_and_begins_like_the_others() -> None:
    tokenizer = with_template(bytelevel, CHATML)
    seen = []
    for number in (0, 1):
        for length in LENGTHS:
            text = text_of(length, number)
            assert [len(ids) for ids in prompt_ids(text, tokenizer)] == [length] * 3
            for needle in text.needles:
                assert needle.answer in needle.prompt.documents[needle.document].text
                assert needle.prompt.question == next(item.question for item in ITEMS if item.id == needle.item)
                assert needle.prompt.question in needle.prompt.render(tokenizer).text
            assert text.depths == pytest.approx((0, 0.5, 1), abs=0.2)
            assert text.depths[0] == 0
            assert text.depths[2] == 1
            first, *others = ([document.text for document in needle.prompt.documents] for needle in text.needles)
            assert all(documents[:2] == first[:2] for documents in others)
            seen.append([needle.item for needle in text.needles])
    assert seen[0] == seen[1]
    assert seen[2] == seen[3]
    assert not set(seen[0]) & set(seen[2])
    assert text_of(LENGTHS[0]).needles == text_of(LENGTHS[0]).needles


@pytest.mark.parametrize(("n_items", "n_depths"), [(7, 3), (13, 5), (5, 5)])
def test_items_go_round_the_depths(n_items: int, n_depths: int) -> None:
    texts = arrangement(n_items, n_depths, n_items, seed=0)
    assert all(len(set(text)) == n_depths for text in texts)
    times = np.zeros((n_items, n_depths), dtype=int)
    for text in texts:
        times[text, range(n_depths)] += 1
    assert (times.sum(axis=1) == n_depths).all()
    assert times.max() <= 2
    assert (times > 0).mean() > 0.9
    assert arrangement(n_items, n_depths, 2, seed=0) == texts[:2]
    assert arrangement(n_items, n_depths, 2, seed=1) != texts[:2]


def test_texts_that_cannot_be() -> None:
    tokenizer = with_template(bytelevel, CHATML)
    for n_items, message in ((1, "1 needle for 3 depths; give fewer depths"), (2, "2 needles for 3 depths")):
        with pytest.raises(ap.InputError, match=message):
            needle_text(ITEMS[:n_items], 0, 480, OPTIONS, tokenizer)
    with pytest.raises(
        ap.InputError, match='a length of 90 tokens is too short: prompt and answer of the needle "item'
    ):
        text_of(90)
    twice = (*ITEMS[:2], replace(ITEMS[2], wordings=("Thing c is Ilse, not 62 cars.",)))
    with pytest.raises(ap.InputError, match='"item2" holds an answer to the question of "item0"'):
        needle_text(twice, 0, 480, OPTIONS, tokenizer)
    spelled = (*ITEMS[:2], replace(ITEMS[2], answer="12 cars", wordings=("Thing c is twelve cars.",)))
    with pytest.raises(
        ap.InputError, match='needle "item2" does not hold the answer "12 cars" word for word; write it'
    ):
        needle_text(spelled, 0, 480, OPTIONS, tokenizer)
    for options, message in (
        ({"lengths": ()}, "there are no lengths"),
        ({"lengths": (0,)}, "length must be at least 1"),
        ({"lengths": (9,), "depths": (0.5, 0.1)}, "give ascending parts"),
        ({"lengths": (9,), "depths": (0.5, 1.5)}, "from 0 to 1"),
        ({"lengths": (9,), "texts": 0}, "texts must be at least 1"),
    ):
        with pytest.raises(ap.InputError, match=message):
            RopeOptions(**options)  # type: ignore[arg-type]


def test_scalings_by_name() -> None:
    assert scaling_names(["yarn:4", "none", "linear:factor=2"]) == ("none", "yarn:factor=4.0", "linear:factor=2.0")
    assert scaling_names([]) == ("none",)
    with pytest.raises(ap.InputError, match=r'"yarn:factor=4\.0" is given twice'):
        scaling_names(["yarn:4", "yarn:factor=4.0"])
    for name in (
        "yarn:factor=4.0",
        "ntk:factor=1.5",
        "none",
        "llama3:factor=8.0,high_freq_factor=4.0,low_freq_factor=1.0",
    ):
        assert scaling_names([short_name(name)])[-1] == name
    assert short_name("yarn:factor=4.0") == "yarn:4"


@pytest.mark.parametrize(
    ("scaling", "length"),
    [
        ("none", 480),
        ("yarn:factor=2", 900),
        ("dynamic:factor=2", 480),
        ("dynamic:factor=2", 900),
        ("longrope:short_factor=[1,1,1,1],long_factor=[1,1.5,2,2],factor=2", 900),
    ],
    ids=lambda value: str(value).partition(":")[0],
)
def test_a_cell_is_what_plain_passes_give(folder: str, scaling: str, length: int) -> None:
    """The prompts of a text share keys, and the numbers are those of each prompt fed alone to transformers' model."""
    lm = ap.load(folder, rope=scaling, progress=False)
    text = text_of(length)
    result = measure_text(lm, text)
    facts = result.facts["needles"]
    assert [one["tokens"] for one in facts] == [length] * 3
    assert sorted(one["reused_tokens"] > 0 for one in facts) == [False, True, True]
    losses, prompts = [], b""
    for depth, (needle, ids) in enumerate(zip(text.needles, prompt_ids(text, lm.tokenizer), strict=True)):
        fresh = ap.load(folder, rope=scaling, progress=False).model
        with torch.no_grad():
            logits = fresh(torch.tensor([ids[:-1]])).logits[0].double()
        loss = torch.nn.functional.cross_entropy(logits, torch.tensor(ids[1:]), reduction="none").numpy()
        n_answer = len(ids) - needle.prompt.encode(lm.tokenizer).n_tokens
        assert result.arrays["logprob"][depth] == pytest.approx(-loss[-n_answer:].sum(), abs=1e-3)
        losses.append(loss[:-n_answer])
        prompts += struct.pack(f"<{length - n_answer}q", *ids[:-n_answer])
        alone = ap.measure(lm, needle.prompt, answer=needle.answer, beyond_window=True)
        own = alone.document_spans[needle.document]
        np.testing.assert_allclose(result.arrays["mass"][depth], alone.mass[..., own], atol=1e-5)
        wanted = alone.curve("advantage").values[needle.document]
        assert result.arrays["advantage"][depth].mean() == pytest.approx(wanted, abs=1e-4)
        assert result.arrays["sink"][depth] == pytest.approx(alone.budget()["sink"], abs=1e-5)
    fed_whole = next(depth for depth, one in enumerate(facts) if one["reused_tokens"] == 0)
    np.testing.assert_allclose(result.arrays["loss"], losses[fed_whole], atol=1e-3)
    assert result.arrays["slices"].sum(axis=-1) == pytest.approx(1, abs=1e-5)
    assert result.facts["ids_sha256"] == hashlib.sha256(prompts).hexdigest()
    (in_use,) = result.facts["rope"].values()
    assert in_use["rope_type"] == {"none": "default"}.get(scaling, scaling.partition(":")[0])


def test_a_cell_does_not_depend_on_those_before_it(folder: str) -> None:
    """Frequencies of dynamic scaling grow with the longest prompt, and must not stay."""
    lm = ap.load(folder, rope="dynamic:factor=2", progress=False)
    alone = measure_text(lm, text_of(480))
    measure_text(lm, text_of(900))
    after = measure_text(lm, text_of(480))
    for name, array in alone.arrays.items():
        np.testing.assert_allclose(after.arrays[name], array, atol=1e-5, err_msg=name)
    assert after.facts["rope"] == alone.facts["rope"]


def test_out_of_memory_changes_no_number(folder: str) -> None:
    for scaling in ("dynamic:factor=2", "yarn:factor=2"):
        lm = ap.load(folder, rope=scaling, progress=False)
        first, again = (measure_text(lm, text_of(900), relief) for relief in (0, 2))
        for name, array in first.arrays.items():
            np.testing.assert_allclose(again.arrays[name], array, atol=1e-4, err_msg=name)


def test_losses_are_left_out_where_the_head_is_not_plain(make_lm: Any) -> None:
    """gemma2 caps its logits behind the output head, so what the head gives is not what the model says."""
    text = needle_text(ITEMS, 0, 480, OPTIONS, bytelevel())
    for family, known in (("llama", True), ("gemma2", False)):
        lm = make_lm(family, max_position_embeddings=WINDOW, **({} if known else {"final_logit_softcapping": 2.0}))
        result = measure_text(lm, text)
        assert ("loss" in result.arrays) is known
        assert any("losses are left out" in warning for warning in result.facts["warnings"]) is not known


def test_spread_by_hand() -> None:
    mass = np.zeros((1, 2, 41))
    mass[..., 0] = 0.5  # the sink
    mass[0, 0, 1] = 0.5  # one head looks at one token of the documents,
    mass[0, 1, 1:41] = 0.5 / 40  # the other one at all alike
    slices, entropy = spread(mass, 1, 41)
    assert slices == pytest.approx([0.55, *[0.05] * 9])
    assert entropy == pytest.approx(np.log(40) / 2)


def test_spread_where_there_is_nothing_to_spread() -> None:
    mass = np.zeros((1, 2, 41))
    mass[0, 0, 0] = 1  # one head gives all to the sink,
    mass[0, 1, 39:41] = 0.5  # the other one to two tokens behind the documents
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        slices, entropy = spread(mass, 1, 31)
    assert np.isnan(slices).all()
    assert entropy == pytest.approx(np.log(2))


def test_spread_holds_no_second_copy_of_all_masses() -> None:
    mass = np.random.default_rng(0).random((16, 4, 20_000), dtype=np.float32)
    tracemalloc.start()
    spread(mass, 1, 20_000)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < mass.nbytes


def test_documents_that_no_row_sees_have_no_share(make_lm: Any) -> None:
    """Windows of 7 tokens end behind the documents: what is measured of attention is undefined there, not 0."""
    lm = make_lm("mistral", max_position_embeddings=WINDOW)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        result = measure_text(lm, needle_text(ITEMS, 0, 480, OPTIONS, bytelevel()))
    for name in ("slices", "advantage"):
        assert np.isnan(result.arrays[name]).all()
    for name in ("logprob", "entropy", "loss"):
        assert np.isfinite(result.arrays[name]).all()


def command(folder: str, needles: Path, out: Path, *more: str) -> Any:
    lengths = ",".join(map(str, LENGTHS))
    common = ["--items", str(needles), "--out", str(out), "--lengths", lengths, "--depths", "0,0.5,1", "--texts", "2"]
    return CliRunner().invoke(app, ["rope", folder, *common, "--top", "2", *more])


def test_depths_that_fall_on_one_place_are_said(folder: str) -> None:
    lm = ap.load(folder, progress=False)
    said = [
        any("stand at one place" in warning for warning in measure_text(lm, one).facts["warnings"])
        for one in (text_of(480), text_of(480, options=replace(OPTIONS, depths=(0, 0.001, 1))))
    ]
    assert said == [False, True]


def test_the_command_has_the_defaults_of_the_options() -> None:
    given = {name: one.default for name, one in signature(compare).parameters.items()}
    wanted = RopeOptions(lengths=(1,))
    assert depth_parts(given["depths"]) == wanted.depths
    assert [given[name] for name in ("texts", "filler", "seed", "top")] == [
        wanted.texts, wanted.filler, wanted.seed, wanted.n_heads
    ]  # fmt: skip
    assert Margins(given["margin_logprob"], given["margin_advantage"], given["margin_loss"]) == wanted.margins


def counted(monkeypatch: pytest.MonkeyPatch, stop_after: int | None = None) -> list[str]:
    """Keys of the texts that are measured from now on; interrupts after so many of them."""
    measured: list[str] = []
    original = rope_study.measure_text

    def measure(lm: Any, text: NeedleText, relief: int = 0) -> Any:
        if len(measured) == stop_after:
            raise KeyboardInterrupt
        measured.append(f"{lm.source.rope} {text.length} {text.number}")
        return original(lm, text, relief)

    monkeypatch.setattr(rope_study, "measure_text", measure)
    return measured


def test_from_the_command_to_the_pictures(
    folder: str, needles: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    first = counted(monkeypatch, stop_after=5)
    stopped = command(folder, needles, out, "--scaling", "yarn:2")
    assert stopped.exit_code == 130, stopped.output
    assert f"interrupted: every finished cell is kept in {out}" in stopped.stderr
    monkeypatch.undo()
    plan = RopePlan(folder, ("none", "yarn:factor=2.0"), OPTIONS, WINDOW)
    unfinished = read_rope(out)
    assert unfinished.data.plan == plan
    assert len(unfinished.data.incomplete) == 3
    shutil.copytree(out, tmp_path / "part")
    rest = counted(monkeypatch)
    result = command(folder, needles, out, "--scaling", "yarn:2")
    assert result.exit_code == 0, result.output
    assert (len(first), len(rest)) == (5, 3)  # 2 scalings x 2 lengths x 2 texts, none twice
    assert not set(first) & set(rest)
    assert all(len(line) <= 80 for line in result.stdout.splitlines())
    text = " ".join(result.stdout.split())
    assert (
        "2 RoPE scalings, trained on 700 positions; 2 texts of each length with a needle at 3 depths, 6 items" in text
    )
    assert "900*" in text
    assert "480*" not in text
    found = json.loads((out / "summary.json").read_text())
    assert json_values(read_rope(out).to_dict()) == found
    none, yarn = found["verdicts"]
    assert (none["scaling"], yarn["scaling"]) == ("none", "yarn:factor=2.0")
    assert none["in_window_cost"] == []
    assert [one["metric"] for one in yarn["in_window_cost"]] == ["logprob", "advantage", "loss"]
    assert [(one["length"], one["inside_window"]) for one in yarn["lengths"]] == [(480, True), (900, False)]
    # The unscaled model in its window is what it is compared with.
    assert [one["estimate"] for one in none["lengths"][0]["middle_against_unscaled_in_window"]] == [0, 0]
    in_use = {(one["scaling"], one["length"]): one["in_use"] for one in found["rope"]}
    assert in_use["none", 480] != in_use["yarn:factor=2.0", 480]
    with (out / "table.csv").open() as file:
        table = list(csv.DictReader(file))
    cost = yarn["in_window_cost"][2]["estimate"]
    losses = {(row["scaling"], row["length"]): float(row["estimate"]) for row in table
              if row["metric"] == "loss" and row["place"] == ""}  # fmt: skip
    assert cost == pytest.approx(losses["yarn:factor=2.0", "480"] - losses["none", "480"], rel=1e-3, abs=1e-4)
    spectrum = [float(row["estimate"]) for row in table
                if row["metric"] == "distance" and (row["scaling"], row["length"]) == ("none", "480")]  # fmt: skip
    sink = next(float(row["estimate"]) for row in table if row["metric"] == "sink" and row["length"] == "480")
    assert len(spectrum) == 10  # distances 0 to 511
    assert sum(spectrum) + sink == pytest.approx(1, abs=1e-4)
    for name in ("scalings.png", "scaling-needles.png", "scaling-losses.png"):
        assert (out / name).read_bytes().startswith(b"\x89PNG")

    rest.clear()
    merged = CliRunner().invoke(app, ["merge", str(tmp_path / "part"), str(out), "--out", str(tmp_path / "whole")])
    assert merged.exit_code == 0, merged.output
    assert rest == []
    for name in ("summary.json", "table.csv", "scalings.png", "scaling-needles.png", "scaling-losses.png"):
        assert (tmp_path / "whole" / name).read_bytes() == (out / name).read_bytes()
    alone = CliRunner().invoke(app, ["merge", str(tmp_path / "part"), "--out", str(tmp_path / "alone")])
    assert alone.exit_code == 1, alone.output  # cells are missing
    assert len(json.loads((tmp_path / "alone" / "summary.json").read_text())["incomplete"]) == 3
    assert command(folder, needles, tmp_path / "whole", "--scaling", "yarn:2", "-q").exit_code == 0
    assert rest == []
    assert (tmp_path / "whole" / "table.csv").read_text() == (out / "table.csv").read_text()

    more = command(folder, needles, out, "--scaling", "yarn:2", "--scaling", "dynamic:2", "--json", "-q")
    assert more.exit_code == 0, more.output
    assert more.stderr == ""
    assert {one.split()[0] for one in rest} == {"dynamic:factor=2.0"}
    verdicts = json.loads(more.stdout)["verdicts"]
    assert [one["estimate"] for one in verdicts[2]["in_window_cost"]] == pytest.approx([0, 0, 0], abs=1e-4)

    rest.clear()
    config = tmp_path / "rope.yaml"
    lines = ["kind: rope", f"model: {folder}", 'scalings: ["yarn:2", "dynamic:2"]', f"lengths: {list(LENGTHS)}"]
    lines += ["texts: 2", "depths: [0, 0.5, 1]", f"items: {needles}", "n_heads: 2", "out: out"]
    config.write_text("\n".join(lines))
    configured = CliRunner().invoke(app, ["run", str(config), "-q"])
    assert configured.exit_code == 0, configured.output
    assert rest == []
    text = " ".join(configured.stdout.split())
    assert "dynamic:2 with the unscaled model's own frequencies at 480 in-window cost" in text

    about = (out / "rope.json").read_bytes()
    assert read_rope(out).data.plan.scalings == ("none", "yarn:factor=2.0", "dynamic:factor=2.0")
    refused = command(folder, needles, out, "--seed", "1", "-q")
    assert refused.exit_code == 2
    assert "holds results of other settings: options.seed is 0 there" in refused.stderr
    refused = command(folder, needles, out, "--lengths", "480", "-q")
    assert "holds results of other settings: lengths is [480, 900] there and [480] now" in refused.stderr
    assert (out / "rope.json").read_bytes() == about
    other = command(folder, needles, out, "--scaling", "dynamic:2", "--margin-loss", "0.5", "-q")
    assert other.exit_code == 0, other.output
    plan = read_rope(out).data.plan
    assert plan.scalings == ("none", "dynamic:factor=2.0")
    assert plan.options.margins.loss == 0.5
    asked = rope_about(out)["asked"]
    assert (asked["class"], asked["dtype"], asked["attn_implementation"]) == ("LlamaForCausalLM", "float32", "sdpa")


def test_the_last_process_writes_the_results(
    folder: str, needles: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each leaves one scaling to the other: the second ends the first scaling, the first one ends the second."""
    original, results = rope_study.measure_text, []

    def compare(process: int) -> Any:
        monkeypatch.setenv("RANK", str(process))
        return command(folder, needles, tmp_path / "out", "--scaling", "yarn:2", "--lengths", "480", "-q")

    def measure(lm: Any, text: NeedleText, relief: int = 0) -> Any:
        if not results and lm.source.rope != "none":
            results.append(None)
            results[0] = compare(1)
            monkeypatch.setenv("RANK", "0")
        return original(lm, text, relief)

    monkeypatch.setattr(rope_study, "measure_text", measure)
    monkeypatch.setenv("WORLD_SIZE", "2")
    last = compare(0)
    assert [one.exit_code for one in (*results, last)] == [0, 0]
    assert (results[0].stdout, "2 RoPE scalings" in last.stdout) == ("", True)
    assert (tmp_path / "out" / "summary.json").exists()


def test_one_with_other_weights_or_texts_is_not_compared(folder: str, needles: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert command(folder, needles, out, "--scaling", "yarn:2", "-q").exit_code == 0
    (file,) = (out / "yarn-factor=2.0" / "cells").glob("cells-*.jsonl")
    content = file.read_text()
    for key, message in (
        ("weights_sample_sha256", "the scalings were measured on different weights"),
        ("ids_sha256", "of 480 tokens is not the same under none and yarn:factor=2.0"),
    ):
        records = [json.loads(line) for line in content.splitlines()]
        for record in records:
            record["result"][key] = "0" * 64
        file.write_text("".join(json.dumps(record) + "\n" for record in records))
        result = command(folder, needles, out, "--scaling", "yarn:2", "-q")
        assert result.exit_code == 2
        assert message in " ".join(result.stderr.split())


def test_failed_cells_are_said_and_the_rest_judged(
    folder: str, needles: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = rope_study.measure_text
    fails = {(480, 1), (900, 1)}

    def measure(lm: Any, text: NeedleText, relief: int = 0) -> Any:
        if (text.length, text.number) in fails:
            raise ap.InputError("no such luck")
        return original(lm, text, relief)

    monkeypatch.setattr(rope_study, "measure_text", measure)
    result = command(folder, needles, tmp_path / "out", "--scaling", "yarn:2", "-q")
    assert result.exit_code == 1, result.output
    text = " ".join(result.stdout.split())
    assert "without a result: 4 cells, e.g. none, 480 tokens, text 1: InputError: no such luck" in text
    assert "3 items, answers forced" in text
    fails.remove((480, 1))
    again = command(folder, needles, tmp_path / "out", "--scaling", "yarn:2", "-q", "--retry-failed")
    assert "without a result: 2 cells, e.g. none, 900 tokens, text 1" in " ".join(again.stdout.split())
    fails.add((480, 0))
    nothing = command(folder, needles, tmp_path / "none", "--lengths", "480", "--texts", "1", "-q")
    assert nothing.exit_code == 2
    assert "nothing was measured; the first cell, none, 480 tokens, text 0: InputError: no such luck" in nothing.stderr


def test_a_model_that_cannot_be_watched_and_filler_that_ends_are_refused_before_anything(
    folder: str, needles: Path, tmp_path: Path
) -> None:
    falcon = str(save_tiny_model(tmp_path / "falcon", "falcon", max_position_embeddings=WINDOW))
    refused = command(falcon, needles, tmp_path / "out", "-q")
    assert refused.exit_code == 2
    assert "FalconForCausalLM does not use transformers' attention interface" in " ".join(refused.stderr.split())
    text = tmp_path / "text.txt"
    text.write_text("A lazy dog sleeps in the sun. " * 35)  # enough for 480 tokens, not for 900
    refused = command(folder, needles, tmp_path / "out", "-q", "--filler", f"file:{text}")
    assert refused.exit_code == 2
    assert "the filler file:text.txt is too short: it fills a prompt of" in " ".join(refused.stderr.split())
    assert not (tmp_path / "out").exists()


def test_scalings_that_the_model_cannot_take_are_refused_before_anything(
    folder: str, needles: Path, tmp_path: Path
) -> None:
    for scaling, message in (
        ("yarn:0.5", "factor must be at least 1"),
        ("longrope:short_factor=[1,1],long_factor=[2,2]", "have 2 values; this model needs 4"),
    ):
        result = command(folder, needles, tmp_path / "out", "--scaling", scaling, "-q")
        assert result.exit_code == 2, result.output
        assert message in " ".join(result.stderr.split())
    assert not (tmp_path / "out").exists()
    for option, value, message in (
        ("--depths", "0,half", '--depths is "0,half"; give numbers from 0 (start) to 1 (end)'),
        ("--lengths", "2k,many", '--lengths is "2k,many"; give numbers of tokens'),
        ("--margin-loss", "0", "margin of the loss must be a finite number above 0"),
    ):
        result = command(folder, needles, tmp_path / "out", option, value, "-q")
        assert result.exit_code == 2
        assert message in result.stderr


@pytest.mark.parametrize("name", ["rope_scaling", "rope_scaling_tiny", "rope_scaling_gpu"])
def test_the_configs_can_be_run(name: str) -> None:
    config = load_config(Path(__file__).parents[2] / "configs" / f"{name}.yaml")
    assert isinstance(config, RopeConfig)
    assert scaling_names(config.scalings)[0] == "none"
    assert config.texts >= 5
