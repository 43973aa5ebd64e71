from __future__ import annotations

from dataclasses import FrozenInstanceError, replace
from typing import Any

import numpy as np
import pytest
from runs import make_run

from attnprobe.errors import InputError
from attnprobe.run import Run, check_run
from attnprobe.spans import SPAN_KINDS, Span


def edit_span(run: Run, which: str, /, **changes: Any) -> tuple[Span, ...]:
    return tuple(replace(span, **changes) if span.name == which else span for span in run.spans)


def shifted(array: np.ndarray, index: tuple[int, ...], by: float) -> np.ndarray:
    copy = array.copy()
    copy[index] += by
    return copy


@pytest.mark.parametrize("rows", ["predicting", "answer"])
@pytest.mark.parametrize("keep_rows", [True, False])
@pytest.mark.parametrize("learned_sink", [True, False])
def test_a_consistent_run_is_valid(rows: str, keep_rows: bool, learned_sink: bool) -> None:
    run = make_run(1, rows=rows, keep_rows=keep_rows, learned_sink=learned_sink, windows=(None, 6))
    check_run(run)
    np.testing.assert_allclose(run.mass.sum(-1), 1, atol=1e-5)


def test_lse_restores_the_log_sum_exp_of_every_span() -> None:
    run = make_run(2, learned_sink=True, document_tokens=(3, 0, 4))
    assert run.row_mass is not None
    assert run.row_total is not None
    assert run.lse.dtype == np.float32
    assert run.lse.shape == run.row_mass.shape
    total = np.logaddexp.reduce(run.lse.astype(np.float64), axis=-1)
    np.testing.assert_allclose(total, run.row_total, atol=1e-5)
    empty = run.document_spans[1]
    assert np.isneginf(run.lse[..., empty]).all()


def test_lse_needs_rows() -> None:
    with pytest.raises(InputError, match="keep_rows=True"):
        _ = make_run(keep_rows=False).lse


def test_document_mass_follows_document_numbers_not_span_order() -> None:
    run = make_run(3)
    order = list(range(len(run.spans)))
    a, b = run.document_spans[0], run.document_spans[2]
    order[a], order[b] = order[b], order[a]
    mixed = replace(
        run,
        spans=tuple(run.spans[i] for i in order),
        mass=run.mass[..., order],
        row_mass=run.row_mass[..., order],
        visible=run.visible[..., order],
    )
    assert mixed.documents == run.documents == ("d0", "d1", "d2", "d3")
    np.testing.assert_array_equal(mixed.document_mass(), run.document_mass())
    for k, name in enumerate(run.documents):
        (i,) = [i for i, span in enumerate(run.spans) if span.name == name]
        np.testing.assert_array_equal(run.document_mass()[..., k], run.mass[..., i])


def test_budget_has_every_kind_in_order_and_sums_to_one() -> None:
    run = make_run(4, learned_sink=True)
    budget = run.budget()
    assert tuple(budget) == SPAN_KINDS
    assert sum(budget.values()) == pytest.approx(1, abs=1e-6)
    assert budget["system"] == 0.0
    assert budget["learned_sink"] > 0
    total = 0.0
    for layer in range(2):
        for head in range(3):
            total += sum(float(run.mass[layer, head, i]) for i in run.document_spans) / 6
    assert budget["document"] == pytest.approx(total, abs=1e-9)


def test_arrays_are_read_only_and_the_callers_stay_writable() -> None:
    run = make_run(5)
    logprob = np.zeros(3, dtype=np.float32)
    changed = replace(run, answer_logprob=logprob)
    with pytest.raises(ValueError, match="read-only"):
        changed.answer_logprob[0] = 1
    logprob[0] = 2.0
    with pytest.raises(FrozenInstanceError):
        run.answer = "other"  # type: ignore[misc]


def test_manifest_becomes_its_json_copy() -> None:
    manifest: dict[str, Any] = {"rope": {"factor": 2.0}, "shape": (1, 2)}
    run = make_run(manifest=manifest)
    manifest["rope"]["factor"] = 3.0
    assert run.manifest == {"rope": {"factor": 2.0}, "shape": [1, 2]}


def test_one_row_may_go_without_an_answer_span() -> None:
    run = make_run(6, n_answer=2, n_rows=1)
    keep = [i for i, span in enumerate(run.spans) if span.kind != "answer"]
    parts = {
        "spans": tuple(run.spans[i] for i in keep),
        "mass": run.mass[..., keep],
        "row_mass": run.row_mass[..., keep],
        "visible": run.visible[..., keep],
    }
    check_run(replace(run, **parts))

    two_rows = make_run(6, n_answer=2)
    parts = {
        "spans": tuple(two_rows.spans[i] for i in keep),
        "mass": two_rows.mass[..., keep],
        "row_mass": two_rows.row_mass[..., keep],
        "visible": two_rows.visible[..., keep],
    }
    with pytest.raises(InputError, match="the answer has no span"):
        replace(two_rows, **parts)


BAD: dict[str, tuple[Any, str]] = {
    "rows-unknown": (lambda r: {"rows": "all"}, "rows is 'all'"),
    "answer-not-text": (lambda r: {"answer": None}, "answer must be a string"),
    "id-not-text": (lambda r: {"prompt_id": 3}, "prompt_id"),
    "warnings-list": (lambda r: {"warnings": ["x"]}, "warnings must be a tuple"),
    "residual-nan": (lambda r: {"residual": float("nan")}, "residual"),
    "residual-negative": (lambda r: {"residual": -1e-9}, "residual"),
    "manifest-array": (lambda r: {"manifest": {"x": np.zeros(2)}}, "manifest cannot be written as JSON"),
    "manifest-nan": (lambda r: {"manifest": {"x": float("inf")}}, "manifest cannot be written as JSON"),
    "manifest-list": (lambda r: {"manifest": []}, "manifest must be a dict"),
    "ids-negative": (lambda r: {"token_ids": (-1, *r.token_ids[1:])}, "token_ids must be"),
    "ids-bool": (lambda r: {"answer_ids": (True, *r.answer_ids[1:])}, "answer_ids must be"),
    "ids-short": (lambda r: {"token_ids": r.token_ids[:-1]}, r"n_prompt \+ answer tokens"),
    "ids-tail": (lambda r: {"answer_ids": r.answer_ids[::-1]}, "not the tail"),
    "answer-empty": (lambda r: {"answer_ids": ()}, "no answer token"),
    "prompt-empty": (lambda r: {"n_prompt": 0}, "n_prompt"),
    "spans-none": (lambda r: {"spans": ()}, "non-empty tuple of Span"),
    "span-kind": (lambda r: {"spans": edit_span(r, "d0", kind="passage")}, "span kind 'passage' is unknown"),
    "span-name": (lambda r: {"spans": edit_span(r, "d0", name="")}, "has the name ''"),
    "span-twice": (lambda r: {"spans": edit_span(r, "d0", name="d1")}, "same kind and name"),
    "document-missing": (lambda r: {"spans": edit_span(r, "d1", document=7)}, "documents are numbered"),
    "document-twice": (lambda r: {"spans": edit_span(r, "d1", document=0)}, "documents are numbered"),
    "document-none": (lambda r: {"spans": edit_span(r, "d1", document=None)}, "document number None"),
    "document-bool": (lambda r: {"spans": edit_span(r, "d1", document=True)}, "document number True"),
    "question-numbered": (lambda r: {"spans": edit_span(r, "question", document=0)}, "document number 0"),
    "marker-number": (lambda r: {"spans": edit_span(r, "marker:d1", document=9)}, "belongs to document 9"),
    "gap": (lambda r: {"spans": edit_span(r, "d0", segments=((5, 8),))}, "belong to no span"),
    "overlap": (lambda r: {"spans": edit_span(r, "sink", segments=((0, 2),))}, "overlaps"),
    "reversed": (lambda r: {"spans": edit_span(r, "sink", segments=((1, 0),))}, "reversed"),
    "empty-segment": (lambda r: {"spans": edit_span(r, "d0", segments=((5, 5), (5, 9)))}, "empty or reversed"),
    "unsorted": (
        lambda r: {"spans": edit_span(r, "template", segments=r.spans[1].segments[::-1])},
        "not ascending",
    ),
    "segment-float": (lambda r: {"spans": edit_span(r, "sink", segments=((0, 1.0),))}, "segments must be"),
    "answer-short": (
        lambda r: {"spans": edit_span(r, "answer", segments=((r.n_prompt, r.n_prompt + 1),))},
        "the answer is",
    ),
    "sink-with-tokens": (
        lambda r: {"spans": edit_span(r, "sink", kind="learned_sink")},
        "learned sink, which has no tokens",
    ),
    "layers-order": (lambda r: {"layers": (1, 0)}, "ascending"),
    "layers-count": (lambda r: {"layers": (0, 1, 2)}, "shape"),
    "rows-half-kept": (lambda r: {"row_total": None}, "give both or neither"),
    "mass-dtype": (lambda r: {"mass": r.mass.astype(np.float64)}, "mass is float64; expected float32"),
    "visible-dtype": (lambda r: {"visible": r.visible.astype(np.int64)}, "visible is int64"),
    "mass-list": (lambda r: {"mass": r.mass.tolist()}, "mass must be an array"),
    "logprob-length": (lambda r: {"answer_logprob": r.answer_logprob[:-1]}, "answer_logprob has shape"),
    "logprob-nan": (
        lambda r: {"answer_logprob": shifted(r.answer_logprob, (0,), np.nan)},
        "answer_logprob holds a value that is not finite",
    ),
    "row-nan": (lambda r: {"row_mass": shifted(r.row_mass, (0, 0, 0, 0), np.nan)}, "not finite"),
    "total-inf": (lambda r: {"row_total": shifted(r.row_total, (0, 0, 0), -np.inf)}, "not finite"),
    "row-heads": (lambda r: {"row_mass": r.row_mass[:, :2]}, "row_mass has shape"),
    "negative": (
        lambda r: {"row_mass": shifted(shifted(r.row_mass, (0, 0, 0, 0), -2), (0, 0, 0, 1), 2)},
        "negative mass",
    ),
    "sum": (lambda r: {"row_mass": shifted(r.row_mass, (0, 0, 0, 0), 2e-5)}, "row_mass does not sum to 1"),
    "mean": (
        lambda r: {"mass": shifted(shifted(r.mass, (1, 2, 0), 3e-6), (1, 2, 1), -3e-6)},
        "mass is not the mean of row_mass",
    ),
    "visible-negative": (lambda r: {"visible": shifted(r.visible, (0, 0, 0), -2)}, "negative number"),
    "visible-blind": (lambda r: {"visible": r.visible * 0}, "sees no token at all"),
    "visible-many": (lambda r: {"visible": shifted(r.visible, (0, 0, 0), 1)}, 'tokens of span "sink" than lie'),
    "visible-future": (
        lambda r: {"visible": shifted(r.visible, (0, 0, len(r.spans) - 1), 1)},
        'tokens of span "answer" than lie',
    ),
    "hidden-mass": (
        lambda r: {"visible": shifted(r.visible, (1, 2, r.document_spans[0]), -4)},
        'span "d0" has mass where no token of it is visible',
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_contradictions_are_refused_by_name(case: str) -> None:
    run = make_run(7)
    change, message = BAD[case]
    with pytest.raises(InputError, match=message):
        replace(run, **change(run))


def test_sinks_may_be_several_and_belong_to_documents() -> None:
    run = make_run(10, secondary=(3, 6, 8), extras=True)
    sinks = {span.name: span.document for span in run.spans if span.kind == "sink"}
    assert sinks == {"sink": None, "sink:3": None, "sink:6": 0, "sink:8": 0}
    means = {span.name: float(run.mass[..., i].mean()) for i, span in enumerate(run.spans) if span.kind == "sink"}
    budget = run.budget()
    assert tuple(budget) == (*SPAN_KINDS, "secondary_sink")
    assert budget["sink"] == pytest.approx(means["sink"], abs=1e-7)
    assert budget["secondary_sink"] == pytest.approx(means["sink:3"] + means["sink:6"] + means["sink:8"], abs=1e-7)
    assert run.budget(slice(None))["secondary_sink"] == pytest.approx(budget["secondary_sink"], abs=1e-6)
    assert sum(budget.values()) == pytest.approx(1, abs=1e-6)
    with pytest.raises(InputError, match='"sink:8" belongs to document 4, but there are 4'):
        replace(run, spans=edit_span(run, "sink:8", document=4))


BAD_EXTRAS: dict[str, tuple[Any, str]] = {
    "top-half": (lambda r: {"top_token": None}, "top_mass and top_token are kept together"),
    "edges-half": (lambda r: {"distance_edges": None}, "distance_mass and distance_edges are kept together"),
    "edges-list": (lambda r: {"distance_edges": list(r.distance_edges)}, "distance_edges is"),
    "edges-short": (lambda r: {"distance_edges": r.distance_edges[:-1]}, "distance_edges is"),
    "top-without-rows": (lambda r: {"row_mass": None, "row_total": None}, "row_mass is None"),
    "top-shape": (lambda r: {"top_mass": r.top_mass[:, :, :1]}, "top_mass is float32 of shape"),
    "top-dtype": (lambda r: {"top_token": r.top_token.astype(np.int64)}, "top_token is int64"),
    "columns-list": (lambda r: {"column_mass": r.column_mass.tolist()}, "column_mass must be a numpy array"),
    "columns-nan": (lambda r: {"column_mass": shifted(r.column_mass, (0, 0, 0), np.nan)}, "column_mass holds"),
    "columns-negative": (lambda r: {"column_mass": shifted(r.column_mass, (0, 0, 0), -2)}, "column_mass holds"),
    "columns-sum": (
        lambda r: {"column_mass": shifted(r.column_mass, (1, 2, 0), 2e-4)},
        'column_mass of span "sink" does not add up',
    ),
    "distance-sum": (lambda r: {"distance_mass": shifted(r.distance_mass, (0, 0, 1), 2e-4)}, "with the sinks does not"),
    "value-sum": (lambda r: {"value_mass": shifted(r.value_mass, (0, 0, 1), 2e-4)}, "value_mass does not add up"),
    "value-sink": (
        lambda r: {"value_mass": moved(r.value_mass, 1, -1)},
        'value_mass gives mass to span "learned_sink"',
    ),
    "question-answer": (
        lambda r: {"question_mass": moved(r.question_mass, 1, -2)},
        'question_mass gives mass to span "answer"',
    ),
    "keys-half": (lambda r: {"key_token": None}, "key_mass and key_token are kept together"),
    "keys-shape": (lambda r: {"key_mass": r.key_mass[..., :-1]}, "key_mass is float32 of shape"),
    "keys-dtype": (lambda r: {"key_token": r.key_token.astype(np.int64)}, "key_token is int64"),
    "keys-negative": (lambda r: {"key_mass": shifted(r.key_mass, (0, 0, 0), -2)}, "key_mass holds"),
    "keys-order": (lambda r: {"key_mass": swapped(r.key_mass), "key_token": swapped(r.key_token)}, "is not in order"),
    "keys-tie": (lambda r: {"key_mass": tied(r.key_mass), "key_token": descending(r.key_token)}, "is not in order"),
    "keys-twice": (lambda r: {"key_token": shifted(r.key_token, (0, 0, 1), twice(r))}, "holds a token twice"),
    "keys-later": (lambda r: {"key_token": shifted(r.key_token, (0, 0, 0), 100)}, "one behind its row"),
    "keys-none": (lambda r: {"key_token": shifted(r.key_token, (0, 0, -1), 1)}, "key_token is -1 where"),
    "keys-unseen": (
        lambda r: {"visible": shifted(r.visible, (0, 0, r.document_spans[1]), -1)},
        'key_token holds more tokens of span "d1" than the row sees',
    ),
    "keys-heavy": (lambda r: {"key_mass": shifted(r.key_mass, (0, 0, 0), 0.9)}, "is more than the span has"),
    "prompt-half": (lambda r: {"prompt_edges": None}, "prompt_mass and prompt_edges are kept together"),
    "prompt-edges": (lambda r: {"prompt_edges": (0, r.n_prompt)}, "prompt_edges is"),
    "prompt-edges-type": (lambda r: {"prompt_edges": tuple(map(np.int64, r.prompt_edges))}, "prompt_edges is"),
    "prompt-shape": (lambda r: {"prompt_mass": r.prompt_mass[:, :, :1]}, "prompt_mass is float32 of shape"),
    "prompt-sum": (lambda r: {"prompt_mass": shifted(r.prompt_mass, (0, 0, 9, 0), 2e-4)}, "prompt_mass does not add"),
    "prompt-later": (
        lambda r: {"prompt_mass": moved(r.prompt_mass, 0, r.document_spans[-1])},
        'prompt_mass gives mass to span "d3" in rows before it',
    ),
    "prompt-answer": (
        lambda r: {"prompt_mass": moved(r.prompt_mass, 0, -2)},
        'prompt_mass gives mass to span "answer"',
    ),
    "top-position": (lambda r: {"top_token": shifted(r.top_token, (0, 0, 0, 0), 1000)}, "position that is no token's"),
    "top-unseen": (lambda r: {"top_token": shifted(r.top_token, (0, 0, 0, 0), -1)}, '"sink" is -1 where a row sees'),
    "top-elsewhere": (lambda r: {"top_token": shifted(r.top_token, (0, 0, 0, 0), 1)}, '"sink" lies outside it'),
    "top-heavy": (lambda r: {"top_mass": shifted(r.top_mass, (0, 0, 0, 1), 0.9)}, "is more than its mass"),
    "top-light": (lambda r: {"top_mass": r.top_mass * np.float32(0.1)}, "less than its mean token's"),
}


def swapped(array: np.ndarray) -> np.ndarray:
    return array[..., [1, 0, *range(2, array.shape[-1])]]


def tied(mass: np.ndarray) -> np.ndarray:
    copy = mass.copy()
    copy[..., :2] = copy[..., 1:2]
    return copy


def descending(token: np.ndarray) -> np.ndarray:
    copy = token.copy()
    copy[..., :2] = -np.sort(-copy[..., :2], axis=-1)
    return copy


def twice(run: Run) -> int:
    assert run.key_token is not None
    return int(run.key_token[0, 0, 0] - run.key_token[0, 0, 1])


def moved(array: np.ndarray, source: int, target: int) -> np.ndarray:
    copy = array.copy()
    copy[..., target] += copy[..., source]
    copy[..., source] = 0
    return copy


@pytest.mark.parametrize("case", BAD_EXTRAS)
def test_contradicting_extras_are_refused_by_name(case: str) -> None:
    run = make_run(7, extras=True, learned_sink=True)
    change, message = BAD_EXTRAS[case]
    with pytest.raises(InputError, match=message):
        replace(run, **change(run))


def test_too_many_rows_are_refused() -> None:
    run = make_run(8, rows="answer")
    with pytest.raises(InputError, match="3 rows from position"):
        replace(run, token_ids=run.token_ids[:-1], answer_ids=run.answer_ids[:-1], **_shorter_answer(run))


def _shorter_answer(run: Run) -> dict[str, Any]:
    stop = len(run.token_ids) - 1
    return {
        "answer_logprob": run.answer_logprob[:-1],
        "spans": edit_span(run, "answer", segments=((run.n_prompt, stop),)),
    }


def test_hidden_mass_is_found_without_rows() -> None:
    run = make_run(9, keep_rows=False)
    visible = run.visible.copy()
    visible[1, :, run.document_spans[2]] = 0
    with pytest.raises(InputError, match='span "d2" has mass'):
        replace(run, visible=visible)
