"""Extras of a measurement equal dense ones, computed from eager weights of the whole sequence, to 1e-5."""

from __future__ import annotations

import math
import os
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from tiny_models import FALLBACK, INTERFACE

import attnprobe as ap
from attnprobe import row_means
from attnprobe.architecture import attention_layers
from attnprobe.attention import observed
from attnprobe.extra_checks import MASS_TOLERANCE, mass_tolerance
from attnprobe.extras import (
    EXTRAS,
    N_KEYS,
    distance_edges,
    distance_mass,
    heaviest_keys,
    n_distance_bins,
    output_factor,
    span_masses,
    value_bias,
)
from attnprobe.row_block import RowBlock
from attnprobe.row_means import prompt_edges, rows_at_a_time
from attnprobe.run_extras import ARRAY_NAMES
from attnprobe_kernels import Segments, prefill_map, span_lse

TOLERANCE = 1e-5
GATED = ("qwen3_next",)  # a gate lies between attention and its output projection
LAST_ROWS_ONLY = ("gemma4",)  # layers that share keys run the last rows of a prompt alone
PROMPT_ROWS = ("question", "prompt")
BLOCKS = 64
PROJECTIONS = {"gpt2": "c_proj", "gpt_neox": "dense", "opt": "out_proj"}


def extras_of(family: str) -> tuple[str, ...]:
    left_out = ("values",) * (family in GATED) + PROMPT_ROWS * (family in LAST_ROWS_ONLY)
    return tuple(extra for extra in EXTRAS if extra not in left_out)


def dense(lm: Any, family: str, run: ap.Run) -> dict[str, np.ndarray]:
    """Every extra of a run by plain sums over eager weights ``[layer, head, row, key]``; ``lm`` is eager."""
    values: dict[int, np.ndarray] = {}

    def keep_values(module: Any, query: Any, key: Any, value: Any, mask: Any, kwargs: Any) -> Any:
        values[layers[id(module)]] = value[0].repeat_interleave(query.shape[1] // value.shape[1], 0).double().numpy()
        return mask

    modules = attention_layers(lm.model)
    layers = {id(module): layer for module, layer in modules}
    with torch.no_grad(), observed(lm.model, [module for module, _ in modules], keep_values, "eager"):
        found = lm.model(torch.tensor([run.token_ids]), output_attentions=True, use_cache=False).attentions
    weights = np.stack([layer[0].double().numpy() for layer in found if layer is not None])
    first = run.n_prompt - (run.rows == "predicting")
    rows = weights[:, :, first : first + len(run.answer_ids)]
    shape = (*rows.shape[:3], len(run.spans))
    out: dict[str, np.ndarray] = {"top_mass": np.zeros(shape), "top_token": np.full(shape, -1)}
    tokens = [np.array([t for a, b in span.segments for t in range(a, b)], dtype=int) for span in run.spans]
    for i, own in enumerate(tokens):
        if run.spans[i].kind == "learned_sink":
            out["top_mass"][..., i] = 1 - rows.sum(-1)
        elif own.size:
            out["top_mass"][..., i] = rows[..., own].max(-1)
            out["top_token"][..., i] = np.where(rows[..., own].max(-1) > 0, own[rows[..., own].argmax(-1)], -1)
    out["column_mass"] = rows.mean(2)
    out["key_mass"] = -np.sort(-rows.mean(1), axis=-1)[..., :64]

    assert run.distance_edges is not None
    bins = np.zeros((*rows.shape[:2], len(run.distance_edges) - 1))
    sinks = {int(t) for span, own in zip(run.spans, tokens, strict=True) if span.kind == "sink" for t in own}
    for row in range(rows.shape[2]):
        for key in range(first + row + 1):
            if key not in sinks:
                d = first + row - key
                (b,) = [b for b, edge in enumerate(run.distance_edges[:-1]) if edge <= d < run.distance_edges[b + 1]]
                bins[..., b] += rows[:, :, row, key] / rows.shape[2]
    out["distance_mass"] = bins

    if family not in GATED:
        weighted = []
        for number, layer in enumerate(run.layers):
            (module,) = [module for module, index in modules if index == layer]
            projection = getattr(module, PROJECTIONS.get(family, "o_proj"))
            matrix = projection.weight.detach().double().numpy()
            matrix = matrix.T if family == "gpt2" else matrix
            by_head = np.split(matrix, rows.shape[1], axis=1)
            norms = np.stack([np.linalg.norm(v @ w.T, axis=-1) for v, w in zip(values[layer], by_head, strict=True)])
            weighted.append(rows[number] * norms[:, None])
        spans = np.stack([np.stack(weighted)[..., own].sum(-1) for own in tokens], axis=-1)
        out["value_mass"] = (spans / spans.sum(-1, keepdims=True)).mean(2)

    if run.question_mass is not None:
        (question,) = [own for span, own in zip(run.spans, tokens, strict=True) if span.kind == "question"]
        parts = [weights[:, :, question][..., own].sum(-1) for own in tokens]
        masses = np.stack(parts, axis=-1)
        if run.spans[-1].kind == "learned_sink":
            masses[..., -1] = 1 - masses.sum(-1)
        out["question_mass"] = masses.mean(2)

    if run.prompt_mass is not None:
        masses = np.stack([weights[:, :, : run.n_prompt][..., own].sum(-1) for own in tokens], axis=-1)
        if run.spans[-1].kind == "learned_sink":
            masses[..., -1] = 1 - masses.sum(-1)
        size = math.ceil(run.n_prompt / BLOCKS)
        parts = [masses[:, :, first : first + size].mean(2) for first in range(0, run.n_prompt, size)]
        out["prompt_mass"] = np.stack(parts, axis=2)
    assert_keys(run, rows.mean(1))
    return out


def assert_keys(run: ap.Run, wanted: np.ndarray) -> None:
    """Every token that is listed has its mass of ``wanted [layer, row, key]``; none that is not listed has more."""
    assert run.key_mass is not None
    assert run.key_token is not None
    listed = run.key_token >= 0
    at = np.take_along_axis(wanted, np.where(listed, run.key_token, 0), axis=-1)
    np.testing.assert_allclose(run.key_mass, np.where(listed, at, 0), atol=TOLERANCE, rtol=0)
    np.testing.assert_array_equal(listed.sum(-1), np.minimum((wanted > 0).sum(-1), run.key_mass.shape[-1]))


def assert_dense(lm: Any, family: str, run: ap.Run) -> None:
    wanted = dense(lm, family, run)
    names = {"top_mass", "top_token", "column_mass", "key_mass", "distance_mass"}
    names |= set() if family in GATED else {"value_mass"}
    names |= set() if family in LAST_ROWS_ONLY else {"question_mass", "prompt_mass"}
    assert names == set(wanted)
    for name, array in wanted.items():
        found = getattr(run, name)
        assert found.shape == array.shape, name
        np.testing.assert_allclose(found, array, atol=TOLERANCE if name != "top_token" else 0, rtol=0, err_msg=name)


def assert_same_extras(a: ap.Run, b: ap.Run) -> None:
    assert a.distance_edges == b.distance_edges
    assert a.prompt_edges == b.prompt_edges
    for name in set(ARRAY_NAMES) - {"key_token"}:  # tokens of nearly one mass may change places
        x, y = getattr(a, name), getattr(b, name)
        assert (x is None) == (y is None), name
        if x is not None:
            # Recurrent states that are summed in another order give single rows of a prompt other queries.
            atol = {"top_token": 0.0, "prompt_mass": 5 * TOLERANCE}.get(name, TOLERANCE)
            np.testing.assert_allclose(x, y, atol=atol, rtol=0, err_msg=name)


@pytest.mark.parametrize("family", INTERFACE)
def test_every_family_in_every_way(make_lm: Any, prompts: list[ap.Prompt], family: str) -> None:
    lm, extras = make_lm(family), extras_of(family)
    run = ap.measure(lm, prompts[0], max_new_tokens=6, extras=extras)
    assert_dense(make_lm(family, attn_implementation="eager"), family, run)
    options: list[dict[str, Any]] = [
        {"max_new_tokens": 6, "prefill_chunk": 7, "capture": "live"},
        {"answer": run.answer_ids, "prefill_chunk": 20},
    ]
    for option in options:
        assert_same_extras(run, ap.measure(lm, prompts[0], extras=extras, **option))


@pytest.mark.parametrize("family", ["llama", "mistral", "gpt_oss", "gemma2", "deepseek_v3"])
@pytest.mark.parametrize("rows", ["predicting", "answer"])
@pytest.mark.parametrize("capture", ["deferred", "live"])
def test_padded_batches_and_early_ends(
    make_lm: Any, prompts: list[ap.Prompt], family: str, rows: str, capture: str
) -> None:
    lm = make_lm(family)
    sampling: dict[str, Any] = {"batch_size": 3, "max_new_tokens": 6, "do_sample": True, "seed": 1, "temperature": 9.0}
    plain = ap.measure_many(lm, prompts, **sampling)
    ends = [plain[1].answer_ids[2], plain[2].answer_ids[0]]
    lm.model.generation_config.eos_token_id = ends
    eager = make_lm(family, attn_implementation="eager")
    for include_eos in (False, True):
        runs = ap.measure_many(
            lm,
            prompts,
            extras=EXTRAS,
            capture=capture,
            rows=rows,
            include_eos=include_eos,
            **sampling,
        )
        assert len({len(run.answer_ids) for run in runs}) > 1
        for run in runs:
            assert_dense(eager, family, run)
    forced = ap.measure_many(
        lm,
        prompts,
        answers=[run.answer_ids for run in plain[:2]] + [[5, 6]],
        batch_size=3,
        extras=EXTRAS,
        capture=capture,
        rows=rows,
        prefill_chunk=9,
    )
    for run in forced:
        assert_dense(eager, family, run)


def test_static_cache_leaves_out_its_empty_room(make_lm: Any, prompts: list[ap.Prompt]) -> None:
    lm = make_lm()
    run = ap.measure(lm, prompts[0], max_new_tokens=6, extras=EXTRAS)
    for capture in ("deferred", "live"):
        other = ap.measure(
            lm, prompts[0], max_new_tokens=6, extras=EXTRAS, capture=capture, cache_implementation="static"
        )
        assert_same_extras(run, other)


def test_a_question_in_two_places_means_its_last(make_lm: Any) -> None:
    lm = make_lm()
    prompt = ap.Prompt(["A lazy dog.", "It is 47 days."], "How long?", layout="question_both")
    run = ap.measure(lm, prompt, answer="47", extras=["question"])
    (question,) = [span for span in run.spans if span.kind == "question"]
    assert len(question.segments) == 2
    start, stop = question.segments[1]
    with torch.no_grad():
        eager = make_lm(attn_implementation="eager").model
        weights = eager(torch.tensor([run.token_ids]), output_attentions=True).attentions
    for layer, matrix in enumerate(weights):
        for i, span in enumerate(run.spans):
            wanted = sum(matrix[0, :, start:stop, a:b].sum(-1).mean(-1) for a, b in span.segments)
            assert run.question_mass is not None
            np.testing.assert_allclose(run.question_mass[layer, :, i], wanted, atol=TOLERANCE)


def test_prefix_feeds_the_question_again(make_lm: Any, prompts: list[ap.Prompt]) -> None:
    lm, prefix = make_lm(), ap.PrefixCache()
    extras = [extra for extra in EXTRAS if extra != "prompt"]
    for answer in ("47 days", "It is the policy", "no"):
        plain = ap.measure(lm, prompts[2], answer=answer, extras=extras)
        reused = ap.measure(lm, prompts[2], answer=answer, extras=extras, prefix=prefix)
        assert_same_extras(plain, reused)
    assert reused.manifest["capture"]["reused_tokens"] > 20
    with pytest.raises(ap.InputError, match='extras "prompt" take all rows of the prompt, but those that the prefix'):
        ap.measure(lm, prompts[2], answer="no", extras=["prompt"], prefix=prefix)


@pytest.mark.parametrize("norm", ["mass", "share", "log_share", "density", "advantage"])
@pytest.mark.parametrize("trimmed", [False, True])
def test_the_raw_curve_is_that_without_secondary_sinks(
    make_lm: Any, prompts: list[ap.Prompt], norm: str, trimmed: bool
) -> None:
    lm = make_lm()
    plain = ap.measure(lm, prompts[2], answer="47 days", extras=EXTRAS)
    documents = [plain.spans[i] for i in plain.document_spans]
    positions = [documents[0].segments[0][0] + 2, documents[2].segments[0][0]]
    split = ap.measure(lm, prompts[2], answer="47 days", extras=EXTRAS, secondary_sinks=positions)
    assert {span.document for span in split.spans if span.kind == "sink"} == {None, 0, 2}
    raw = split.curve(norm, trimmed=trimmed, with_sinks=True)
    np.testing.assert_allclose(raw.values, plain.curve(norm, trimmed=trimmed).values, rtol=2e-5)
    without = split.curve(norm, trimmed=trimmed)
    assert not np.allclose(without.values[[0, 2]], raw.values[[0, 2]], rtol=1e-3)
    assert split.distance_mass is not None
    assert plain.distance_mass is not None
    assert (plain.distance_mass.sum(-1) - split.distance_mass.sum(-1) > 1e-4).all()


def test_a_secondary_sink_inside_the_question_does_not_cut_it(make_lm: Any, prompts: list[ap.Prompt]) -> None:
    lm = make_lm()
    plain = ap.measure(lm, prompts[0], answer="47", extras=["question"])
    (question,) = [span for span in plain.spans if span.kind == "question"]
    position = question.segments[0][0] + 1
    split = ap.measure(lm, prompts[0], answer="47", extras=["question"], secondary_sinks=[position])
    assert plain.question_mass is not None
    assert split.question_mass is not None
    merged = {span.name: split.question_mass[..., i] for i, span in enumerate(split.spans)}
    merged["question"] = merged["question"] + merged.pop(f"sink:{position}")
    for i, span in enumerate(plain.spans):
        np.testing.assert_allclose(merged[span.name], plain.question_mass[..., i], atol=TOLERANCE)


@pytest.mark.parametrize("which", [0, -1, slice(None)], ids=["first", "last", "all"])
def test_the_questions_rows_are_its_tokens_whatever_is_set_apart(
    make_lm: Any, prompts: list[ap.Prompt], which: Any
) -> None:
    lm = make_lm()
    plain = ap.measure(lm, prompts[0], answer="47", extras=["question"])
    (question,) = [span for span in plain.spans if span.kind == "question"]
    positions = np.arange(*question.segments[0])[which].reshape(-1).tolist()
    split = ap.measure(lm, prompts[0], answer="47", extras=["question"], secondary_sinks=positions)
    assert plain.question_mass is not None
    assert split.question_mass is not None
    assert not any("no question of its own" in warning for warning in split.warnings)
    owners = {f"sink:{position}": "question" for position in positions}
    for i, span in enumerate(plain.spans):
        own = [j for j, part in enumerate(split.spans) if owners.get(part.name, part.name) == span.name]
        merged = split.question_mass[..., own].sum(-1)
        np.testing.assert_allclose(merged, plain.question_mass[..., i], atol=TOLERANCE)


@pytest.mark.parametrize("keep_rows", [True, False])
def test_large_logits_are_measured_with_extras(make_lm: Any, prompts: list[ap.Prompt], keep_rows: bool) -> None:
    """Sums of extras are rounded as the masses are, in proportion to the logits."""
    lm = make_lm()
    with torch.no_grad():
        for layer in lm.model.model.layers:
            layer.self_attn.q_proj.weight.mul_(20_000)
    answer = "47 days and more of the same thing"
    run = ap.measure(lm, prompts[0], answer=answer, extras=["keys", "distance"], keep_rows=keep_rows)
    assert run.distance_mass is not None
    sinks = [i for i, span in enumerate(run.spans) if span.kind == "sink"]
    gap = np.abs(run.distance_mass.sum(-1, dtype=np.float64) + run.mass[..., sinks].sum(-1, dtype=np.float64) - 1).max()
    assert gap > MASS_TOLERANCE
    if run.row_total is not None:
        assert gap < mass_tolerance(float(np.abs(run.row_total).max())) / 10


def test_without_rows_the_other_extras_stay(make_lm: Any, prompts: list[ap.Prompt]) -> None:
    lm, extras = make_lm(), [extra for extra in EXTRAS if extra != "top"]
    kept = ap.measure(lm, prompts[0], answer="47", extras=extras)
    bare = ap.measure(lm, prompts[0], answer="47", extras=extras, keep_rows=False)
    assert bare.row_mass is None
    assert_same_extras(kept, bare)
    with pytest.raises(ap.InputError, match='"top" are kept row by row'):
        ap.measure(lm, prompts[0], answer="47", extras=["top"], keep_rows=False)


def test_nothing_extra_unless_asked(make_lm: Any, prompts: list[ap.Prompt]) -> None:
    lm = make_lm()
    run = ap.measure(lm, prompts[0], answer="47")
    for name in (*ARRAY_NAMES, "distance_edges", "prompt_edges"):
        assert getattr(run, name) is None
    assert ap.measure(lm, prompts[0], answer="47", extras="columns").column_mass is not None


def test_what_cannot_be_measured_is_named(make_lm: Any, prompts: list[ap.Prompt]) -> None:
    with pytest.raises(ap.InputError, match="extra 'value' is unknown; choose any of top, columns"):
        ap.measure(make_lm(), prompts[0], answer="47", extras=["value"])
    with pytest.raises(ap.CaptureError, match=r'Qwen3NextAttention \(layer 1\): extras "values".*gate'):
        ap.measure(make_lm("qwen3_next"), prompts[0], answer="47", extras=["values"])
    if not os.environ.get("ATTNPROBE_FLOOR"):  # in the oldest transformers those layers run all rows
        for extra in PROMPT_ROWS:
            with pytest.raises(ap.CaptureError, match='nor with the extras "question" and "prompt"'):
                ap.measure(make_lm("gemma4"), prompts[0], max_new_tokens=3, extras=[extra])
    run = ap.measure(make_lm(), ap.Prompt.from_text("No question here."), answer="47", extras=["question"])
    assert run.question_mass is None
    assert any("no question of its own" in warning for warning in run.warnings)


@pytest.mark.parametrize("family", FALLBACK)
def test_fallback_models_have_no_extras(make_lm: Any, prompts: list[ap.Prompt], family: str) -> None:
    with pytest.raises(ap.InputError, match=r"extras top, values need .*ForCausalLM"):
        ap.measure(make_lm(family), prompts[0], answer="47", extras=["values", "top"])


def test_values_are_found_through_the_projection_of_another_layout(make_lm: Any, prompts: list[ap.Prompt]) -> None:
    """A projection that is not given what attention gave must not be taken for the output projection."""
    lm = make_lm()
    module, _ = attention_layers(lm.model)[1]
    module.o_proj.register_forward_pre_hook(lambda inner, args: (args[0] * 1.1,))
    ap.measure(lm, prompts[0], answer="47", extras=["columns"])
    # Hooks run in order of registration: ours sees the changed input.
    with pytest.raises(ap.CaptureError, match=r'LlamaAttention \(layer 1\): extras "values"'):
        ap.measure(lm, prompts[0], answer="47", extras=["values"])


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 8, 9, 1000, 1024, 1025])
def test_bins_hold_every_distance(n: int) -> None:
    edges = distance_edges(n_distance_bins(n))
    assert edges[:2] == (0, 1)
    assert all(b == 2 * a for a, b in pairwise(edges[1:]))
    assert edges[-2] <= n - 1 < edges[-1]


def test_projection_norms_are_those_of_the_whole_product() -> None:
    generator = torch.Generator().manual_seed(3)
    n_heads, n_kv, size, n_out, n_keys = 6, 2, 5, 17, 5000
    weight = torch.randn(n_out, n_heads * size, generator=generator)
    weight[:, :size] = weight[:, :1] * torch.arange(size)  # a head of rank one
    value = torch.randn(2, n_kv, n_keys, size, generator=generator)
    value[0, 0, 7] = 0
    found = value_bias(value, output_factor(weight, n_heads))
    written = torch.einsum(
        "ohd,bhnd->bhno",
        weight.double().reshape(n_out, n_heads, size),
        value.double().repeat_interleave(n_heads // n_kv, dim=1),
    )
    norms = written.norm(dim=-1)
    largest = norms.amax(dim=-1, keepdim=True)
    assert float(((found.double().exp() - norms) / largest).abs().max()) < 1e-6
    assert torch.isfinite(found).all()
    assert found[0, :3, 7].tolist() == pytest.approx([math.log(torch.finfo(torch.float32).tiny)] * 3)


@pytest.mark.parametrize("n_keys", [5, 63, 64, 65, 300])
@pytest.mark.parametrize("masked", [False, True])
def test_heaviest_keys_are_those_of_a_dense_softmax(n_keys: int, masked: bool) -> None:
    generator = torch.Generator().manual_seed(n_keys)
    n_rows, offset, sink = min(4, n_keys), 11, torch.tensor([2.0, -1.0, 0.5, 3.0])
    query = torch.randn(2, 4, n_rows, 8, generator=generator)
    key = torch.randn(2, 2, n_keys, 8, generator=generator)
    key[:, :, n_keys // 2 :] = key[:, :, n_keys // 2 : n_keys // 2 + 1]  # the later half weighs the same in each row
    columns = np.arange(n_keys - n_rows, n_keys)
    lo, hi = np.array([[0] * n_rows, [3] * n_rows]), np.broadcast_to(columns + 1, (2, n_rows)).copy()
    hi[1, 0] = lo[1, 0] = 0  # a row of padding
    visible = np.stack([lo, hi], axis=-1).astype(np.int32)
    position = torch.arange(n_keys)
    seen = (position >= torch.from_numpy(lo)[..., None]) & (position < torch.from_numpy(hi)[..., None])  # [B, A, N]
    if masked:
        seen = seen & (position % 3 != 1)
    mask = seen[:, None] if masked else None
    block = RowBlock(query, key, None, columns + offset, offset, visible, mask, None, None)
    logits = query.double() @ key.double().repeat_interleave(2, dim=1).mT * 8**-0.5
    logits = torch.cat(
        [logits.masked_fill(~seen[:, None], -torch.inf), sink.double().expand(2, n_rows, 4).mT[..., None]], -1
    )
    total = torch.logsumexp(logits, dim=-1)
    total[1, :, 0] = -torch.inf  # nothing counts in a row of padding
    wanted = torch.softmax(logits, dim=-1)[..., :-1].mean(dim=1).float().numpy()  # [B, A, N]
    mass, slot = heaviest_keys(block, total.float(), "chunked")
    assert mass.shape == slot.shape == (2, 1, n_rows, N_KEYS)
    for sample in range(2):
        for row in range(n_rows):
            found, own = mass[sample, 0, row].numpy(), slot[sample, 0, row].numpy()
            n_found = min(N_KEYS, int((wanted[sample, row] > 0).sum()))
            assert (own >= 0).sum() == n_found
            np.testing.assert_allclose(
                found, np.pad(np.sort(wanted[sample, row])[::-1], (0, N_KEYS))[:N_KEYS], atol=1e-7
            )
            assert (own[n_found:] == -1).all()
            np.testing.assert_allclose(wanted[sample, row, own[:n_found] - offset], found[:n_found], atol=1e-7)
            order = sorted(range(n_found), key=lambda i: (-found[i], own[i]))
            assert order == list(range(n_found))


def test_the_first_of_equal_keys_are_listed() -> None:
    query, key = torch.ones(1, 2, 1, 4), torch.ones(1, 1, 200, 4)
    key[:, :, [150, 170]] = 2.0
    block = RowBlock(query, key, None, np.array([199]), 0, np.array([[[20, 200]]], dtype=np.int32), None, None, None)
    total = torch.logsumexp((query @ key.mT * 0.5)[..., 20:], dim=-1)
    _, slot = heaviest_keys(block, total, "chunked")
    assert slot.flatten().tolist() == [150, 170, *range(20, 82)]


@pytest.mark.parametrize("n_prompt", [1, 2, 63, 64, 65, 128, 129, 1000, 4096, 100_003])
def test_blocks_of_a_prompt(n_prompt: int) -> None:
    edges = prompt_edges(n_prompt)
    sizes = np.diff(edges)
    assert (edges[0], edges[-1]) == (0, n_prompt)
    assert len(sizes) <= BLOCKS
    assert set(sizes[:-1]) <= {math.ceil(n_prompt / BLOCKS)}
    assert 0 < sizes[-1] <= math.ceil(n_prompt / BLOCKS)


@pytest.mark.parametrize("family", ["mistral", "gpt_oss"])
def test_prompt_rows_are_reduced_a_few_at_a_time(
    make_lm: Any, prompts: list[ap.Prompt], family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lm, extras = make_lm(family), ["question", "prompt"]
    whole = ap.measure(lm, prompts[2], answer="47", extras=extras)
    assert whole.prompt_edges is not None
    assert whole.prompt_edges[1] == 2
    seen: list[int] = []

    def spy(query: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        seen.append(query.shape[2])
        return prefill_map(query, *args, **kwargs)

    monkeypatch.setattr(row_means, "prefill_map", spy)
    monkeypatch.setattr(row_means, "_MASK_NUMBERS", 5 * len(whole.token_ids))
    parts = ap.measure(lm, prompts[2], answer="47", extras=extras)
    assert max(seen) == 5
    assert_same_extras(whole, parts)


def test_rows_with_a_mask_are_few_at_a_time_and_others_are_not() -> None:
    n_columns = 2**16
    square = torch.ones((), dtype=torch.bool).expand(1, 4, n_columns, n_columns)
    padding = square[0, 0, :1]
    assert rows_at_a_time(1, n_columns, None, None) == n_columns
    assert rows_at_a_time(1, n_columns, padding, None) == n_columns
    for n_samples, given, rows in ((1, square[:, :1], 1024), (1, square, 256), (8, square[:, :1], 128)):
        assert rows_at_a_time(n_samples, n_columns, given, None) == rows
        assert rows_at_a_time(n_samples, n_columns, None, given) == rows
    assert rows_at_a_time(10**4, n_columns, square, None) == 1


def test_distances_with_a_mask_that_is_no_interval() -> None:
    generator = torch.Generator().manual_seed(4)
    n_keys, n_rows = 21, 4
    query = torch.randn(1, 2, n_rows, 8, generator=generator)
    key = torch.randn(1, 1, n_keys, 8, generator=generator)
    slots = np.arange(n_keys - n_rows, n_keys)
    columns = torch.arange(n_keys)
    mask = (columns <= torch.from_numpy(slots)[:, None]) & (columns % 3 != 1)
    mask = mask[None, None]
    visible = np.stack([np.zeros_like(slots), slots + 1], axis=-1)[None].astype(np.int32)
    block = RowBlock(query, key, None, slots, 0, visible, mask, None, None)
    table = Segments.from_bounds([(0, 1), (1, 9), (9, n_keys)], n_keys)
    lse = span_lse(query, key, table, mask=mask, backend="naive")
    found = distance_mass(block, [table], [[0]], torch.logsumexp(lse, -1), "chunked")
    weights = torch.softmax((query.double() @ key.double().mT * 8**-0.5).masked_fill(~mask, -torch.inf), dim=-1)
    for row, slot in enumerate(slots):
        for b, (near, far) in enumerate(zip((0, 1, 2, 4, 8, 16), (1, 2, 4, 8, 16, 32), strict=True)):
            own = [k for k in range(1, n_keys) if near <= slot - k < far]
            np.testing.assert_allclose(found[0, :, row, b], weights[0, :, row, own].sum(-1), atol=1e-6)
    np.testing.assert_allclose(found.sum(-1) + span_masses(lse)[..., 0], 1, atol=1e-6)
