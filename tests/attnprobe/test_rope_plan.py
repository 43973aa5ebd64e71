"""A planned comparison of RoPE scalings against the comparison itself: its cells, its tokens, its files."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tiny_folder import save_tiny_model
from typer.testing import CliRunner, Result

import attnprobe as ap
from attnprobe import cli, rope_plan
from attnprobe.blueprint import blueprint
from attnprobe.errors import InputError
from attnprobe.estimate import Rates
from attnprobe.prefix_cache import goes_on_exactly
from attnprobe.rope_cells import measure_text
from attnprobe.rope_needles import NeedleText, needle_text
from attnprobe.rope_options import RopeOptions
from attnprobe.rope_plan import PlannedScalings, plan_scalings
from attnprobe.tasks.items import NeedleItem, read_items

RATES = Rates(flops=1e11, bytes=1e10)
WINDOW = 700
ITEMS = read_items(None)[:7]
OPTIONS = RopeOptions(lengths=(600, 900), depths=(0, 0.5, 1), texts=2)


@pytest.fixture(autouse=True)
def quick_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attnprobe.rope_plan.probe", lambda *_: RATES)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_tiny_model(tmp_path_factory.mktemp("model"), max_position_embeddings=WINDOW))


@contextmanager
def tokens_fed(lm: ap.LanguageModel) -> Iterator[list[int]]:
    """Tokens that the model's embeddings are asked for, call by call."""
    goes_on_exactly(lm.model)  # which runs the model
    fed: list[int] = []
    embeddings = lm.model.get_input_embeddings()
    hook = embeddings.register_forward_pre_hook(lambda _, arguments: fed.append(arguments[0].numel()))
    yield fed
    hook.remove()


def texts_of(folder: str, options: RopeOptions = OPTIONS) -> list[NeedleText]:
    tokenizer = blueprint(folder).lm.tokenizer
    return [needle_text(ITEMS, *place, options, tokenizer) for place in options.places]


def check_against_runs(folder: str, plan: PlannedScalings, texts: Sequence[NeedleText]) -> None:
    """Every number of a plan that is exact is that of measuring the texts."""
    arrays = lengths = 0
    for one in plan.scalings:
        lm = ap.load(folder, rope=one.scaling, progress=False)
        assert one.window == lm.max_positions
        with tokens_fed(lm) as fed:
            results = [measure_text(lm, text) for text in texts]
        assert one.tokens == sum(fed), one.scaling
        arrays += sum(array.nbytes for result in results for array in result.arrays.values())
        lengths += sum(needle["tokens"] for result in results for needle in result.facts["needles"])
    assert plan.disk == arrays
    assert plan.prompt_tokens == lengths
    assert plan.cells == len(plan.scalings) * len(texts)
    assert plan.tokens == sum(one.tokens for one in plan.scalings)


def test_a_plan_foretells_what_is_fed_and_written(folder: str) -> None:
    plan = plan_scalings(folder, ["linear:factor=2", "dynamic:factor=2"], OPTIONS, ITEMS)
    assert [one.scaling for one in plan.scalings] == ["none", "linear:factor=2.0", "dynamic:factor=2.0"]
    check_against_runs(folder, plan, texts_of(folder))
    assert plan.tokens < 0.5 * plan.prompt_tokens, "the questions of a text go on from its documents"
    assert plan.longest == 900
    assert plan.memory["cache"] == 3 * 2 * 2 * 8 * 900 * 4  # layers, keys and values, heads, dimensions, float32
    assert plan.beyond == (900,)


def test_prompts_of_two_lengths_are_fed_whole_where_frequencies_change(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def uneven(items: Sequence[NeedleItem], number: int, length: int, options: RopeOptions, tok: Any) -> NeedleText:
        text = needle_text(items, number, length, options, tok)
        first, *others = text.needles
        return replace(text, needles=(replace(first, answer=f"{first.answer}, or so"), *others))

    monkeypatch.setattr(rope_plan, "needle_text", uneven)
    tokenizer = blueprint(folder).lm.tokenizer
    plan = plan_scalings(folder, ["dynamic:factor=2"], OPTIONS, ITEMS)
    check_against_runs(folder, plan, [uneven(ITEMS, *place, OPTIONS, tokenizer) for place in OPTIONS.places])
    none, dynamic = plan.scalings
    assert dynamic.tokens > 1.3 * none.tokens
    assert dynamic.seconds > none.seconds


def test_a_model_with_windows_feeds_every_prompt_whole(tmp_path: Path) -> None:
    folder = str(save_tiny_model(tmp_path, "mistral", max_position_embeddings=WINDOW))
    plan = plan_scalings(folder, ["linear:factor=2"], OPTIONS, ITEMS)
    check_against_runs(folder, plan, texts_of(folder))
    assert plan.tokens == plan.prompt_tokens - plan.cells * plan.questions  # nothing reads the last answer tokens
    assert plan.memory["cache"] == 2 * 2 * 8 * 900 * 4, "of one layer at a time"
    assert "allocator" not in plan.memory


def test_seconds_by_hand(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One prompt is fed once; every one of its tokens gets logits, for its loss."""
    monkeypatch.setattr("attnprobe.rope_plan.probe", lambda *_: Rates(flops=1e6, bytes=1e12))
    one = replace(OPTIONS, lengths=(600,), depths=(0.5,), texts=1)
    drawn = blueprint(folder).lm
    model, config = drawn.model, drawn.config
    inner = sum(
        p.numel() for name, p in model.named_parameters() if "embed_tokens" not in name and "lm_head" not in name
    )
    flops = 2 * inner * 600 + 2 * config.hidden_size * config.vocab_size * 600
    flops += 4 * config.num_hidden_layers * config.hidden_size * 600**2 / 2
    assert plan_scalings(folder, [], one, ITEMS).seconds == pytest.approx(flops / 0.7e6 + 0.15, rel=1e-4)


def test_a_long_rest_takes_a_mask_of_a_chunk_or_none(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Frequencies that change with the length forbid chunks, so such a text is fed again from the start, unmasked."""

    def parted(items: Sequence[NeedleItem], number: int, length: int, options: RopeOptions, tok: Any) -> NeedleText:
        text = needle_text(items, number, length, options, tok)
        first, last = text.needles
        needle, filler, *others = last.prompt.documents
        other = replace(filler, text=f"Q{filler.text[1:]}")  # as many tokens, but not the same
        prompt = replace(last.prompt, documents=(needle, other, *others))
        return replace(text, needles=(first, replace(last, prompt=prompt)))

    monkeypatch.setattr(rope_plan, "needle_text", parted)
    long = replace(OPTIONS, lengths=(5000,), depths=(0, 1), texts=1)
    found = plan_scalings(folder, ["dynamic:factor=8"], long, ITEMS)
    none, dynamic = (one.tokens for one in found.scalings)
    assert dynamic == 2 * 4999
    assert none < dynamic
    assert found.memory["mask"] == 5 * 2048 * 5000  # of none, in chunks


def config_of(folder: str, path: Path, scalings: str = '["linear:2", "dynamic:2"]') -> Path:
    lines = ["kind: rope", f"model: {folder}", f"scalings: {scalings}", "lengths: [600, 900]"]
    path.write_text("\n".join([*lines, "texts: 2", "depths: [0, 0.5, 1]", "out: out"]) + "\n", encoding="utf-8")
    return path


def run(*arguments: Any) -> Result:
    return CliRunner().invoke(cli.app, [str(argument) for argument in arguments])


def test_from_a_config(folder: str, tmp_path: Path) -> None:
    config = config_of(folder, tmp_path / "config.yaml")
    result = run("plan", config, "-q")
    assert result.exit_code == 0, result.output  # beyond the window is what it is about
    assert result.stderr == ""
    assert all(len(line) <= 80 for line in result.stdout.splitlines())
    text = " ".join(result.stdout.split())
    assert "3 scalings x 4 texts, a cell each: 2 of each length (600, 900 tokens), 3 questions each" in text
    assert "beyond the unscaled model's window of 700: 900" in text
    rows = [line.split() for line in result.stdout.splitlines() if line.startswith(("none", "linear:2", "dynamic:2"))]
    assert [row[:3] for row in rows] == [["none", "700", "4"], ["linear:2", "1,400", "4"], ["dynamic:2", "1,400", "4"]]
    (planned,) = json.loads(run("plan", config, "--json").stdout)
    assert f"tokens: {planned['tokens']:,} to feed, of {planned['prompt_tokens']:,} in" in text
    assert planned["peak_bytes"] == sum(planned["memory"].values())
    assert not (tmp_path / "out").exists()


def test_nothing_beyond_the_window_is_said_too(folder: str, tmp_path: Path) -> None:
    config = config_of(folder, tmp_path / "config.yaml", "[none]")
    config.write_text(config.read_text().replace("[600, 900]", "[600]"))
    assert "window of 700: none of the lengths" in " ".join(run("plan", config, "-q").stdout.split())


def test_what_the_comparison_refuses_its_plan_refuses(folder: str, tmp_path: Path) -> None:
    for scalings, message in (
        ('["yarn:0.5"]', "factor must be at least 1"),
        ('["longrope:short_factor=[1,1],long_factor=[2,2]"]', "have 2 values; this model needs 4"),
    ):
        result = run("plan", config_of(folder, tmp_path / "config.yaml", scalings), "-q")
        assert result.exit_code == 2, result.output
        assert message in " ".join(result.stderr.split())
    short = replace(OPTIONS, lengths=(60,))
    with pytest.raises(InputError, match="a length of 60 tokens is too short: prompt and answer of"):
        plan_scalings(folder, [], short, ITEMS)
    falcon = str(save_tiny_model(tmp_path / "falcon", "falcon", max_position_embeddings=WINDOW))
    with pytest.raises(InputError, match="FalconForCausalLM does not use transformers' attention interface"):
        plan_scalings(falcon, [], OPTIONS, ITEMS)
