"""Attention implementations with other mask conventions, and masks that are no causal interval."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import eager_masses, tiny_model
from transformers.modeling_utils import AttentionInterface

import attnprobe as ap
from attnprobe.capture import Capture
from attnprobe.decoding import forced_logprobs, generate, left_pad
from attnprobe.row_block import SampleSpans
from attnprobe.visibility import is_interval, mask_on_rows
from attnprobe_kernels import visible_intervals

FLASH = ("flash_attention_2", "flash_attention_3")


def flash_double(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Dense attention under flash attention's conventions: bottom-right causal, 2-D padding mask or none."""
    assert attention_mask is None or attention_mask.ndim == 2
    n_rows, n_keys = query.shape[2], key.shape[2]
    group = query.shape[1] // key.shape[1]
    z = query @ key.repeat_interleave(group, 1).transpose(2, 3) * (scaling or query.shape[-1] ** -0.5)
    if softcap is not None:
        z = softcap * torch.tanh(z / softcap)
    rows = torch.arange(n_keys - n_rows, n_keys)[:, None]
    columns = torch.arange(n_keys)[None, :]
    seen = columns <= rows
    if sliding_window is not None:
        seen = seen & (columns > rows - sliding_window)
    if attention_mask is not None:
        seen = seen[None, None] & attention_mask[:, None, None, :n_keys].bool()
    z = z.masked_fill(~seen, torch.finfo(z.dtype).min)
    if s_aux is not None:
        sinks = s_aux.to(z.dtype).reshape(1, -1, 1, 1).expand(*z.shape[:3], 1)
        weights = torch.softmax(torch.cat([z, sinks], -1), -1)[..., :-1]
    else:
        weights = torch.softmax(z, -1)
    return (weights @ value.repeat_interleave(group, 1)).transpose(1, 2).contiguous(), None


@pytest.fixture(params=FLASH)
def flash(request: Any) -> Iterator[str]:
    name = request.param
    original = AttentionInterface._global_mapping[name]
    AttentionInterface.register(name, flash_double)
    yield name
    AttentionInterface.register(name, original)


def with_implementation(model: Any, name: str) -> Any:
    model.config._attn_implementation = name
    return model


SPANS = (((0, 1),), ((1, 5),), ((5, 9),))


def samples_of(batch: Any, lengths: list[int]) -> list[SampleSpans]:
    return [SampleSpans(pad, n, (*SPANS, ((9, n),))) for pad, n in zip(batch.pads, lengths, strict=True)]


def assert_equals_eager(
    name: str, layers: list[Any], sample: int, ids: list[int], n_prompt: int, n_rows: int, **changes: Any
) -> None:
    spans = [list(span) for span in (*SPANS, ((9, n_prompt),), ((n_prompt, len(ids)),))]
    wanted = eager_masses(name, ids, spans, n_rows, **changes)
    found = torch.stack([torch.softmax(layer.lse[sample].double(), -1) for layer in layers])[..., : len(spans)]
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma2", "gemma3", "gpt_oss", "deepseek_v3"])
@pytest.mark.parametrize("mode", ["live", "deferred"])
@pytest.mark.parametrize("chunk", [None, 6])
def test_flash_attention_conventions(flash: str, name: str, mode: str, chunk: int | None) -> None:
    model = with_implementation(tiny_model(name), flash)
    prompts = [torch.arange(2, 25).tolist(), torch.arange(30, 42).tolist()]
    batch = left_pad(prompts, 0, torch.device("cpu"))
    with Capture(model, samples_of(batch, [23, 12]), 22, mode) as capture:
        generated = generate(model, batch, max_new_tokens=9, pad_id=0, prefill_chunk=chunk)
        layers = capture.finish(9)
    for sample, prompt in enumerate(prompts):
        ids = [*prompt, *generated.tokens[sample].tolist()[:-1]]
        assert_equals_eager(name, layers, sample, ids, len(prompt), 9)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "mistral"])
def test_flex_attention(name: str) -> None:
    wide = {"hidden_size": 64}  # flex attention wants head sizes of at least 16
    model = tiny_model(name, "flex_attention", **wide)
    sequences = [torch.arange(2, 25).tolist(), torch.arange(30, 45).tolist()]
    batch = left_pad(sequences, 0, torch.device("cpu"))
    with Capture(model, samples_of(batch, [19, 11]), 18, "live") as capture:
        forced_logprobs(model, batch, torch.zeros(2, 5, dtype=torch.long))
        layers = capture.finish(5)
    assert not capture.warnings
    for sample, ids in enumerate(sequences):
        assert_equals_eager(name, layers, sample, ids, len(ids) - 4, 5, **wide)


def test_a_mask_that_is_no_interval_is_used_itself() -> None:
    model = tiny_model("llama")
    ids = torch.arange(2, 22)[None]
    seen = torch.ones(20, 20, dtype=torch.bool).tril()
    seen[:, 7] = False  # a hole in every later row
    seen[7, 7] = True
    mask = seen[None, None]
    with torch.no_grad(), Capture(model, [SampleSpans(0, 17, (((0, 6),), ((6, 17),)))], 16, "deferred") as capture:
        model(ids, attention_mask=mask)
        layers = capture.finish(4)
    assert any("no causal interval" in warning for warning in capture.warnings)
    eager = tiny_model("llama", "eager")
    float_mask = torch.where(mask, 0.0, torch.finfo(torch.float32).min)
    with torch.no_grad():
        weights = eager(ids, attention_mask=float_mask, output_attentions=True).attentions
    for layer, matrix in zip(layers, weights, strict=True):
        rows = matrix[0, :, -4:].double()
        wanted = torch.stack([rows[..., :6].sum(-1), rows[..., 6:17].sum(-1), rows[..., 17:].sum(-1)], -1)
        torch.testing.assert_close(torch.softmax(layer.lse[0].double(), -1), wanted, atol=1e-5, rtol=0)
        assert layer.visible[0, :, 1].tolist() == [10, 10, 10, 10]  # one of eleven is hidden
        assert layer.residual < 1e-5


def test_additive_bias_in_a_float_mask_counts() -> None:
    eager = tiny_model("llama", "eager")
    ids = torch.arange(2, 22)[None]
    bias = torch.randn(20, 20, generator=torch.Generator().manual_seed(0))
    mask = bias.masked_fill(~torch.ones(20, 20, dtype=torch.bool).tril(), torch.finfo(torch.float32).min)[None, None]
    with torch.no_grad(), Capture(eager, [SampleSpans(0, 17, (((0, 6),), ((6, 17),)))], 16, "live") as capture:
        weights = eager(ids, attention_mask=mask, output_attentions=True).attentions
        layers = capture.finish(4)
    for layer, matrix in zip(layers, weights, strict=True):
        rows = matrix[0, :, -4:].double()
        wanted = torch.stack([rows[..., :6].sum(-1), rows[..., 6:17].sum(-1), rows[..., 17:].sum(-1)], -1)
        torch.testing.assert_close(torch.softmax(layer.lse[0].double(), -1), wanted, atol=1e-5, rtol=0)


def test_a_padding_mask_inside_the_prompt_is_refused(flash: str) -> None:
    model = with_implementation(tiny_model("llama"), flash)
    mask = torch.ones(1, 20, dtype=torch.long)
    mask[0, 10] = 0
    with (
        torch.no_grad(),
        Capture(model, [SampleSpans(0, 20, (((0, 20),),))], 18, "live"),
        pytest.raises(ap.CaptureError, match="hides tokens inside the prompt"),
    ):
        model(torch.arange(2, 22)[None], attention_mask=mask)


@settings(deadline=None, derandomize=True, max_examples=200)
@given(
    n_tokens=st.integers(1, 40),
    n_rows=st.integers(1, 12),
    pads=st.lists(st.integers(0, 15), min_size=1, max_size=3),
    window=st.none() | st.integers(1, 20),
    chunk=st.none() | st.integers(1, 20),
)
def test_intervals_are_the_dense_definition(
    n_tokens: int, n_rows: int, pads: list[int], window: int | None, chunk: int | None
) -> None:
    n_slots = n_tokens + max(pads)
    rows = range(max(0, n_slots - n_rows), n_slots)
    visible = visible_intervals(rows, n_slots, pads=pads, window=window, chunk=chunk)
    dense = np.zeros((len(pads), len(rows), n_slots), dtype=bool)
    for sample, pad in enumerate(pads):
        for number, row in enumerate(rows):
            for column in range(n_slots):
                sees = pad <= column <= row
                if window is not None:
                    sees = sees and column > row - window
                if chunk is not None:
                    sees = sees and (column - pad) // chunk == (row - pad) // chunk
                dense[sample, number, column] = sees
    columns = np.arange(n_slots)
    np.testing.assert_array_equal((columns >= visible[..., :1]) & (columns < visible[..., 1:]), dense)
    mask = torch.from_numpy(dense)[:, None]
    assert is_interval(mask, visible)
    assert is_interval(torch.where(mask, 0.0, torch.finfo(torch.float32).min), visible)
    if dense.any():
        flipped = mask.clone()
        sample, number, column = np.argwhere(dense)[0]
        flipped[sample, 0, number, column] = False
        assert not is_interval(flipped, visible)


def test_unknown_mask_types_are_refused() -> None:
    with pytest.raises(TypeError, match="type list is unknown"):
        mask_on_rows([1], slice(0, 1), 4, torch.device("cpu"))
