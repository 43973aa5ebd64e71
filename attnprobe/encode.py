"""Encoding: a rendered prompt becomes token ids and the spans that partition them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from .chat import tokenizer_name
from .document import check_text, quoted
from .errors import InputError
from .pieces import REST, Region
from .render import RenderedPrompt
from .spans import Span, Straddler, assign_tokens, check_partition, token_runs

_EXAMPLES = 5
# How tokenizers write a space in front of, or behind, a token's word.
_SPACE_MARKS = "Ġ▁"


@dataclass(frozen=True)
class EncodedPrompt:
    """A prompt as the model reads it.

    Parameters
    ----------
    text
        The rendered prompt.
    token_ids
        Its token ids, BOS included where the tokenizer or the template writes one.
    offsets
        Half-open character range of ``text`` for each token; empty for a token that the tokenizer added.
    spans
        They partition ``range(n_tokens)``, ordered by first token. Documents without tokens are kept, without
        segments.
    warnings
        What the user should know about the spans.
    answer_prefix, add_special_tokens
        As in `RenderedPrompt`.
    """

    text: str
    token_ids: tuple[int, ...]
    offsets: tuple[tuple[int, int], ...]
    spans: tuple[Span, ...]
    warnings: tuple[str, ...]
    answer_prefix: str
    add_special_tokens: bool = True

    @property
    def n_tokens(self) -> int:
        """Number of tokens."""
        return len(self.token_ids)


class _Tokens(NamedTuple):
    """Ids and character ranges, int64 ``[n]`` each; and whether a second BOS was taken out."""

    ids: np.ndarray
    starts: np.ndarray
    stops: np.ndarray
    doubled_bos: bool


def encode_prompt(rendered: RenderedPrompt, tokenizer: Any, strict: bool) -> EncodedPrompt:
    """Encode a rendered prompt; see `Prompt.encode`."""
    tokens = _tokenize(rendered.text, tokenizer, rendered.add_special_tokens)
    n_tokens = len(tokens.ids)
    if n_tokens == 0:
        raise InputError(f"the tokenizer {tokenizer_name(tokenizer)} makes no token of this prompt; add text to it")
    starts, stops = _full_offsets(tokens, rendered.text, tokenizer)
    regions = rendered.regions
    segments = sorted(
        (start, stop, index) for index, region in enumerate(regions) for start, stop in region.segments if start < stop
    )
    if [start for start, _, _ in segments] + [len(rendered.text)] != [0] + [stop for _, stop, _ in segments]:
        raise RuntimeError("the regions do not tile the rendered prompt")
    bounds = np.array([start for start, _, _ in segments] + [len(rendered.text)], dtype=np.int64)
    owners = np.array([index for _, _, index in segments], dtype=np.int64)
    assigned, straddlers = assign_tokens(starts, stops, bounds, owners, np.array(rendered.joints, dtype=np.int64))

    first_owner, first_has_text = regions[assigned[0]], stops[0] > starts[0]
    sink = len(regions)
    assigned[0] = sink
    straddlers = [item for item in straddlers if item.token != 0]
    spans = _spans(assigned, regions, starts)
    check_partition(spans, n_tokens)

    warnings = list(rendered.warnings)
    if tokens.doubled_bos:
        warnings.append(f"the text begins with {tokenizer.bos_token!r}, which the tokenizer adds too: only one is kept")
    if rendered.add_special_tokens is False and _adds_bos(tokenizer) and tokens.ids[0] != tokenizer.bos_token_id:
        warnings.append(
            f"the chat template writes no {tokenizer.bos_token!r} although the tokenizer adds it to plain text"
        )
    if (
        first_has_text
        and first_owner.kind in ("document", "question", "system", "other")
        and (first_owner.name != REST.name)
    ):
        warnings.append(f"{first_owner.label} loses its first token to the sink")
    warnings += _empty_warnings(spans, regions)
    refused = [
        *_control_warnings(tokens.ids, starts, stops, assigned, rendered, tokenizer),
        *_straddler_warnings(straddlers, tokens.ids, regions, tokenizer),
    ]
    if strict and refused:
        raise InputError(f"{'; '.join(refused)}; change the text or the spans, or leave out strict=True")
    return EncodedPrompt(
        text=rendered.text,
        token_ids=tuple(tokens.ids.tolist()),
        offsets=tuple(zip(starts.tolist(), stops.tolist(), strict=True)),
        spans=spans,
        warnings=tuple(warnings + refused),
        answer_prefix=rendered.answer_prefix,
        add_special_tokens=rendered.add_special_tokens,
    )


def encode_answer(
    encoded: EncodedPrompt, tokenizer: Any, answer: str | Sequence[int]
) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """The token ids of an answer that follows an encoded prompt.

    Parameters
    ----------
    encoded
        The prompt; its ids stay as they are.
    tokenizer
        The one that encoded the prompt.
    answer
        Token ids, taken as they are; or text, of which prompt and answer are encoded together and the prompt's ids
        taken off. Where they are no prefix of the joint ids, the answer is encoded alone, with a warning.

    Returns
    -------
    (tuple of int, tuple of str)
        The answer's token ids, at least one, and warnings.

    Raises
    ------
    InputError
        If the answer is empty, is not valid text, or holds an id that the tokenizer does not have.
    """
    if not isinstance(answer, str):
        return _checked_ids(answer), ()
    check_text(answer, "answer")
    if not answer:
        raise InputError("answer is empty; give at least one token's text, or leave it out to generate")
    joined = answer if answer[0].isspace() else encoded.answer_prefix + answer
    warnings: list[str] = []
    whole = _tokenize(encoded.text + joined, tokenizer, encoded.add_special_tokens).ids.tolist()
    n_prompt = encoded.n_tokens
    if len(whole) > n_prompt and tuple(whole[:n_prompt]) == encoded.token_ids:
        ids = tuple(whole[n_prompt:])
    else:
        ids = tuple(_tokenize(joined, tokenizer, False).ids.tolist())
        warnings.append(
            f"answer {quoted(answer)} merges with the prompt's last token when both are encoded together; it is "
            "encoded alone, as a model that goes on from the prompt's ids would write it"
        )
    if not ids:
        raise InputError(f"answer {quoted(answer)} has no token; give other text")
    control = np.array(sorted(set(ids) & _control_ids(tokenizer)), dtype=np.int64)
    if names := [token for token in tokenizer.convert_ids_to_tokens(control.tolist()) if token in answer]:
        warnings.append(f"the answer holds the control token {', '.join(names)}")
    return ids, tuple(warnings)


def _tokenize(text: str, tokenizer: Any, add_special_tokens: bool) -> _Tokens:
    """Encode ``text``, with at most one BOS and without tokens that the tokenizer adds at the end."""
    if not getattr(tokenizer, "is_fast", False):
        raise InputError(
            f"the tokenizer {tokenizer_name(tokenizer)} ({type(tokenizer).__name__}) gives no character offsets; "
            "load its fast version (AutoTokenizer.from_pretrained(..., use_fast=True))"
        )
    encoding = tokenizer(
        text,
        add_special_tokens=add_special_tokens,
        return_offsets_mapping=True,
        return_attention_mask=False,
        return_token_type_ids=False,
        padding=False,
        truncation=False,
        verbose=False,
    )
    ids = np.array(encoding["input_ids"], dtype=np.int64)
    offsets = np.array(encoding["offset_mapping"], dtype=np.int64).reshape(-1, 2)
    keep = len(ids)
    if add_special_tokens:
        special = set(tokenizer.all_special_ids)
        while keep and offsets[keep - 1, 0] == offsets[keep - 1, 1] == 0 and int(ids[keep - 1]) in special:
            keep -= 1
        # With nothing but added tokens the first one is a BOS, not an end.
        if keep == 0 and len(ids) and int(ids[0]) in (tokenizer.bos_token_id, tokenizer.cls_token_id):
            keep = 1
    bos = tokenizer.bos_token_id
    doubled = bool(
        add_special_tokens
        and bos is not None
        and keep > 1
        and ids[0] == ids[1] == bos
        and offsets[0, 0] == offsets[0, 1]
        and offsets[1, 0] < offsets[1, 1]
    )
    kept = slice(int(doubled), keep)
    return _Tokens(ids[kept], offsets[kept, 0], offsets[kept, 1], doubled)


def _full_offsets(tokens: _Tokens, text: str, tokenizer: Any) -> tuple[np.ndarray, np.ndarray]:
    """Character ranges with the spaces that some tokenizers trim from them.

    A byte-level post-processor with ``trim_offsets`` takes the spaces around a token's word out of its offsets, and
    leaves a token of spaces an empty range behind them (before them at the start of the text). They are put back where
    the token's own text says so.
    Tokens without characters stand at the end of what came before them.
    """
    starts, stops = tokens.starts, tokens.stops
    if not starts.size:
        return starts, stops
    unique, inverse = np.unique(tokens.ids, return_inverse=True)
    words = [word or "" for word in tokenizer.convert_ids_to_tokens(unique.tolist())]
    leading = np.array([len(word) - len(word.lstrip(_SPACE_MARKS)) for word in words])[inverse]
    trailing = np.array([len(word) - len(word.rstrip(_SPACE_MARKS)) for word in words])[inverse]
    points = np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)
    spaces = np.concatenate(([0], np.cumsum(points == ord(" "))))

    before = np.concatenate(([0], np.maximum.accumulate(stops)[:-1]))
    extra = np.clip(np.minimum(leading, starts - before), 0, None)
    extra[spaces[starts] - spaces[starts - extra] != extra] = 0
    starts = starts - extra
    after = np.concatenate((starts[1:], [len(text)]))
    extra = np.clip(np.minimum(trailing, after - stops), 0, None)
    no_word = starts == stops
    no_word[0] = False
    extra[no_word | (spaces[stops + extra] - spaces[stops] != extra)] = 0
    stops = stops + extra

    empty = starts == stops
    before = np.concatenate(([0], np.maximum.accumulate(stops)[:-1]))
    starts = np.where(empty, np.maximum(starts, before), starts)
    return starts, np.where(empty, starts, stops)


def _spans(assigned: np.ndarray, regions: tuple[Region, ...], starts: np.ndarray) -> tuple[Span, ...]:
    """Spans by first token; a document without tokens stands before the first token behind its place."""
    segments: dict[int, list[tuple[int, int]]] = {}
    for owner, start, stop in token_runs(assigned):
        segments.setdefault(owner, []).append((start, stop))
    reached = np.maximum.accumulate(starts)
    placed = [(0, -1, Span("sink", "sink", None, tuple(segments[len(regions)])))]
    for index, region in enumerate(regions):
        own = tuple(segments.get(index, ()))
        if own or region.kind == "document":
            at = own[0][0] if own else int(np.searchsorted(reached, region.segments[0][0]))
            placed.append((at, index, Span(region.kind, region.name, region.document, own)))
    return tuple(span for _, _, span in sorted(placed, key=lambda item: item[:2]))


def _empty_warnings(spans: tuple[Span, ...], regions: tuple[Region, ...]) -> list[str]:
    having = {span.name for span in spans if span.segments}
    warnings = []
    for region in regions:
        if region.name in having or region.kind not in ("document", "question"):
            continue
        start, stop = region.segments[0]
        why = "has no token of its own" if start < stop else "is empty"
        warnings.append(f"{region.label} {why}: its span has no tokens")
    return warnings


def _control_warnings(
    ids: np.ndarray,
    starts: np.ndarray,
    stops: np.ndarray,
    assigned: np.ndarray,
    rendered: RenderedPrompt,
    tokenizer: Any,
) -> list[str]:
    """A warning for every control token in a text of the user's, except a raw text, which is taken as it is."""
    if rendered.raw:
        return []
    found: dict[tuple[int, str], int] = {}
    special = np.flatnonzero(np.isin(ids, list(_control_ids(tokenizer)))).tolist()
    for token, name in zip(special, tokenizer.convert_ids_to_tokens(ids[special].tolist()), strict=True):
        owner = int(assigned[token])
        if owner == len(rendered.regions) or rendered.regions[owner].kind in ("template", "marker"):
            continue
        # The unknown token is special too, and stands for other characters: only one that was written out counts.
        if rendered.text[starts[token] : stops[token]].strip() == name.strip():
            found[owner, name] = found.get((owner, name), 0) + 1
    return [
        f"{rendered.regions[owner].label} holds the control token {name}"
        + (f" ({count} times)" if count > 1 else "")
        + ", which the model reads as one"
        for (owner, name), count in found.items()
    ]


def _control_ids(tokenizer: Any) -> set[int]:
    added = getattr(tokenizer, "added_tokens_decoder", {})
    return {*tokenizer.all_special_ids, *(index for index, token in added.items() if token.special)}


def _straddler_warnings(
    straddlers: list[Straddler], ids: np.ndarray, regions: tuple[Region, ...], tokenizer: Any
) -> list[str]:
    if not straddlers:
        return []
    examples = [
        f"token {item.token} {quoted(tokenizer.decode([int(ids[item.token])]))} "
        f"(of {quoted(regions[item.kept].name)}, not {quoted(regions[item.lost].name)})"
        for item in straddlers[:_EXAMPLES]
    ]
    more = len(straddlers) - len(examples)
    return [
        f"{len(straddlers)} token{'s straddle' if len(straddlers) > 1 else ' straddles'} two spans and "
        f"belong{'' if len(straddlers) > 1 else 's'} to the one with most of the characters: "
        + "; ".join(examples)
        + (f"; and {more} more" if more else "")
    ]


def _adds_bos(tokenizer: Any) -> bool:
    bos = tokenizer.bos_token_id
    return bos is not None and bos in tokenizer("", add_special_tokens=True)["input_ids"][:1]


def _checked_ids(answer: Sequence[int]) -> tuple[int, ...]:
    listed = answer.tolist() if hasattr(answer, "tolist") else answer  # arrays and tensors of ids
    if not isinstance(listed, (list, tuple)):
        raise InputError(f"answer is {answer!r}; give text, or a sequence of token ids")
    ids = tuple(listed)
    if not ids:
        raise InputError("answer has no token ids; give at least one, or leave it out to generate")
    for index, value in enumerate(ids):
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
            raise InputError(f"answer id {index} is {value!r}; token ids are whole numbers")
        if value < 0:
            raise InputError(f"answer id {index} is {value}; token ids are not negative")
    return tuple(int(value) for value in ids)
