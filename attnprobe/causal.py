"""What a document does to the answer: the answer's log-probability with the document hidden, deleted or swapped.

Attention mass says where attention goes, not what it changes: a key can take mass and write next to nothing, and what a
document says can reach the answer through the rows of later tokens without any mass on the document itself. The effects
here are interventions. They are first-order all the same: one document at a time, so that of two documents that say the
same thing neither may show an effect, and with a forced answer, under which later answer rows also read the answer's
own beginning.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from attnprobe.batch import Item, prefill_chunk_of
from attnprobe.decoding import Progress
from attnprobe.document import check_choice, document_label
from attnprobe.errors import InputError
from attnprobe.knockout import Hidden, refuse_unhideable
from attnprobe.measuring import Answer, options_of, prepare
from attnprobe.neutral import NeutralText
from attnprobe.prefix_cache import PrefixCache, check_prefix
from attnprobe.prompt import Prompt
from attnprobe.removal import check_removable, mismatch, neutral_in_place, with_text, without_document
from attnprobe.tails import Variant, forced_variants

if TYPE_CHECKING:
    from attnprobe.models import LanguageModel

Method = Literal["knockout", "deletion", "swap"]
HiddenFrom = Literal["answer", "later"]


@dataclass(frozen=True)
class DocumentEffects:
    """What each document does to an answer's log-probability.

    Parameters
    ----------
    method, hidden_from, layers
        As asked for; ``hidden_from`` is None unless documents were knocked out.
    documents
        Indices of the documents in the prompt, ``[D]``.
    names
        Their names.
    answer_ids
        The forced answer, ``[A]``.
    full
        float32 ``[A]``: log-probability of each answer token with the prompt as it is, nats.
    without
        float32 ``[D, A]``: the same without each document.
    neutral
        What stood in each document's place, and how exactly it matches; empty unless documents were swapped.
    warnings
        What the user should know.
    """

    method: Method
    hidden_from: HiddenFrom | None
    layers: tuple[int, ...] | None
    documents: tuple[int, ...]
    names: tuple[str, ...]
    answer_ids: tuple[int, ...]
    full: np.ndarray
    without: np.ndarray
    neutral: tuple[NeutralText, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def full_logprob(self) -> float:
        """Log-probability of the whole answer, nats."""
        return float(self.full.sum(dtype=np.float64))

    @property
    def effect(self) -> np.ndarray:
        """float64 ``[D]``, nats: how much more likely the whole answer is with the document than without it."""
        return self.full_logprob - self.without.sum(axis=1, dtype=np.float64)

    @property
    def effect_per_token(self) -> np.ndarray:
        """float64 ``[D]``: the effect over the number of answer tokens, nats a token."""
        return self.effect / len(self.answer_ids)

    def to_dict(self) -> dict[str, Any]:
        """The effects in plain types, for JSON."""
        return {
            "method": self.method,
            "hidden_from": self.hidden_from,
            "layers": None if self.layers is None else list(self.layers),
            "documents": list(self.documents),
            "names": list(self.names),
            "answer_tokens": len(self.answer_ids),
            "full_logprob": self.full_logprob,
            "effect": self.effect.tolist(),
            "effect_per_token": self.effect_per_token.tolist(),
            "neutral_tokens": [[text.wanted, text.found] for text in self.neutral],
            "warnings": list(self.warnings),
        }


def answer_logprob(
    lm: LanguageModel,
    prompt: Prompt,
    answer: Answer,
    *,
    hidden: Sequence[int] = (),
    hidden_from: HiddenFrom | None = "answer",
    layers: Sequence[int] | None = None,
    with_markers: bool = False,
    beyond_window: bool = False,
    prefix: PrefixCache | None = None,
) -> float:
    """Log-probability of a forced answer while some documents are hidden, all of them at once.

    Parameters
    ----------
    lm, prompt, answer
        As in :func:`attnprobe.measure`.
    hidden
        Indices of the documents to hide; none for the plain log-probability.
    hidden_from, layers, with_markers, beyond_window, prefix
        As in :func:`effects`; ``hidden_from`` may be None where nothing is hidden.

    Returns
    -------
    Total over the answer's tokens, nats.

    Raises
    ------
    InputError, CaptureError
        As in :func:`effects`.
    """
    item, answer_ids = _prepared(lm, prompt, answer, beyond_window)
    segments: list[tuple[int, int]] = []
    if hidden:
        check_choice(hidden_from, HiddenFrom, "hidden_from")
        refuse_unhideable(lm.model, layers)
        segments = [s for index in _chosen(item, hidden) for s in _segments(item, index, with_markers)]
    variant = _hiding(item, answer_ids, segments, hidden_from or "answer", layers)
    return float(_run(lm, item, answer_ids, [variant], None, prefix)[0].sum(dtype=np.float64))


def effects(
    lm: LanguageModel,
    prompt: Prompt,
    answer: Answer,
    *,
    method: Method = "knockout",
    hidden_from: HiddenFrom = "answer",
    documents: Sequence[int] | None = None,
    layers: Sequence[int] | None = None,
    with_markers: bool = False,
    neutral: str | None = None,
    seed: int = 0,
    beyond_window: bool = False,
    prefix: PrefixCache | None = None,
    progress: Progress | None = None,
) -> DocumentEffects:
    """What each document does to a forced answer's log-probability: with it minus without it.

    Not the same question as attention mass, and each method asks another one:

    - ``knockout`` with ``hidden_from="answer"``: the rows that predict the answer cannot see the document; all other
      rows could. What is lost is what the answer reads from the document directly, which is what mass on the document
      speaks of. What later documents, markers and the question have taken over from it stays.
    - ``knockout`` with ``hidden_from="later"``: no row behind the document can see it, so nothing carries its content
      on. Positions and prompt length stay.
    - ``deletion``: the prompt without the document and its markers. Everything behind it moves forward, and one
      document less competes for attention: its content's effect, its place and the prompt's length together.
    - ``swap``: a neutral text of as many tokens in its place, within the same markers (a title in them stays).
      Positions stay; the neutral text is read, however.

    Each takes one document away and leaves the rest: effects do not add up, and a document whose content stands in
    another one, too, may show none. The keys that are hidden free their mass for all others.

    Parameters
    ----------
    lm, prompt
        As in :func:`attnprobe.measure`. Deletion and swap need a prompt of documents; knock-out takes any, and the
        user's own spans are its documents.
    answer
        The answer to force, text or token ids: the model's own or the known one.
    method
        ``knockout``, ``deletion`` or ``swap``.
    hidden_from
        From whom a knocked-out document is hidden: ``answer`` or ``later``.
    documents
        Indices of the documents to take away, one at a time; None for all.
    layers
        Knock out in these layers only, by their number in the model; None for all.
    with_markers
        Hide the text around a document, such as its title, with it.
    neutral
        Text that takes a document's place, its words as many as fit; None for built-in sentences, another text for each
        document. The number of tokens is matched in the place where the text stands, and any difference is in
        ``neutral`` and ``warnings`` of the result.
    seed
        Draws the built-in sentences.
    beyond_window, prefix
        As in :func:`attnprobe.measure`. Within one call the prompt is fed once in any case, and what is hidden, deleted
        or swapped is fed from where it differs.
    progress
        Called as ``progress("documents", done, total)``, the plain prompt counted in.

    Raises
    ------
    InputError
        The prompt, the answer, a document or an option cannot be used.
    CaptureError
        The model's attention cannot be kept from chosen keys.
    """
    check_choice(method, Method, "method")
    check_choice(hidden_from, HiddenFrom, "hidden_from")
    item, answer_ids = _prepared(lm, prompt, answer, beyond_window)
    indices = _chosen(item, documents)
    n_own = len(answer_ids)
    base = _fed(item, answer_ids)
    full = Variant(base, item.encoded.n_tokens - 1)
    texts: list[NeutralText] = []
    warnings = list(item.warnings)
    if method == "knockout":
        refuse_unhideable(lm.model, layers)
        variants = [
            _hiding(item, answer_ids, _segments(item, index, with_markers), hidden_from, layers) for index in indices
        ]
    else:
        if layers is not None or with_markers:
            raise InputError(f'layers and with_markers are for method="knockout", not for {method!r}')
        check_removable(prompt, method)
        variants = []
        for index in indices:
            if method == "deletion":
                other = without_document(prompt, index)
            else:
                text = neutral_in_place(lm.tokenizer, prompt, item.encoded, index, answer_ids, neutral, seed + index)
                other = with_text(prompt, index, text.text)
                texts.append(text)
                if not text.exact:
                    warnings.append(mismatch(index, _document_spans(item)[index].name, text))
            ids = (*other.encode(lm.tokenizer).token_ids, *answer_ids[:-1])
            common = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(base, ids, strict=False)))
            variants.append(Variant(ids, min(common, len(ids) - n_own, len(base) - n_own)))
    scored = _run(lm, item, answer_ids, [full, *variants], progress, prefix)
    return DocumentEffects(
        method=method,
        hidden_from=hidden_from if method == "knockout" else None,
        layers=None if layers is None else tuple(layers),
        documents=tuple(indices),
        names=tuple(_document_spans(item)[index].name for index in indices),
        answer_ids=answer_ids,
        full=scored[0],
        without=np.stack(scored[1:]) if indices else np.zeros((0, n_own), dtype=np.float32),
        neutral=tuple(texts),
        warnings=tuple(warnings),
    )


def _prepared(lm: LanguageModel, prompt: Prompt, answer: Answer, beyond_window: bool) -> tuple[Item, tuple[int, ...]]:
    if answer is None:
        raise InputError("an effect needs an answer to force: pass the known one, or run.answer_ids of a measurement")
    item = prepare(lm, 0, prompt, answer, options_of({"beyond_window": beyond_window}))
    assert item.answer_ids is not None
    return item, item.answer_ids


def _fed(item: Item, answer_ids: tuple[int, ...]) -> tuple[int, ...]:
    return (*item.encoded.token_ids, *answer_ids[:-1])


def _run(
    lm: LanguageModel,
    item: Item,
    answer_ids: tuple[int, ...],
    variants: list[Variant],
    progress: Progress | None,
    prefix: PrefixCache | None,
) -> list[np.ndarray]:
    """float32 ``[A]`` log-probabilities of each variant, in the given order."""
    check_prefix(prefix)
    longest = max(len(variant.ids) for variant in variants)
    chunk = prefill_chunk_of(lm, longest, True, "auto")  # rows behind cached keys need a mask, as padded ones do
    scored: dict[int, np.ndarray] = {}
    run = forced_variants(lm.model, _fed(item, answer_ids), variants, answer_ids, chunk, prefix)
    for number, logprobs in run:
        scored[number] = logprobs.numpy()
        if progress is not None:
            progress("documents", len(scored), len(variants))
    return [scored[number] for number in range(len(variants))]


def _document_spans(item: Item) -> dict[int, Any]:
    return {span.document: span for span in item.encoded.spans if span.kind == "document" and span.document is not None}


def _chosen(item: Item, documents: Sequence[int] | None) -> list[int]:
    """The documents that are meant, checked."""
    known = sorted(_document_spans(item))
    if not known:
        raise InputError("the prompt has no documents; give it some, or name spans in Prompt.from_text")
    if documents is None:
        return known
    for index in documents:
        if isinstance(index, bool) or index not in known:
            raise InputError(f"document {index!r} is not in the prompt; its documents are 0 to {known[-1]}")
    return [int(index) for index in documents]


def _segments(item: Item, index: int, with_markers: bool) -> list[tuple[int, int]]:
    kinds = ("document", "marker") if with_markers else ("document",)
    spans = [span for span in item.encoded.spans if span.document == index and span.kind in kinds]
    segments = sorted(segment for span in spans for segment in span.segments)
    if segments and segments[-1][1] >= item.encoded.n_tokens:
        label = document_label(index, _document_spans(item)[index].name)
        raise InputError(
            f"{label} holds the prompt's last token, whose own row predicts the answer, so it cannot be hidden from "
            "it; end the prompt with other text, or name spans that stop before its end"
        )
    return segments


def _hiding(
    item: Item,
    answer_ids: tuple[int, ...],
    segments: Sequence[tuple[int, int]],
    hidden_from: HiddenFrom,
    layers: Sequence[int] | None,
) -> Variant:
    last = item.encoded.n_tokens - 1
    first_row = last if hidden_from == "answer" else 0
    n_shared = min([last, *(max(stop, first_row) for _, stop in segments)])
    hidden = Hidden(tuple(segments), first_row, None if layers is None else tuple(layers)) if segments else None
    return Variant(_fed(item, answer_ids), n_shared, hidden)
