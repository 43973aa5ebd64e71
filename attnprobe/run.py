"""Run: what one measurement found, and what makes it valid."""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnprobe.curve import Curve, Heads, Layers, curve_of
from attnprobe.errors import InputError, RunFileError
from attnprobe.extra_checks import check_extras
from attnprobe.norms import budget_of
from attnprobe.run_extras import ARRAY_NAMES
from attnprobe.run_file import read_run_file, write_run_file
from attnprobe.spans import SPAN_KINDS, Span
from attnprobe.token_chars import check_token_chars

ROWS = ("predicting", "answer")
SUM_TOLERANCE = 1e-5
MEAN_TOLERANCE = 1e-6


@dataclass(frozen=True, eq=False)
class Run:
    """The attention that every span of one prompt received while one answer was written.

    Row r is the query at position ``n_prompt - 1 + r`` (``rows="predicting"``: it predicts answer token r) or
    ``n_prompt + r`` (``rows="answer"``: answer token r itself). With predicting rows the last answer token is
    seen by no row, though it still belongs to the answer span. Arrays are read-only.

    Parameters
    ----------
    mass
        float32 [layer, head, span]: attention mass, averaged over rows; sums to 1 over spans.
    row_mass
        float32 [layer, head, row, span]: the same row by row; None when rows were not kept.
    row_total
        float32 [layer, head, row]: log-sum-exp of all visible keys' logits, a learned sink included, natural
        log; None exactly when ``row_mass`` is. About 0 for a model measured from its eager weights, which tell masses
        but not logits.
    visible
        int32 [layer, row, span]: how many tokens of the span the row can see; 0 for a learned sink.
    layers
        The model's own layer number for each entry of the layer axis, ascending (hybrids capture few).
    spans
        The partition of the tokens, in prompt order. The answer's span may be absent only when no captured
        row sees an answer token.
    token_ids
        Prompt and answer ids: the positions that spans speak of.
    n_prompt
        Number of prompt tokens.
    answer, answer_ids
        The answer's text and its token ids, the tail of ``token_ids``.
    answer_logprob
        float32 [answer token]: log-probability of each answer token, natural log.
    rows
        ``"predicting"`` or ``"answer"``.
    prompt_text, prompt_id
        The rendered prompt, and the user's name for it or None.
    warnings
        What the user should know, in words.
    residual
        Largest \\|log-add of span log-sum-exps - independent float64 total\\| over the sampled rows, in nats.
    manifest
        Model id, revision, hashes, versions and so on. Kept as its JSON copy: tuples become lists.
    token_chars
        int32 [token, 2]: half-open range of characters (code points) of every token of prompt and answer in
        ``prompt_text + answer``. Pieces of one character share its range; a token without text of its own has an empty
        one: a BOS that the tokenizer adds, a control token that ``answer`` leaves out. Characters that the tokenizer
        drops or merges belong to no token. None in files of older versions.
    top_mass, top_token
        float32 and int32 [layer, head, row, span]: mass of the span's heaviest token in that row, and its position in
        ``token_ids``; 0 and -1 where the row sees no token of the span; a learned sink has its mass and -1. These and
        what follows are None unless asked for: ``measure(..., extras=("top", ...))``.
    column_mass
        float32 [layer, head, token]: mass of every token, averaged over rows; sums to 1 less the learned sink. (Extra
        ``columns``.)
    key_mass, key_token
        float32 and int32 [layer, row, k]: the heaviest tokens of every row, by mass averaged over heads, and their
        positions in ``token_ids``; heaviest first, of equal ones the first in the text. k is 64, or the number of
        tokens where that is less; 0 and -1 where no more tokens have mass in the row. (Extra ``keys``.)
    distance_mass, distance_edges
        float32 [layer, head, bin], averaged over rows: mass by distance. Bin b holds the keys whose position is d
        before the row's, ``edges[b] <= d < edges[b + 1]``, with edges 0, 1, 2, 4, 8, ...; the tokens of ``sink`` spans
        and the learned sink are left out, and make the sum up to 1. (Extra ``distance``.)
    value_mass
        float32 [layer, head, span]: mass weighted by the norm of what each key writes to the residual stream under the
        head, |W_o v|, normalised over spans in each row and averaged over rows; 0 for a learned sink. (Extra
        ``values``. Source: Kobayashi et al. 2020, "Attention is not only a weight".)
    question_mass
        float32 [layer, head, span]: mass averaged over the rows of the question's own tokens, of the last stretch of
        the question. (Extra ``question``.)
    prompt_mass, prompt_edges
        float32 [layer, head, block, span]: mass averaged over blocks of the prompt's own rows, at most 64 of equal size
        (the last may be shorter). Block b holds the rows of the positions ``edges[b]`` to ``edges[b + 1] - 1``. (Extra
        ``prompt``.)

    Raises
    ------
    InputError
        When the parts contradict each other; see ``check_run``.
    """

    mass: np.ndarray
    row_mass: np.ndarray | None
    row_total: np.ndarray | None
    visible: np.ndarray
    layers: tuple[int, ...]
    spans: tuple[Span, ...]
    token_ids: tuple[int, ...]
    n_prompt: int
    answer: str
    answer_ids: tuple[int, ...]
    answer_logprob: np.ndarray
    rows: str
    prompt_text: str
    prompt_id: str | None
    warnings: tuple[str, ...]
    residual: float
    manifest: dict[str, Any]
    token_chars: np.ndarray | None = None
    top_mass: np.ndarray | None = None
    top_token: np.ndarray | None = None
    column_mass: np.ndarray | None = None
    key_mass: np.ndarray | None = None
    key_token: np.ndarray | None = None
    distance_mass: np.ndarray | None = None
    distance_edges: tuple[int, ...] | None = None
    value_mass: np.ndarray | None = None
    question_mass: np.ndarray | None = None
    prompt_mass: np.ndarray | None = None
    prompt_edges: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "manifest", _json_copy(self.manifest))
        check_run(self)
        for name in ("mass", "row_mass", "row_total", "visible", "answer_logprob", "token_chars", *ARRAY_NAMES):
            array = getattr(self, name)
            if array is not None:
                # A view, so that the caller's own array stays writable.
                view = array.view()
                view.flags.writeable = False
                object.__setattr__(self, name, view)

    def __repr__(self) -> str:
        layers, heads, spans = self.mass.shape
        return (
            f"Run({self.prompt_id or 'prompt'!r}: {len(self.documents)} documents in {self.n_prompt} tokens, answer "
            f"{self.answer!r} of {len(self.answer_ids)} tokens, mass [{layers} layers, {heads} heads, {spans} spans])"
        )

    @property
    def document_spans(self) -> tuple[int, ...]:
        """Index in ``spans`` of document 0, 1, ..., K - 1."""
        numbered = {span.document: i for i, span in enumerate(self.spans) if span.kind == "document"}
        return tuple(numbered[document] for document in range(len(numbered)))

    @property
    def documents(self) -> tuple[str, ...]:
        """Names of the documents, in their order."""
        return tuple(self.spans[i].name for i in self.document_spans)

    @property
    def lse(self) -> np.ndarray:
        """Span log-sum-exp, float32 [layer, head, row, span], natural log; -inf where the mass is 0.

        Raises
        ------
        InputError
            When the rows were not kept.
        """
        if self.row_mass is None or self.row_total is None:
            raise InputError("this run kept no rows, so it has no span log-sum-exp; measure with keep_rows=True")
        with np.errstate(divide="ignore"):
            return np.log(self.row_mass) + self.row_total[..., None]

    def document_mass(self) -> np.ndarray:
        """Mass of the documents' own spans, float32 [layer, head, document], averaged over rows.

        Secondary sinks are spans apart; ``attnprobe.norms.head_values(run, "mass")`` counts them to their documents.
        """
        return self.mass[..., list(self.document_spans)]

    def budget(self, rows: slice | None = None) -> dict[str, float]:
        """Mean mass of each kind of span over rows, heads and layers.

        Parameters
        ----------
        rows
            Which answer rows, e.g. ``slice(0, 1)`` for the first one. None: all.

        Returns
        -------
        dict
            Every kind, in the order of ``SPAN_KINDS``; 0.0 for a kind the prompt does not have. Where secondary sinks
            were set apart, ``secondary_sink`` comes after them, and ``sink`` is the first token alone. Sums to 1.

        Raises
        ------
        InputError
            For ``rows`` when they were not kept, or when they select none.
        """
        return budget_of(self, rows)

    def curve(
        self,
        norm: str = "share",
        layers: Layers = None,
        heads: Heads = None,
        middle: str = "default",
        *,
        trimmed: bool = False,
        rows: slice | None = None,
        with_sinks: bool = False,
    ) -> Curve:
        """Attention against document position.

        Parameters
        ----------
        norm
            ``"share"``, ``"log_share"``, ``"mass"``, ``"density"`` or ``"advantage"``: see
            ``attnprobe.norms.document_values``.
        layers
            The model's layer numbers: None for all, an int, a list, or a slice of layer numbers.
        heads
            Query heads: None for all, an int, a list, a slice, or a list of ``(layer, head)`` pairs (then
            ``layers`` must be None).
        middle
            Which documents count as the middle; see ``attnprobe.curve.middle_positions``.
        trimmed
            Leave each document's heaviest token out, row by row (needs the extra ``top``).
        rows
            Which answer rows to average over, e.g. ``slice(0, 1)`` for the first one. None: all.
        with_sinks
            Count a document's secondary sinks to it again. They are spans of their own where
            ``measure(secondary_sinks=...)`` set them apart, and are left out of curves as they are of documents in
            :meth:`budget`; without any, this changes nothing.

        Raises
        ------
        InputError
            For an unknown norm, layer, head or middle; without documents; and when the norm needs rows or heaviest
            tokens that were not kept.
        """
        return curve_of(
            self,
            norm=norm,
            layers=layers,
            heads=heads,
            middle=middle,
            trimmed=trimmed,
            rows=rows,
            with_sinks=with_sinks,
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the run to one ``.safetensors`` file, atomically: a reader sees the old file or the new one.

        Raises
        ------
        InputError
            When the name does not end in ``.safetensors``, the folder does not exist, or the texts are too
            long for the format's header.
        OSError
            When the file cannot be written.
        """
        write_run_file(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Run:
        """Read a run from a ``.safetensors`` file.

        Raises
        ------
        RunFileError
            When the file is damaged, not a run, of a newer schema, or contradicts itself.
        InputError
            When there is no such file, it cannot be read, or its name does not end in ``.safetensors``.
        """
        fields = read_run_file(path)
        try:
            return cls(**fields)
        except InputError as error:
            raise RunFileError(f"{os.fspath(path)}: not a valid run: {error}") from error


def check_run(run: Run) -> None:
    """Raise unless the parts of a run agree with each other.

    Checked: types, dtypes and shapes; that every number is finite and no mass negative; that every row's mass
    sums to 1 (1e-5) and the rows' mean is ``mass`` (1e-6); that spans cover every token exactly once; that no
    row sees more of a span than lies at or before it, nor gives mass to a span it cannot see; that documents
    are numbered 0 to K - 1; that the answer's ids end ``token_ids``; that tokens have characters in their order, see
    ``check_token_chars``; and the extras, see ``check_extras``.

    Raises
    ------
    InputError
        Naming the first contradiction.
    """
    _check_values(run)
    _check_tokens(run)
    _check_spans(run)
    _check_arrays(run)
    _check_visible(run)
    _check_mass(run)
    check_token_chars(run)
    check_extras(run)


def _require(ok: bool | np.bool_, message: str) -> None:
    if not ok:
        raise InputError(message)


def _json_copy(manifest: Any) -> dict[str, Any]:
    _require(isinstance(manifest, dict), f"manifest must be a dict, not {type(manifest).__name__}")
    try:
        copy: dict[str, Any] = json.loads(json.dumps(manifest, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"manifest cannot be written as JSON: {error}; use str, int, float, list, dict") from error
    return copy


def _is_count(value: Any, least: int = 0) -> bool:
    return type(value) is int and value >= least


def _is_tuple_of(value: Any, kind: type) -> bool:
    return isinstance(value, tuple) and all(type(entry) is kind for entry in value)


def _check_values(run: Run) -> None:
    _require(run.rows in ROWS, f'rows is {run.rows!r}; expected "predicting" or "answer"')
    for name in ("answer", "prompt_text"):
        _require(isinstance(getattr(run, name), str), f"{name} must be a string, not {getattr(run, name)!r}")
    _require(
        run.prompt_id is None or isinstance(run.prompt_id, str),
        f"prompt_id must be a string or None, not {run.prompt_id!r}",
    )
    _require(_is_tuple_of(run.warnings, str), "warnings must be a tuple of strings")
    _require(
        isinstance(run.residual, float) and math.isfinite(run.residual) and run.residual >= 0,
        f"residual must be a finite float >= 0 (nats), not {run.residual!r}",
    )


def _check_tokens(run: Run) -> None:
    for name in ("token_ids", "answer_ids"):
        ids = getattr(run, name)
        ok = _is_tuple_of(ids, int) and min(ids, default=0) >= 0
        _require(ok, f"{name} must be a tuple of non-negative ints (plain Python ints, not tensors)")
    _require(_is_count(run.n_prompt, 1), f"n_prompt must be an int >= 1, not {run.n_prompt!r}")
    _require(len(run.answer_ids) > 0, "answer_ids is empty: there is no answer token to measure")
    n_expected = run.n_prompt + len(run.answer_ids)
    _require(
        len(run.token_ids) == n_expected,
        f"token_ids has {len(run.token_ids)} ids, but n_prompt + answer tokens is {n_expected}",
    )
    _require(run.answer_ids == run.token_ids[run.n_prompt :], "answer_ids is not the tail of token_ids")


def _check_spans(run: Run) -> None:
    _require(_is_tuple_of(run.spans, Span) and len(run.spans) > 0, "spans must be a non-empty tuple of Span")
    for span in run.spans:
        _check_span(span)
    names = {(span.kind, span.name) for span in run.spans}
    _require(len(names) == len(run.spans), "two spans have the same kind and name; names must be unique")

    numbers = sorted(span.document for span in run.spans if span.kind == "document" and span.document is not None)
    n_documents = len(numbers)
    _require(
        numbers == list(range(n_documents)),
        f"documents are numbered {numbers}; expected each of 0 to {n_documents - 1} once",
    )
    for span in run.spans:
        if span.kind in ("marker", "sink") and span.document is not None:
            _require(
                span.document < n_documents,
                f'span "{span.name}" belongs to document {span.document}, but there are {n_documents} documents',
            )

    answers = [span for span in run.spans if span.kind == "answer"]
    bounds = ((run.n_prompt, len(run.token_ids)),)
    for span in answers:
        _require(
            span.segments == bounds,
            f'span "{span.name}" has segments {span.segments}; the answer is {bounds}',
        )
    _check_tiling(run.spans, len(run.token_ids) if answers else run.n_prompt)


def _check_span(span: Span) -> None:
    _require(
        span.kind in SPAN_KINDS,
        f"span kind {span.kind!r} is unknown; expected one of {', '.join(SPAN_KINDS)}",
    )
    _require(isinstance(span.name, str) and span.name != "", f"a {span.kind} span has the name {span.name!r}")
    if span.kind == "document":
        ok = _is_count(span.document)
    elif span.kind in ("marker", "sink"):
        ok = span.document is None or _is_count(span.document)
    else:
        ok = span.document is None
    _require(ok, f'span "{span.name}" of kind {span.kind} has the document number {span.document!r}')
    pairs = isinstance(span.segments, tuple) and all(
        _is_tuple_of(segment, int) and len(segment) == 2 for segment in span.segments
    )
    _require(pairs, f'span "{span.name}": segments must be a tuple of (start, stop) ints')
    _require(
        span.kind != "learned_sink" or not span.segments,
        f'span "{span.name}" is a learned sink, which has no tokens, but has segments {span.segments}',
    )


def _check_tiling(spans: tuple[Span, ...], n_tokens: int) -> None:
    """Raise unless every position in ``range(n_tokens)`` belongs to exactly one segment, in integers."""
    for span in spans:
        _require(list(span.segments) == sorted(span.segments), f'span "{span.name}": segments are not ascending')
    position = 0
    for start, stop, name in sorted((*segment, span.name) for span in spans for segment in span.segments):
        _require(start < stop, f'span "{name}" has the empty or reversed segment ({start}, {stop})')
        _require(start >= position, f'span "{name}" overlaps another at token {start}')
        _require(start <= position, f"tokens {position} to {start - 1} belong to no span")
        position = stop
    _require(position == n_tokens, f"spans cover {position} tokens, but there are {n_tokens}")


def _check_arrays(run: Run) -> None:
    layers = run.layers
    ascending = _is_tuple_of(layers, int) and list(layers) == sorted(set(layers)) and min(layers, default=0) >= 0
    _require(
        ascending and len(layers) > 0,
        f"layers must be a non-empty tuple of ascending ints >= 0, not {layers!r}",
    )
    _require(
        (run.row_mass is None) == (run.row_total is None),
        "row_mass and row_total are kept together: give both or neither",
    )
    _require(isinstance(run.mass, np.ndarray) and run.mass.ndim == 3, "mass must be an array [layer, head, span]")
    _require(
        isinstance(run.visible, np.ndarray) and run.visible.ndim == 3,
        "visible must be an array [layer, row, span]",
    )
    n_layers, n_heads, n_rows, n_spans = len(layers), run.mass.shape[1], run.visible.shape[1], len(run.spans)
    _require(n_heads > 0 and n_rows > 0, "a run needs at least one head and one row")
    expected: dict[str, tuple[type, tuple[int, ...]]] = {
        "mass": (np.float32, (n_layers, n_heads, n_spans)),
        "row_mass": (np.float32, (n_layers, n_heads, n_rows, n_spans)),
        "row_total": (np.float32, (n_layers, n_heads, n_rows)),
        "visible": (np.int32, (n_layers, n_rows, n_spans)),
        "answer_logprob": (np.float32, (len(run.answer_ids),)),
    }
    for name, (dtype, shape) in expected.items():
        array = getattr(run, name)
        if array is None and name in ("row_mass", "row_total"):
            continue
        _require(isinstance(array, np.ndarray), f"{name} must be a numpy array, not {type(array).__name__}")
        _require(array.dtype == dtype, f"{name} is {array.dtype}; expected {np.dtype(dtype)}")
        _require(array.shape == shape, f"{name} has shape {array.shape}; expected {shape}")
        _require(np.isfinite(array).all(), f"{name} holds a value that is not finite")


def _check_visible(run: Run) -> None:
    n_rows = run.visible.shape[1]
    first = run.n_prompt - 1 if run.rows == "predicting" else run.n_prompt
    _require(
        first + n_rows <= len(run.token_ids),
        f"{n_rows} rows from position {first} on, but there are only {len(run.token_ids)} tokens",
    )
    sees_answer = run.rows == "answer" or n_rows > 1
    _require(
        not sees_answer or any(span.kind == "answer" for span in run.spans),
        "the answer has no span, though rows see answer tokens",
    )
    _require((run.visible >= 0).all(), "visible holds a negative number of tokens")
    _require((run.visible.sum(axis=-1) > 0).all(), "a row sees no token at all; every row sees itself")
    ends = first + 1 + np.arange(n_rows)
    for i, span in enumerate(run.spans):
        reachable = np.zeros(n_rows, dtype=np.int64)
        for start, stop in span.segments:
            reachable += np.clip(ends - start, 0, stop - start)
        _require(
            (run.visible[:, :, i] <= reachable).all(),
            f'visible counts more tokens of span "{span.name}" than lie at or before the row',
        )


def _check_mass(run: Run) -> None:
    has_tokens = np.array([span.kind != "learned_sink" for span in run.spans])
    for name, array in (("mass", run.mass), ("row_mass", run.row_mass)):
        if array is None:
            continue
        _require((array >= 0).all(), f"{name} holds a negative mass")
        error = float(np.abs(array.sum(axis=-1, dtype=np.float64) - 1).max())
        _require(error <= SUM_TOLERANCE, f"{name} does not sum to 1 over spans: off by {error:.3g}")

    if run.row_mass is None:
        hidden = ~run.visible.any(axis=1) & has_tokens  # [layer, span]
        leaked = hidden & (run.mass.max(axis=1) > 0)
    else:
        error = float(np.abs(run.row_mass.mean(axis=2, dtype=np.float64) - run.mass).max())
        _require(error <= MEAN_TOLERANCE, f"mass is not the mean of row_mass over rows: off by {error:.3g}")
        hidden = (run.visible == 0) & has_tokens  # [layer, row, span]
        leaked = hidden & (run.row_mass.max(axis=1) > 0)
    if leaked.any():
        span = run.spans[int(np.nonzero(leaked)[-1][0])]
        raise InputError(f'span "{span.name}" has mass where no token of it is visible')
