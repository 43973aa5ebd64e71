"""The order in which cells are measured: prompts that begin alike follow each other.

A measurement goes on from the keys and values of the one before it as far as both prompts begin alike (see
:class:`attnprobe.PrefixCache`). All prompts of one draw that differ only in where the evidence stands, or in how much
filler there is, form a chain: the evidence moves to the front step by step, so that each prompt begins as the one
before it does up to its own evidence. No order of the same prompts shares more, but for depths that fall so close
together that only the built prompts tell which is deeper.
"""

from __future__ import annotations

from collections.abc import Sequence

from attnprobe.grid import Cell
from attnprobe.tasks.cell import CellSpec, Condition, is_reference

_DOCUMENT = 60.0  # tokens of a document; like the next, a guess for the deal over processes and the time left
_REST = 80.0  # tokens of a prompt beside documents or filler


def ordered(specs: Sequence[CellSpec], n_documents: int = 1) -> list[Cell]:
    """Cells for the grid in the order in which they are to be done, each with its spec as ``work``.

    Parameters
    ----------
    specs
        Of one task.
    n_documents
        Documents of a prompt with a position.
    """
    chains: dict[str, list[CellSpec]] = {}
    for spec in specs:
        chains.setdefault(_chain(spec), []).append(spec)
    cells = []
    for name, chain in chains.items():
        before: Condition | None = None
        for spec in sorted(chain, key=lambda spec: _place(spec.condition)):
            fed = _tokens(spec.condition, n_documents) - (0.0 if before is None else _shared(before, spec.condition))
            # What others are compared with comes first, so that a run that was stopped says something.
            cells.append(Cell(spec.key, fed + _REST, spec, int(not is_reference(spec.condition)), name))
            before = spec.condition
    return cells


def _chain(spec: CellSpec) -> str:
    """Names the cells whose prompts begin alike."""
    about = spec.condition
    kind = ("baseline", "filler", "placement")
    return "/".join([spec.item, str(spec.trial), *(f"{name}={about[name]}" for name in kind if name in about)])


def _place(condition: Condition) -> tuple[float, float]:
    """Evidence that stands last first; of the same place, the longest prompt first."""
    return -_before_evidence(condition), -_number(condition, "length")


def _before_evidence(condition: Condition) -> float:
    if "position" in condition:
        return _number(condition, "position") * _DOCUMENT
    return _number(condition, "depth") * max(_number(condition, "length") - _REST, 0.0)


def _tokens(condition: Condition, n_documents: int) -> float:
    return n_documents * _DOCUMENT if "position" in condition else _number(condition, "length")


def _shared(before: Condition, condition: Condition) -> float:
    """Tokens with which two neighbours of a chain begin alike."""
    shorter = min(_number(before, "length"), _number(condition, "length"))
    if "placement" in condition:
        return shorter / 2 if condition["placement"] == "split" else shorter
    if "length" in condition and _before_evidence(before) == _before_evidence(condition):
        return shorter
    return min(_before_evidence(before), _before_evidence(condition))


def _number(condition: Condition, name: str) -> float:
    value = condition.get(name)
    return float(value) if isinstance(value, int | float) else 0.0
