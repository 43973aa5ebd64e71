"""Every family, every way of running it: span masses equal those of eager attention to 1e-5."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from packaging import version
from tiny_models import FALLBACK, FAMILIES, INTERFACE, VOCABULARY, eager_masses, tiny_model

from attnprobe.capture import Capture
from attnprobe.decoding import forced_logprobs, generate, left_pad
from attnprobe.fallback import EagerCapture
from attnprobe.row_block import SampleSpans

TOLERANCE = 1e-5
N_ANSWER = 5


def sequence(length: int, seed: int) -> list[int]:
    return torch.randint(2, VOCABULARY, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


def spans_of(n_prompt: int) -> tuple[tuple[tuple[int, int], ...], ...]:
    """Five spans that tile the prompt, one of them in two pieces, one empty."""
    a, b, c = n_prompt // 4, n_prompt // 2, n_prompt - 3
    return (((0, 1),), ((1, a), (c, n_prompt)), ((a, b),), (), ((b, c),))


def masses(layers: list[Any], sample: int, rows: slice) -> torch.Tensor:
    """Normalised masses ``[layer, head, row, span]`` of one sample, a learned sink's mass included."""
    return torch.stack([torch.softmax(layer.lse[sample, :, rows].double(), -1) for layer in layers])


def expected(name: str, prompt: list[int], answer: list[int], **changes: Any) -> torch.Tensor:
    spans = [list(span) for span in spans_of(len(prompt))] + [[(len(prompt), len(prompt) + len(answer))]]
    return eager_masses(name, [*prompt, *answer[:-1]], spans, len(answer), **changes)


def assert_same(found: torch.Tensor, wanted: torch.Tensor) -> None:
    n_spans = wanted.shape[-1]  # eager weights have no column for a learned sink
    torch.testing.assert_close(found[..., :n_spans], wanted, atol=TOLERANCE, rtol=0)
    if found.shape[-1] > n_spans:
        torch.testing.assert_close(found[..., -1], 1 - wanted.sum(-1), atol=TOLERANCE, rtol=0)


def watch(model: Any, name: str, samples: list[SampleSpans], first_row: int, mode: str) -> Any:
    if FAMILIES[name].fallback:
        return EagerCapture(model, samples, first_row)
    return Capture(model, samples, first_row, mode)


def forced(name: str, model: Any, pairs: list[tuple[list[int], list[int]]], chunk: int | None, mode: str) -> list[Any]:
    batch = left_pad([[*prompt, *answer[:-1]] for prompt, answer in pairs], 0, torch.device("cpu"))
    samples = [
        SampleSpans(pad, len(prompt), spans_of(len(prompt))) for pad, (prompt, _) in zip(batch.pads, pairs, strict=True)
    ]
    n_rows = max(len(answer) for _, answer in pairs)
    targets = torch.tensor([[0] * (n_rows - len(answer)) + answer for _, answer in pairs])
    with watch(model, name, samples, batch.ids.shape[1] - n_rows, mode) as capture:
        forced_logprobs(model, batch, targets, chunk)
        layers = capture.finish(n_rows)
    assert len(layers) == FAMILIES[name].captured_layers
    assert all(layer.residual.shape == (len(pairs),) and layer.residual.max() < 1e-5 for layer in layers)
    assert not capture.warnings
    return layers


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("chunk", [None, 6], ids=["whole", "chunked"])
def test_forced_single(name: str, chunk: int | None) -> None:
    prompt, answer = sequence(23, 1), sequence(N_ANSWER, 2)
    layers = forced(name, tiny_model(name), [(prompt, answer)], chunk, "live")
    assert_same(masses(layers, 0, slice(None)), expected(name, prompt, answer))


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("chunk", [None, 6], ids=["whole", "chunked"])
@pytest.mark.parametrize("mode", ["live", "deferred"])
def test_forced_padded_batch(name: str, chunk: int | None, mode: str) -> None:
    pairs = [(sequence(23, 1), sequence(5, 2)), (sequence(9, 3), sequence(2, 4)), (sequence(14, 5), sequence(5, 6))]
    layers = forced(name, tiny_model(name), pairs, chunk, mode)
    for sample, (prompt, answer) in enumerate(pairs):
        found = masses(layers, sample, slice(5 - len(answer), 5))
        assert_same(found, expected(name, prompt, answer))


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("mode", ["live", "deferred"])
@pytest.mark.parametrize(("lengths", "chunk"), [((23,), None), ((23,), 6), ((23, 9, 14), None), ((8, 11), 5)])
def test_generated(name: str, mode: str, lengths: tuple[int, ...], chunk: int | None) -> None:
    model = tiny_model(name)
    prompts = [sequence(length, seed) for seed, length in enumerate(lengths)]
    batch = left_pad(prompts, 0, torch.device("cpu"))
    samples = [SampleSpans(pad, len(p), spans_of(len(p))) for pad, p in zip(batch.pads, prompts, strict=True)]
    with watch(model, name, samples, batch.ids.shape[1] - 1, mode) as capture:
        generated = generate(model, batch, max_new_tokens=9, pad_id=0, prefill_chunk=chunk)
        layers = capture.finish(9)
    assert len(layers) == FAMILIES[name].captured_layers
    for sample, prompt in enumerate(prompts):
        answer = generated.tokens[sample].tolist()
        assert_same(masses(layers, sample, slice(None)), expected(name, prompt, answer))


@pytest.mark.parametrize("name", [n for n in INTERFACE if not FAMILIES[n].eager_only])
def test_eager_model_gives_the_same(name: str) -> None:
    prompt, answer = sequence(23, 1), sequence(N_ANSWER, 2)
    layers = forced(name, tiny_model(name, "eager"), [(prompt, answer)], None, "live")
    assert_same(masses(layers, 0, slice(None)), expected(name, prompt, answer))


# transformers 5.17 itself cannot run llama4's chunked masks with a static cache.
STATIC = [
    name for name in INTERFACE if name != "llama4" or version.parse(transformers.__version__) >= version.parse("5.20")
]


@pytest.mark.parametrize("name", STATIC)
def test_static_cache(name: str) -> None:
    model = tiny_model(name)
    prompts = [sequence(23, 0), sequence(9, 1)]
    batch = left_pad(prompts, 0, torch.device("cpu"))
    samples = [SampleSpans(pad, len(p), spans_of(len(p))) for pad, p in zip(batch.pads, prompts, strict=True)]
    for mode in ("live", "deferred"):
        with Capture(model, samples, batch.ids.shape[1] - 1, mode) as capture:
            generated = generate(model, batch, max_new_tokens=9, pad_id=0, options={"cache_implementation": "static"})
            layers = capture.finish(9)
        for sample, prompt in enumerate(prompts):
            answer = generated.tokens[sample].tolist()
            assert_same(masses(layers, sample, slice(None)), expected(name, prompt, answer))


@pytest.mark.parametrize("name", [n for n in INTERFACE if n != "deepseek_v3"])
def test_decoding_is_deferred(name: str) -> None:
    """Only queries are kept while decoding, where the cache holds the keys; a window's keys are few."""
    model = tiny_model(name)
    batch = left_pad([sequence(23, 0)], 0, torch.device("cpu"))
    with Capture(model, [SampleSpans(0, 23, spans_of(23))], 22, "deferred") as capture:
        generate(model, batch, max_new_tokens=9, pad_id=0)
        sources = {layer.source for layer in capture._layers.values()}
        assert sources <= {"cache", "tail"}
        assert all(layer.queries.n_rows == 9 and not layer.parts for layer in capture._layers.values())
        capture.finish(9)


def test_fallback_families_have_no_interface() -> None:
    assert FALLBACK
    for name in FALLBACK:
        with pytest.raises(Exception, match="attention interface"):
            Capture(tiny_model(name), [SampleSpans(0, 4, (((0, 4),),))], 3)
