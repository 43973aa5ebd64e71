"""Which task is run, and under which choices: everything that its cells are made of."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from attnprobe.arguments import whole_number
from attnprobe.errors import InputError
from attnprobe.tasks.cell import CellSpec, Form
from attnprobe.tasks.filler import filler_source
from attnprobe.tasks.filler_control import filler_control
from attnprobe.tasks.items import BUILT_IN, NeedleItem, read_items
from attnprobe.tasks.multi_doc import multi_doc
from attnprobe.tasks.needle_sweep import needle_sweep
from attnprobe.tasks.niah import niah
from attnprobe.tasks.task_data import TASKS
from attnprobe.terminal import named


@dataclass(frozen=True)
class Listed:
    """The cells of a task, in the order of its results, and what a reader of results must know of them."""

    specs: tuple[CellSpec, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class TaskOptions:
    """Choices that change what a task finds.

    Parameters
    ----------
    task
        One of :data:`attnprobe.tasks.task_data.TASKS`.
    choices
        Further arguments of the task's builder, such as ``n_documents`` or ``lengths``; what is left out is as the
        builder has it.
    form
        How prompts are written.
    source
        The file of the needles, or of the questions of ``multi_doc``. None: the built-in needles.
    only
        Take only these needles, in this order.
    limit
        Take so many needles, or questions, only.
    max_new_tokens
        Longest reply, tokens; 0 for no reply and no scores.
    beyond_window
        Allow prompts longer than the model was made for.
    """

    task: str
    choices: Mapping[str, Any]
    form: Form
    source: Path | None = None
    only: tuple[str, ...] | None = None
    limit: int | None = None
    max_new_tokens: int = 32
    beyond_window: bool = False
    _items: tuple[NeedleItem, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.task not in TASKS:
            raise InputError(f"the task {self.task!r} is unknown; choose one of {', '.join(TASKS)}")
        whole_number("max_new_tokens", self.max_new_tokens, 0)
        if self.limit is not None:
            whole_number("limit", self.limit, 1)
        if self.only is not None and not self.only:
            raise InputError("only names no needle; name some, or leave it out for all")
        if self.task == "multi_doc" and self.source is None:
            raise InputError("multi_doc takes its questions from a file; give one")
        items = () if self.task == "multi_doc" else read_items(self.source, self.only)[: self.limit]
        object.__setattr__(self, "_items", items)

    @property
    def is_of_lengths(self) -> bool:
        """Whether the prompts have lengths in tokens, which a tokenizer is needed for."""
        return self.task in ("niah", "filler_control")

    @property
    def filler_kinds(self) -> tuple[str, ...]:
        """The kinds of filler, as they were given."""
        if self.task == "niah":
            return (self.choices.get("filler", "prose"),)
        return tuple(self.choices.get("fillers", ("prose",))) if self.task == "filler_control" else ()

    def listed(self, tokenizer: Any) -> Listed:
        """The cells for a tokenizer, which may be None where prompts have no lengths in tokens.

        Raises
        ------
        InputError
            A choice cannot be used; see the builders.
        """
        choices: dict[str, Any] = {**self.choices, "form": self.form}
        if self.task == "needle_sweep":
            return Listed(needle_sweep(self._items, **choices))
        if self.task == "niah":
            return Listed(niah(self._items, tokenizer=tokenizer, **choices))
        if self.task == "filler_control":
            return Listed(filler_control(self._items, tokenizer=tokenizer, **choices))
        assert self.source is not None
        found = multi_doc(self.source, limit=self.limit, **choices)
        notes = [*found.warnings]
        if found.refused:
            notes.append(f"{len(found.refused)} questions left out: {named(found.refused, 3)}")
        if thrown := {why: n for why, n in found.rejected.items() if n}:
            reasons = ", ".join(f"{n} {why.replace('_', ' ')}" for why, n in thrown.items())
            notes.append(f"distractors thrown out: {reasons}")
        return Listed(found.specs, tuple(notes))

    def fillers(self) -> list[dict[str, Any]]:
        """What the fillers are, as JSON values."""
        sources = [filler_source(kind, self._items[0]) for kind in self.filler_kinds if kind != "none"]
        return [{"kind": source.name, "about": source.about} for source in sources]

    def hashes(self) -> dict[str, str]:
        """SHA-256 of the files that the cells are made of, in hexadecimal."""
        files = [Path(path).expanduser() for _, _, path in (kind.partition(":") for kind in self.filler_kinds) if path]
        name = "prompts_sha256" if self.task == "multi_doc" else "items_sha256"
        found = {name: _sha256([BUILT_IN if self.source is None else self.source])}
        return found | ({"filler_sha256": _sha256(files)} if files else {})

    def to_dict(self) -> dict[str, Any]:
        """As JSON values; files by their names alone, as :meth:`hashes` says what they hold."""
        choices = {name: _plain(value) for name, value in self.choices.items()}
        for name in ("filler", "fillers"):
            if name in choices:
                kinds = [source["kind"] for source in self.fillers()]
                choices[name] = kinds[0] if name == "filler" else kinds
        return {
            "task": self.task,
            **choices,
            "form": asdict(self.form),
            "source": None if self.source is None else self.source.name,
            "only": None if self.only is None else list(self.only),
            "limit": self.limit,
            "max_new_tokens": self.max_new_tokens,
            "beyond_window": self.beyond_window,
        }


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _sha256(files: Sequence[Path]) -> str:
    digest = hashlib.sha256()
    for file in files:
        try:
            digest.update(hashlib.sha256(file.read_bytes()).digest())
        except OSError as error:
            raise InputError(f"{file} cannot be read: {error.strerror or error}") from error
    return digest.hexdigest()
