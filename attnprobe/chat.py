"""Rendering through a chat template, with every character of the messages followed to its place."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from .document import quoted
from .errors import InputError
from .pieces import TEMPLATE, Piece, Region

Message = tuple[str, str]

# White space that templates strip from contents, as (how, what).
_STRIPS: tuple[tuple[str, str | None], ...] = (
    ("strip", None),
    ("lstrip", None),
    ("rstrip", None),
    ("strip", "\n"),
    ("lstrip", "\n"),
    ("rstrip", "\n"),
)


def has_chat_template(tokenizer: Any) -> bool:
    """Whether the tokenizer has a chat template."""
    return bool(getattr(tokenizer, "chat_template", None))


def tokenizer_name(tokenizer: Any) -> str:
    """What messages call the tokenizer: where it was loaded from, or its class."""
    return str(getattr(tokenizer, "name_or_path", "")) or type(tokenizer).__name__


def render_chat(messages: Sequence[tuple[str, Sequence[Piece]]], tokenizer: Any) -> tuple[list[Piece], tuple[str, ...]]:
    """Render messages with the tokenizer's chat template.

    The contents are found without searching for them: the template is rendered with a unique word in place of each
    content, the contents are put where the words are, and the result must equal the direct rendering.

    Parameters
    ----------
    messages
        Roles and the pieces of their contents.
    tokenizer
        With a chat template.

    Returns
    -------
    (list of Piece, tuple of str)
        The rendered text's pieces, scaffold included; and warnings about text that the template strips.

    Raises
    ------
    InputError
        If the template refuses a message, drops it, writes it twice, or rewrites it other than by stripping white
        space at its ends.
    """
    contents = ["".join(piece.text for piece in pieces) for _, pieces in messages]
    roles = [role for role, _ in messages]
    words = _unused_words(len(contents), "\n".join([*contents, str(tokenizer.chat_template)]))
    scaffold = _apply(tokenizer, list(zip(roles, words, strict=True)))
    direct = _apply(tokenizer, list(zip(roles, contents, strict=True)))
    for index, (role, word) in enumerate(zip(roles, words, strict=True)):
        if (count := scaffold.count(word)) != 1:
            what = "leaves out" if count == 0 else f"writes {count} times"
            raise InputError(
                f'the chat template of {tokenizer_name(tokenizer)} {what} message {index} ("{role}"), so its tokens '
                'cannot be told apart; use another template, or Prompt(..., template="plain")'
            )
    order = sorted(range(len(words)), key=lambda index: scaffold.index(words[index]))
    literals = []
    at = 0
    for index in order:
        found = scaffold.index(words[index])
        literals.append(scaffold[at:found])
        at = found + len(words[index])
    literals.append(scaffold[at:])

    out: list[Piece] = []
    warnings: list[str] = []
    at = 0
    for number, index in enumerate(order):
        head, tail = literals[number], literals[number + 1]
        start = at + len(head)
        kept = next(
            (
                (low, high)
                for low, high in _kept_ranges(contents[index])
                if direct.startswith(head, at)
                and direct.startswith(contents[index][low:high], start)
                and direct.startswith(tail, start + high - low)
            ),
            None,
        )
        if kept is None:
            raise _rewritten(tokenizer, index, roles[index], head + contents[index] + tail, direct[at:])
        out.append(Piece(head, TEMPLATE))
        pieces, notes = _clip(messages[index][1], *kept)
        out.extend(pieces)
        warnings.extend(notes)
        at = start + kept[1] - kept[0]
    out.append(Piece(literals[-1], TEMPLATE))
    if at + len(literals[-1]) != len(direct):
        last = order[-1]
        raise _rewritten(tokenizer, last, roles[last], literals[-1], direct[at:])
    return out, tuple(warnings)


def _apply(tokenizer: Any, messages: list[Message]) -> str:
    try:
        return _rendered(tokenizer, messages)
    except Exception as error:  # a template runs code of its own and may raise anything
        name = tokenizer_name(tokenizer)
        without = [message for message in messages if message[0] != "system"]
        if without and len(without) < len(messages) and _renders(tokenizer, without):
            raise InputError(
                f"the chat template of {name} refuses the system message ({error}); fold the system text into the "
                'question or use template="plain"'
            ) from error
        raise InputError(
            f"the chat template of {name} refuses the roles {[role for role, _ in messages]}: {error}; "
            'change the messages, or use Prompt(..., template="plain")'
        ) from error


def _renders(tokenizer: Any, messages: list[Message]) -> bool:
    try:
        _rendered(tokenizer, messages)
    except Exception:
        return False
    return True


def _rendered(tokenizer: Any, messages: list[Message]) -> str:
    turns = [{"role": role, "content": content} for role, content in messages]
    return str(tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True))


def _unused_words(count: int, text: str) -> list[str]:
    """Words of letters and digits, none of which is in ``text`` or in another one."""
    salt = 0
    while (stem := f"attnprobe{salt}content") in text:
        salt += 1
    return [f"{stem}{index:08d}end" for index in range(count)]


def _kept_ranges(content: str) -> Iterator[tuple[int, int]]:
    """The ranges of ``content`` that a template may leave of it: all, then what strips leave."""
    yield 0, len(content)
    for how, characters in _STRIPS:
        left = content if how == "rstrip" else content.lstrip(characters)
        kept = left if how == "lstrip" else left.rstrip(characters)
        low = len(content) - len(left)
        yield low, low + len(kept)


def _clip(pieces: Sequence[Piece], low: int, high: int) -> tuple[list[Piece], list[str]]:
    """The pieces within characters ``[low, high)`` of their joined text, and a note for each that loses some."""
    kept: list[Piece] = []
    notes: list[str] = []
    at = 0
    for piece in pieces:
        stop = at + len(piece.text)
        start = min(max(low - at, 0), len(piece.text))
        end = max(min(high, stop) - at, start)
        if (lost := len(piece.text) - (end - start)) and not piece.joint:
            side = "start" if start else "end"
            notes.append(
                f"the chat template strips white space ({lost} characters) from the {side} of "
                f"{Region(*piece.owner).label}"
            )
        kept.append(piece._replace(text=piece.text[start:end]))
        at = stop
    return kept, notes


def _rewritten(tokenizer: Any, index: int, role: str, expected: str, found: str) -> InputError:
    same = next(
        (i for i, (a, b) in enumerate(zip(expected, found, strict=False)) if a != b),
        min(len(expected), len(found)),
    )
    return InputError(
        f'the chat template of {tokenizer_name(tokenizer)} changes message {index} ("{role}"): it writes '
        f"{quoted(found[same : same + 30])} where {quoted(expected[same : same + 30])} should follow "
        f'{quoted(expected[max(0, same - 30) : same])}; change the text, or use Prompt(..., template="plain")'
    )
