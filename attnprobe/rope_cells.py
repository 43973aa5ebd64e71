"""One cell of a comparison of RoPE scalings: one text under one scaling, every needle's question forced in turn.

The documents are fed once: questions and answers go on from their keys and values, where that is exact.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from attnprobe.extras import n_distance_bins
from attnprobe.heads import run_scores
from attnprobe.measuring import measure
from attnprobe.norms import head_values, mean_of_defined
from attnprobe.prefix_cache import PrefixCache, goes_on_exactly
from attnprobe.prompt import encode_answer
from attnprobe.rope_frequencies import rope_in_use
from attnprobe.rope_needles import AskedNeedle, NeedleText
from attnprobe.study_cells import CellResult, relieved_chunk
from attnprobe.token_losses import agree, token_losses

if TYPE_CHECKING:
    from attnprobe.models import LanguageModel
    from attnprobe.run import Run

SLICES = 10
"""Equal parts of a text's documents that the curve of a cell is made of."""

EXTRAS = ("top", "columns", "distance")


def measure_text(lm: LanguageModel, text: NeedleText, relief: int = 0) -> CellResult:
    """Measure one text under the scaling that the model was loaded with.

    Parameters
    ----------
    lm
        The model.
    text
        What to read.
    relief
        How often this cell ran out of memory; see :func:`attnprobe.study_cells.relieved_chunk`.

    Returns
    -------
    CellResult
        Arrays, needles by depth: ``logprob`` [depth], nats of the whole answer; ``mass``, ``advantage``, ``retrieval``
        [depth, layer, head] of the asked needle; ``sink`` [depth], mass of the first token; ``entropy`` [depth] and
        ``slices`` [depth, part] (:func:`spread`); ``distance`` [layer, head, bin], mean over depths; ``loss`` [token],
        of the prompt's tokens from the second on, unless the model's logits could not be computed apart.
    """
    goes_on_exactly(lm.model)  # now: finding it out runs the model, which must not be watched below
    chunk = relieved_chunk(lm, relief)
    prefix = PrefixCache()
    n_depths = len(text.needles)
    found: list[dict[str, np.ndarray]] = [{} for _ in range(n_depths)]
    facts: list[dict[str, Any]] = [{} for _ in range(n_depths)]
    prompts: list[tuple[int, ...]] = [()] * n_depths
    loss = None
    warnings: set[str] = set()
    if len(set(text.depths)) < n_depths:
        warnings.add("needles of several depths stand at one place: the filler has no sentence end between them")
    ids = [_token_ids(lm, needle) for needle in text.needles]
    for depth in sorted(range(n_depths), key=lambda i: ids[i]):  # neighbours begin alike for longest
        needle = text.needles[depth]
        with nullcontext() if any(facts) else token_losses(lm, ids[depth]) as losses:
            run = measure(
                lm,
                needle.prompt,
                answer=needle.answer,
                prefix=prefix,
                prefill_chunk=chunk,
                beyond_window=True,
                extras=EXTRAS,
            )
        if losses is not None and agree(lm, losses, run.answer_logprob):
            loss = losses.values[: run.n_prompt - 1]
        elif losses is not None:
            warnings.add("losses are left out: the model changes its logits behind its output head")
        prompts[depth] = run.token_ids[: run.n_prompt]
        found[depth] = _reduced(run, needle, lm.tokenizer, n_distance_bins(text.length))
        facts[depth] = {
            "item": needle.item,
            "depth": text.depths[depth],
            "answer": run.answer,
            "tokens": len(run.token_ids),
            "reused_tokens": run.manifest["capture"]["reused_tokens"],
            "residual": run.residual,
        }
        warnings.update(run.warnings)
    arrays = {name: np.stack([one[name] for one in found]) for name in found[0]}
    arrays["distance"] = arrays["distance"].mean(axis=0)
    if loss is not None:
        arrays["loss"] = loss
    return CellResult(
        {name: np.asarray(array, dtype=np.float32) for name, array in arrays.items()},
        {
            "text": text.number,
            "length": text.length,
            "ids_sha256": _ids_hash(prompts),
            "needles": facts,
            "rope": rope_in_use(lm.model),
            "arrays": sorted(arrays),
            "warnings": sorted(warnings),
        },
        {},
    )


def spread(column_mass: np.ndarray, first: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
    """How the mass of a head is spread over tokens, from row-averaged masses.

    Parameters
    ----------
    column_mass
        [layer, head, token], as :attr:`attnprobe.Run.column_mass`.
    first, stop
        Tokens of the documents: from the first one's first to the last one's last.

    Returns
    -------
    slices : numpy.ndarray
        float64 [part]: mass of ``SLICES`` equal parts of the documents' tokens over their sum; masses are averaged over
        layers and heads before. NaN where no row sees them.
    entropy : numpy.ndarray
        float64 scalar, nats: entropy of the row-averaged mass over single tokens, the first token of the prompt left
        out and the rest made up to 1, for each head; then the mean, without heads that give the rest nothing. exp of it
        is a number of tokens.
    """
    edges = np.linspace(first, stop, SLICES + 1).round().astype(int)
    mean = column_mass.mean(axis=(0, 1), dtype=np.float64)
    parts = np.array([mean[start:end].sum() for start, end in pairwise(edges)])
    with np.errstate(invalid="ignore"):  # 0 / 0 is the NaN that is meant
        slices = parts / parts.sum()
    # a layer at a time: of a large model on a long text, all of them are gigabytes
    entropies = [_entropies(of_layer[:, 1:].astype(np.float64)) for of_layer in column_mass]
    return slices, mean_of_defined(np.concatenate(entropies), axis=0)


def _entropies(mass: np.ndarray) -> np.ndarray:
    """float64 [head], nats: entropy of masses [head, token] made up to 1; NaN of a head that has none."""
    with np.errstate(invalid="ignore"):
        share = mass / mass.sum(axis=-1, keepdims=True)
    logs = np.log(share, where=share > 0, out=np.zeros_like(share))
    return np.asarray(-(share * logs).sum(axis=-1))


def _reduced(run: Run, needle: AskedNeedle, tokenizer: Any, n_bins: int) -> dict[str, np.ndarray]:
    assert run.column_mass is not None
    assert run.distance_mass is not None
    farther = n_bins - run.distance_mass.shape[-1]  # a shorter prompt may have one bin less
    segments = [segment for place in run.document_spans for segment in run.spans[place].segments]
    slices, entropy = spread(run.column_mass, min(s for s, _ in segments), max(s for _, s in segments))
    scores = run_scores(run, needle.document, needle="answer", answers=needle.answers, tokenizer=tokenizer)
    return {
        "logprob": np.asarray(run.answer_logprob.sum(dtype=np.float64)),
        "mass": head_values(run, "mass")[..., needle.document],
        "advantage": scores.advantage,
        "retrieval": scores.retrieval,
        "sink": np.asarray(run.budget()["sink"]),
        "entropy": entropy,
        "slices": slices,
        "distance": np.pad(run.distance_mass, ((0, 0), (0, 0), (0, farther))),
    }


def _ids_hash(prompts: Iterable[Sequence[int]]) -> str:
    """SHA-256 of the token ids of a text's prompts: the same for every scaling."""
    digest = hashlib.sha256()
    for ids in prompts:
        digest.update(np.asarray(ids, dtype="<i8").tobytes())
    return digest.hexdigest()


def _token_ids(lm: LanguageModel, needle: AskedNeedle) -> tuple[int, ...]:
    """Of the prompt and its answer."""
    encoded = needle.prompt.encode(lm.tokenizer)
    return (*encoded.token_ids, *encode_answer(encoded, lm.tokenizer, needle.answer)[0])
