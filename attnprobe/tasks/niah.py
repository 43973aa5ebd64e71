"""Needle in a haystack: facts at depths of a filler, in prompts of exact lengths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from attnprobe.arguments import whole_number
from attnprobe.document import Document, check_choice, quoted
from attnprobe.errors import InputError
from attnprobe.tasks.cell import Asked, Built, CellSpec, Form, closed_book, draw_seed, oracle, unique
from attnprobe.tasks.filler import FillerSource, filler_source
from attnprobe.tasks.haystack import Frame, Placed, in_filler
from attnprobe.tasks.items import NeedleItem, read_items

Mode = Literal["single", "multi_key", "multi_value", "conflicting"]


def niah(
    items: Sequence[NeedleItem] | None = None,
    *,
    lengths: Sequence[int],
    depths: Sequence[float],
    mode: Mode = "single",
    n_needles: int = 3,
    filler: str = "prose",
    strict_filler: bool = True,
    trials: int = 1,
    seed: int = 0,
    form: Form | None = None,
    with_baselines: bool = True,
    tokenizer: Any = None,
) -> tuple[CellSpec, ...]:
    """Cells with needles in filler, for every length and depth; conditions are ``{"length": n, "depth": d}``.

    The prompt is one text: filler, needle, filler, as paragraphs (documents without markers). The depth is the part of
    the filler's tokens before the needle, at the closest end of a sentence; ``facts["depths"]`` has the real ones, of
    all needles. A trial draws the filler, the same for all lengths and depths, and takes the next wording.

    The gold answer depends on the mode:

    - ``single``: the fact of the only needle.
    - ``multi_key``: the question asks about one subject; further needles state other values of other subjects, at
      depths drawn once a trial. Gold is the value of the subject asked for; ``needles`` is its needle alone.
    - ``multi_value``: further needles state other values of the same subject, and the question asks for all. The
      ``depth`` is the first value's. Gold is all of them, in one order wherever they stand; a reply is right if it
      holds each of ``facts["all_of"]`` (``facts["scoring"]`` is ``all``). There is no foil.
    - ``conflicting``: a second needle states the foil, at the mirrored depth (1 - depth; in the middle the gold one is
      first in even trials). Neither is true: gold is the answer of the item, and ``facts["gold_first"]`` says whether
      it is read first. What is measured is which of two statements wins, by place: compare gold answer and foil.

    Parameters
    ----------
    items
        None for the built-in ones.
    lengths
        Tokens of the whole prompt.
    depths
        0 (before all filler) to 1 (behind it).
    mode, n_needles
        As above; ``n_needles`` counts all needles of ``multi_key`` and ``multi_value``.
    filler, strict_filler
        Its kind (:func:`attnprobe.tasks.filler.filler_source`), and how it is checked
        (:func:`attnprobe.tasks.filler_check.check_filler`).
    trials, seed
        Draws an item, and what they depend on.
    form
        How prompts are written; None for no markers and the question last.
    with_baselines
        Add the cells without text and with the evidence alone.
    tokenizer
        If given, lengths below the shortest possible prompt are refused here and not by the cell that has them.

    Raises
    ------
    InputError
        An argument makes no sense, an item lacks what the mode needs, or a length is too short.
    """
    check_choice(mode, Mode, "mode")
    form = form or Form()
    for depth in depths:
        if isinstance(depth, bool) or not 0 <= depth <= 1:
            raise InputError(f"depth {depth!r} is not between 0 and 1, the part of the filler before the needle")
    task = "niah" if mode == "single" else f"niah_{mode}"
    extra = {"single": 0, "conflicting": 1}.get(mode, whole_number("n_needles", n_needles, 2) - 1)
    specs: list[CellSpec] = []
    for item in read_items() if items is None else items:
        source = filler_source(filler, item)
        asked = _asked(item, mode, extra)
        for trial in range(whole_number("trials", trials, 1)):
            recipe = NiahPrompt(item, asked, mode, extra, 0, 0.0, trial, seed, source, strict_filler, form)
            frame = recipe.frame
            for length in lengths:
                whole_number("length", length, 1)
                if tokenizer is not None:
                    frame.require(length, tokenizer)
            specs += [
                CellSpec(task, asked, {"length": length, "depth": depth}, trial, make)
                for length in lengths
                for depth in depths
                for make in [replace(recipe, length=length, depth=float(depth))]
            ]
            if with_baselines and trial == 0:
                evidence = frame.placed if mode == "multi_value" else frame.placed[:1]
                documents = [Document(text.text) for text in evidence]
                specs += [closed_book(task, asked, form), oracle(task, asked, documents, form)]
    return unique(specs)


def _asked(item: NeedleItem, mode: Mode, extra: int) -> Asked:
    """The question and gold answer of a mode."""
    needed = {"multi_key": ("subject", "other_subjects", "other_answers"), "multi_value": ("question_all",)}
    for name in needed.get(mode, ()):
        if not getattr(item, name):
            raise InputError(f"item {quoted(item.id)} has no {name}, which {mode} needs; add it, or leave the item out")
    available = len(item.other_answers)
    if mode == "multi_key":
        available = min(available, len(item.other_subjects))
    if mode in ("multi_key", "multi_value") and available < extra:
        raise InputError(
            f"item {quoted(item.id)} allows {available + 1} needles of {mode}, not {extra + 1}; lower n_needles or "
            "give the item more other_answers and other_subjects"
        )
    if mode != "multi_value" or item.question_all is None:
        return item.asked
    values = (item.answer, *item.other_answers[:extra])
    gold = f"{', '.join(values[:-1])} and {values[-1]}"
    return Asked(item.id, item.question_all, gold, (gold,))


@dataclass(frozen=True)
class NiahPrompt:
    """The recipe of one cell; fields as the arguments of `niah`, ``extra`` needles beside the first."""

    item: NeedleItem
    asked: Asked
    mode: Mode
    extra: int
    length: int
    depth: float
    trial: int
    seed: int
    source: FillerSource
    strict: bool
    form: Form

    @property
    def frame(self) -> Frame:
        """The needles at their depths, the first one being the gold one."""
        item, trial = self.item, self.trial
        placed = [Placed(item.wording(trial), self.depth, "needle")]
        drawn = np.random.default_rng([*draw_seed(self.seed, item.id, trial), 1]).random(self.extra)
        for number in range(self.extra):
            if self.mode == "conflicting":
                mirrored = 1 - self.depth
                if mirrored == self.depth and trial % 2:
                    mirrored = float(np.nextafter(mirrored, 0))
                placed.append(Placed(item.stating(trial, item.foil), mirrored, "foil"))
                continue
            subject = item.other_subjects[number] if self.mode == "multi_key" else None
            text = item.stating(trial, item.other_answers[number], subject)
            placed.append(Placed(text, float(drawn[number]), f"needle_{number + 2}"))
        return Frame(tuple(placed), self.asked.question, self.form)

    def __call__(self, tokenizer: Any) -> Built:
        """Build the prompt."""
        item = self.item
        wrong = (item.foil, *item.other_answers[: self.extra if self.mode != "conflicting" else 0])
        seed = draw_seed(self.seed, item.id, self.trial)
        found = in_filler(
            self.frame,
            self.source,
            self.length,
            tokenizer,
            seed=seed,
            answers=(*item.answers, *wrong),
            strict=self.strict,
        )
        facts = {
            **self.form.facts,
            **found.facts,
            "mode": self.mode,
            "wording": self.trial % len(item.wordings),
            "real_depth": found.facts["depths"][0],
        }
        needles = found.places[:1]
        if self.mode == "multi_value":
            needles = tuple(sorted(found.places))
            facts |= {"scoring": "all", "all_of": (item.answer, *item.other_answers[: self.extra])}
        elif self.mode == "multi_key":
            facts["other_needles"] = tuple(sorted(found.places[1:]))
        elif self.mode == "conflicting":
            facts |= {"foil_needle": found.places[1], "gold_first": found.places[0] < found.places[1]}
        return Built(found.prompt, needles, facts)
