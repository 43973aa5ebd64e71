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
from attnprobe.tasks.cell_notes import depth_notes, needle_notes, trial_notes
from attnprobe.tasks.filler import filler_source
from attnprobe.tasks.filler_control import filler_control
from attnprobe.tasks.items import BUILT_IN, NeedleItem, read_items
from attnprobe.tasks.multi_doc import MultiDoc, multi_doc
from attnprobe.tasks.needle_sweep import needle_sweep
from attnprobe.tasks.niah import niah
from attnprobe.tasks.task_data import TASKS
from attnprobe.terminal import count


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
    _questions: MultiDoc | None = field(init=False, repr=False, compare=False)
    _hashes: Mapping[str, str] = field(init=False, repr=False, compare=False)

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
        # Read once: a command may take hours, and its models are to have the same cells, whose hashes are noted.
        items: tuple[NeedleItem, ...] = ()
        questions: MultiDoc | None = None
        if self.source is not None and self.task == "multi_doc":
            questions = multi_doc(self.source, limit=self.limit, form=self.form, **self.choices)
        else:
            items = read_items(self.source, self.only)[: self.limit]
        object.__setattr__(self, "_items", items)
        object.__setattr__(self, "_questions", questions)
        object.__setattr__(self, "_hashes", self._read_hashes())

    @property
    def is_of_lengths(self) -> bool:
        """Whether the prompts have lengths in tokens, which a tokenizer is needed for."""
        return self.task in ("niah", "filler_control")

    @property
    def n_documents(self) -> int:
        """Documents of a prompt, as far as they stand in its choices; the builders' own number where they do not."""
        return int(self.choices.get("n_documents", 10))

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
            A choice cannot be used; see the builders. A file of filler has changed since these options were made.
        """
        choices: dict[str, Any] = {**self.choices, "form": self.form}
        if self.task == "needle_sweep":
            specs = needle_sweep(self._items, **choices)
            return Listed(specs, (*needle_notes(self._items), *trial_notes(specs)))
        if self.is_of_lengths:
            build = niah if self.task == "niah" else filler_control
            specs = build(self._items, tokenizer=tokenizer, **choices)
            if not self._filler_hash().items() <= self._hashes.items():
                raise InputError(
                    f"a file of the filler ({', '.join(map(str, self._filler_files))}) has changed since the command "
                    "began; start it again, with another folder for the results"
                )
            depths = () if tokenizer is None else depth_notes(specs, tokenizer)
            return Listed(specs, (*needle_notes(self._items), *depths))
        found = self._questions
        assert found is not None
        notes = [*found.warnings, *trial_notes(found.specs)]
        if found.refused:
            more = f"; and {len(found.refused) - 3:,} more" if len(found.refused) > 3 else ""
            notes.append(f"{count(len(found.refused), 'question')} left out: {'; '.join(found.refused[:3])}{more}")
        if thrown := {why: n for why, n in found.rejected.items() if n}:
            reasons = ", ".join(f"{n} {why.replace('_', ' ')}" for why, n in thrown.items())
            notes.append(f"distractors thrown out: {reasons}")
        return Listed(found.specs, tuple(notes))

    def fillers(self) -> list[dict[str, Any]]:
        """What the fillers are, as JSON values."""
        found = []
        for kind in self.filler_kinds:
            if kind != "none":
                sources = [filler_source(kind, item) for item in self._items]
                about = dict.fromkeys(source.about for source in sources)
                found.append({"kind": sources[0].name, "about": "; ".join(about)})
        return found

    def hashes(self) -> dict[str, str]:
        """SHA-256 of the files that the cells are made of as they were read, in hexadecimal."""
        return dict(self._hashes)

    @property
    def _filler_files(self) -> list[Path]:
        return [Path(path).expanduser() for _, _, path in (kind.partition(":") for kind in self.filler_kinds) if path]

    def _filler_hash(self) -> dict[str, str]:
        return {"filler_sha256": _sha256(self._filler_files)} if self._filler_files else {}

    def _read_hashes(self) -> dict[str, str]:
        name = "prompts_sha256" if self.task == "multi_doc" else "items_sha256"
        return {name: _sha256([BUILT_IN if self.source is None else self.source]), **self._filler_hash()}

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
