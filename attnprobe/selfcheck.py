"""Is the instrument right on this model? Every layer against the model's own eager weights, or float64 logits."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from attnprobe.architecture import implementation_of, uses_interface
from attnprobe.capture import Capture
from attnprobe.decoding import Batch, forced_logprobs, generate, left_pad
from attnprobe.dense import dense_masses
from attnprobe.errors import CaptureError
from attnprobe.fallback import EagerCapture
from attnprobe.layer_rows import LayerRows
from attnprobe.row_block import SampleSpans

if TYPE_CHECKING:
    from attnprobe.models import LanguageModel

SCENARIOS = ("single", "padded batch", "cached decode")

EAGER, DENSE = "eager attention weights", "float64 logits of the same calls"
TOLERANCE = {EAGER: 1e-5, DENSE: 1e-4}
"""Largest accepted difference of a mass from each reference. Half-precision models are compared with float64 logits:
their eager weights are off by up to 2e-2, since those logits are rounded before the softmax."""

_ROWS = 6
_SEED = 0


@dataclass(frozen=True)
class LayerCheck:
    """One layer's largest absolute difference of a span mass, over samples, heads, rows and spans.

    Parameters
    ----------
    layer
        The model's index of the layer.
    differences
        One value a scenario, in the order of ``SCENARIOS``.
    """

    layer: int
    differences: tuple[float, ...]


@dataclass(frozen=True)
class CheckReport:
    """What :func:`check` found, a row a layer.

    Parameters
    ----------
    rows
        In the model's order of layers.
    tolerance
        Largest accepted difference.
    reference
        What the masses were compared with: ``EAGER`` or ``DENSE``.
    scenarios
        Names of the columns.
    implementation
        Attention implementation that was checked.
    """

    rows: tuple[LayerCheck, ...]
    tolerance: float
    reference: str
    scenarios: tuple[str, ...]
    implementation: str

    @property
    def passed(self) -> bool:
        """Whether every layer is within the tolerance in every scenario."""
        return all(difference <= self.tolerance for row in self.rows for difference in row.differences)


def check(lm: LanguageModel, *, n_tokens: int | None = None, backend: str = "auto") -> CheckReport:
    """Compare span masses with an independent reference, on every layer and head of the user's own model.

    Random token ids run as one prompt, as a left-padded batch, and through cached decoding step by step. For a float32
    model, eager attention then runs the same ids in one pass, one prompt at a time, without a cache, and its weights
    are summed. For a half-precision model the same attention calls are computed densely in float64, with the mask as
    the model made it. The model is left as it was.

    Parameters
    ----------
    lm
        The model to check.
    n_tokens
        Length of the longest prompt, tokens; default 48, or 1.5 sliding windows if the model has one that is shorter
        than 1024 tokens.
    backend
        Of :func:`attnprobe_kernels.span_lse`.

    Raises
    ------
    CaptureError
        The model does not use transformers' attention interface: it is measured from eager weights anyway, and there
        is nothing to compare. Or a layer was not captured.
    """
    if not uses_interface(lm.model):
        raise CaptureError(
            f"{type(lm.model).__name__} does not use transformers' attention interface; it is measured from the "
            "weights of its own eager attention, so there is nothing to compare them with"
        )
    length = n_tokens or _default_length(lm)
    generator = torch.Generator().manual_seed(_SEED)
    vocabulary = int(lm.model.get_input_embeddings().weight.shape[0])
    prompts = [torch.randint(0, vocabulary, (n,), generator=generator).tolist() for n in (length, max(length // 3, 8))]
    found = {
        "single": _forced(lm, prompts[:1], backend),
        "padded batch": _forced(lm, prompts, backend),
        "cached decode": _decoded(lm, prompts[:1], backend),
    }
    rows: dict[int, list[float]] = {}
    for scenario in SCENARIOS:
        for layer, difference in found[scenario].items():
            rows.setdefault(layer, []).append(difference)
    return CheckReport(
        rows=tuple(LayerCheck(layer, tuple(differences)) for layer, differences in sorted(rows.items())),
        tolerance=TOLERANCE[_reference(lm)],
        reference=_reference(lm),
        scenarios=SCENARIOS,
        implementation=implementation_of(lm.model),
    )


def _default_length(lm: LanguageModel) -> int:
    window = getattr(lm.config, "sliding_window", None) or getattr(lm.config, "attention_chunk_size", None)
    length = int(window * 1.5) if window and window < 1024 else 48
    limit = lm.max_positions
    return max(min(max(length, 48), limit - _ROWS - 1), 8) if limit else max(length, 48)


def _spans(n_prompt: int) -> tuple[tuple[tuple[int, int], ...], ...]:
    """The first token, and four equal pieces of the rest."""
    edges = [1 + (n_prompt - 1) * piece // 4 for piece in range(5)]
    return (((0, 1),), *(((start, stop),) for start, stop in pairwise(edges)))


def _reference(lm: LanguageModel) -> str:
    return EAGER if lm.model.dtype == torch.float32 else DENSE


def _dense(lm: LanguageModel, capture: Capture) -> AbstractContextManager[dict[int, list[Tensor]]]:
    """The float64 masses of a capture's calls, where they are the reference; else nothing is computed."""
    return dense_masses(lm.model, capture) if _reference(lm) == DENSE else nullcontext({})


def _forced(lm: LanguageModel, sequences: list[list[int]], backend: str) -> dict[int, float]:
    batch = left_pad(sequences, lm.pad_id, lm.input_device)
    samples = [
        SampleSpans(pad, len(ids) - _ROWS + 1, _spans(len(ids) - _ROWS + 1))
        for ids, pad in zip(sequences, batch.pads, strict=True)
    ]
    with (
        Capture(lm.model, samples, batch.ids.shape[1] - _ROWS, "live", backend) as capture,
        _dense(lm, capture) as dense,
    ):
        forced_logprobs(lm.model, batch, batch.ids[:, -1:].expand(-1, _ROWS))
        layers = capture.finish(_ROWS)
    return _differences(layers, dense) if _reference(lm) == DENSE else _worst(lm, layers, sequences)


def _decoded(lm: LanguageModel, sequences: list[list[int]], backend: str) -> dict[int, float]:
    batch = left_pad(sequences, lm.pad_id, lm.input_device)
    samples = [SampleSpans(0, len(ids), _spans(len(ids))) for ids in sequences]
    with (
        Capture(lm.model, samples, batch.ids.shape[1] - 1, "deferred", backend) as capture,
        _dense(lm, capture) as dense,
    ):
        generated = generate(lm.model, batch, max_new_tokens=_ROWS, pad_id=lm.pad_id, options={"min_new_tokens": _ROWS})
        layers = capture.finish(_ROWS)
    if _reference(lm) == DENSE:
        return _differences(layers, dense)
    whole = [[*ids, *row.tolist()[:-1]] for ids, row in zip(sequences, generated.tokens, strict=True)]
    return _worst(lm, layers, whole)


def _differences(layers: list[LayerRows], dense: dict[int, list[Tensor]]) -> dict[int, float]:
    """Largest difference of each layer from the float64 masses of the same calls, padding rows left out."""
    return {
        layer.layer: _largest(
            torch.stack([_mass(layer, sample) for sample in range(layer.lse.shape[0])])
            - torch.cat(dense[layer.layer], dim=2)
        )
        for layer in layers
    }


def _largest(difference: Tensor) -> float:
    """Largest absolute value; a NaN counts as infinite, since a comparison would let it pass."""
    value = float(difference.abs().max())
    return float("inf") if math.isnan(value) else value


def _worst(lm: LanguageModel, layers: list[LayerRows], sequences: list[list[int]]) -> dict[int, float]:
    """Largest difference of each layer from eager attention, run on each sequence alone."""
    worst = {layer.layer: 0.0 for layer in layers}
    device = lm.input_device
    for sample, ids in enumerate(sequences):
        n_prompt = len(ids) - _ROWS + 1
        batch: Batch = left_pad([ids], lm.pad_id, device)
        spans = [SampleSpans(0, n_prompt, _spans(n_prompt))]
        with EagerCapture(lm.model, spans, len(ids) - _ROWS) as capture:
            forced_logprobs(lm.model, batch, batch.ids[:, -1:].expand(-1, _ROWS))
            reference = {layer.layer: layer for layer in capture.finish(_ROWS, complete=False)}
        for layer in layers:
            if layer.layer not in reference:
                raise CaptureError(f"layer {layer.layer} of {type(lm.model).__name__} gives no eager weights")
            mass, eager = _mass(layer, sample), _eager_mass(reference[layer.layer])
            if layer.has_sink and bool(((eager.sum(-1) - 1).abs() < 1e-5).all()):
                # This model's eager attention leaves its sink out of the softmax.
                mass = mass / mass.sum(-1, keepdim=True)
            difference = mass - eager
            worst[layer.layer] = max(worst[layer.layer], _largest(difference))
    return worst


def _mass(layer: LayerRows, sample: int) -> Tensor:
    """Masses ``[H, A, S]`` without the learned sink, which eager weights have no column for."""
    mass = torch.softmax(layer.lse[sample].double(), dim=-1)
    return mass[..., :-1] if layer.has_sink else mass


def _eager_mass(layer: LayerRows) -> Tensor:
    return torch.exp(layer.lse[0].double())
