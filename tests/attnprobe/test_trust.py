"""Planted models with a known answer, and the check that users run on their own model."""

from __future__ import annotations

import math
from importlib import import_module
from typing import Any

import numpy as np
import pytest
import torch
from tiny_models import FAMILIES, INTERFACE

import attnprobe as ap

check_module = import_module("attnprobe.selfcheck")


def flatten_attention(model: Any) -> None:
    """Zero queries (weights and biases), so that every visible key gets the same logit."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if any(part in name for part in ("q_proj", "q_b_proj", "q_a_proj")):
                parameter.zero_()
            if "c_attn" in name:  # GPT-2 packs q, k and v
                parameter[..., : parameter.shape[-1] // 3] = 0


@pytest.mark.parametrize("family", ["llama", "qwen2", "mistral", "gemma2", "gpt2", "llama4", "deepseek_v3"])
def test_uniform_attention_has_density_one(make_lm: Any, prompts: list[ap.Prompt], family: str) -> None:
    lm = make_lm(family, **({"sliding_window": 40} if family in {"mistral", "gemma2"} else {}))
    flatten_attention(lm.model)
    for options in ({}, {"capture": "live"}, {"rows": "answer"}):
        run = ap.measure(lm, prompts[2], max_new_tokens=5, **options)
        values = run.curve("density").values
        seen = ~np.isnan(values)
        assert seen.any()
        np.testing.assert_allclose(values[seen], 1, atol=1e-6)
        assert run.row_mass is not None
        visible = run.visible[:, None] / run.visible.sum(-1)[:, None, :, None]
        np.testing.assert_allclose(run.row_mass, np.broadcast_to(visible, run.row_mass.shape), atol=1e-6)


def test_planted_logits_give_their_masses(make_lm: Any) -> None:
    """GPT-2, first layer: with constant queries a key's logit is a linear function of its normed embedding."""
    lm = make_lm("gpt2")
    block = lm.model.transformer.h[0]
    width, n_heads = lm.model.config.n_embd, lm.model.config.n_head
    query = torch.randn(width, generator=torch.Generator().manual_seed(4))
    with torch.no_grad():
        block.attn.c_attn.weight[:, :width] = 0
        block.attn.c_attn.bias[:width] = query
    prompt = ap.Prompt(["Refunds take 30 days.", "The fox.", "A policy."], "How long?", template="plain")
    run = ap.measure(lm, prompt, answer=" 47 days")

    ids = torch.tensor(run.token_ids[:-1])
    embedded = (lm.model.transformer.wte.weight[ids] + lm.model.transformer.wpe.weight[: len(ids)]).double()
    normed = torch.nn.functional.layer_norm(
        embedded, (width,), block.ln_1.weight.double(), block.ln_1.bias.double(), block.ln_1.eps
    )
    keys = normed @ block.attn.c_attn.weight[:, width : 2 * width].double()
    keys = keys + block.attn.c_attn.bias[width : 2 * width].double()
    logits = (keys.view(-1, n_heads, width // n_heads) * query.double().view(n_heads, -1)).sum(-1).T
    logits = logits / math.sqrt(width // n_heads)  # [head, key]
    assert run.row_mass is not None
    for row in range(len(run.answer_ids)):
        weights = torch.softmax(logits[:, : run.n_prompt + row], -1)
        for number, span in enumerate(run.spans):
            wanted = sum(weights[:, a:b].sum(-1) for a, b in span.segments) + torch.zeros(n_heads)
            np.testing.assert_allclose(run.row_mass[0, :, row, number], wanted.detach().numpy(), atol=1e-6)


@pytest.mark.parametrize("family", [name for name in INTERFACE if name not in {"gemma2", "gpt_oss"}])
def test_check_passes(make_lm: Any, family: str) -> None:
    lm = make_lm(family)
    implementation = lm.model.config._attn_implementation
    report = ap.check(lm)
    assert report.passed
    assert len(report.rows) == FAMILIES[family].captured_layers
    assert report.tolerance == 1e-5
    assert lm.model.config._attn_implementation == implementation


@pytest.mark.parametrize("family", ["gemma2", "gpt_oss"])
def test_check_passes_on_eager_models(make_lm: Any, family: str) -> None:
    report = ap.check(make_lm(family))
    assert report.passed
    assert report.reference == "eager attention weights"


@pytest.mark.parametrize("scenario", check_module.SCENARIOS)
def test_check_finds_a_wrong_layer(make_lm: Any, monkeypatch: pytest.MonkeyPatch, scenario: str) -> None:
    lm = make_lm()
    original = check_module.Capture.finish

    def spoiled(self: Any, n_rows: int) -> Any:
        layers = original(self, n_rows)
        kind = "padded batch" if len(self.samples) > 1 else "cached decode" if self.mode == "deferred" else "single"
        if kind == scenario:
            layers[1].lse[0, 2, 1, 1] += 0.01
        return layers

    monkeypatch.setattr(check_module.Capture, "finish", spoiled)
    report = ap.check(lm)
    assert not report.passed
    bad = [
        (row.layer, name)
        for row in report.rows
        for name, difference in zip(report.scenarios, row.differences, strict=True)
        if difference > report.tolerance
    ]
    assert bad == [(1, scenario)]


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma2", "gpt_oss", "deepseek_v3", "llama4"])
def test_check_in_half_precision(make_lm: Any, family: str) -> None:
    lm = make_lm(family)
    lm = ap.LanguageModel(lm.model.to(torch.bfloat16), lm.tokenizer)
    report = ap.check(lm)
    assert report.reference == "float64 logits of the same calls"
    assert report.tolerance == 1e-4
    assert report.passed


def test_check_has_nothing_to_compare_in_the_fallback(make_lm: Any) -> None:
    with pytest.raises(ap.CaptureError, match="nothing to compare"):
        ap.check(make_lm("bloom"))


def test_a_total_that_does_not_add_up_stops_the_measurement(
    make_lm: Any, prompts: list[ap.Prompt], monkeypatch: pytest.MonkeyPatch
) -> None:
    from attnprobe import reduction

    original = reduction.span_lse
    monkeypatch.setattr(reduction, "span_lse", lambda *a, **k: original(*a, **k) + 1e-3)
    with pytest.raises(ap.CaptureError, match=r"differs from an independent one by 0\.001"):
        ap.measure(make_lm(), prompts[0], max_new_tokens=2)
