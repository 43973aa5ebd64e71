"""A judge for a task's replies: which are sampled, and what it says of the rule that scored them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnprobe.arguments import whole_number
from attnprobe.errors import InputError
from attnprobe.tasks.endpoint import Endpoint
from attnprobe.tasks.judge import Agreement, JudgeCase, agreement, judge, sampled
from attnprobe.tasks.outcome import Outcome
from attnprobe.tasks.task_data import TaskData
from attnprobe.tasks.task_options import TaskOptions
from attnprobe.terminal import count, percent, wrapped

VERDICTS = "judge.jsonl"


@dataclass(frozen=True)
class Judging:
    """Who judges, and how many replies; ``seed`` draws them."""

    endpoint: Endpoint
    sample: int = 50
    seed: int = 0


@dataclass(frozen=True)
class Judged:
    """How a judge's verdicts on sampled replies agree with the lenient scores."""

    model: str
    sampled: tuple[Outcome, ...]
    agreement: Agreement

    @property
    def n_items(self) -> int:
        """Items that the replies are of."""
        return len({outcome.item for outcome in self.sampled})

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        found = self.agreement
        return {
            "model": self.model,
            "replies": len(self.sampled),
            "items": self.n_items,
            "agreement": found.rate.to_dict(),
            "kappa": found.kappa.to_dict(),
            "unclear": found.unclear,
            "unreadable": found.unreadable,
            "disagreements": [
                {
                    "item": self.sampled[one.case].item,
                    "condition": dict(self.sampled[one.case].condition),
                    "reply": self.sampled[one.case].facts["reply"],
                    "lenient": one.lenient,
                    "judge": one.label,
                }
                for one in found.disagreements
            ],
        }

    def lines(self) -> list[str]:
        """In words."""
        rate = self.agreement.rate
        of = f"{count(len(self.sampled), 'reply', 'replies')} of {count(self.n_items, 'item')}"
        if rate.estimate is None:
            return wrapped(f"Judge {self.model}: {of}, and no verdict to compare with the rule ({rate.reason}).")
        within = "" if rate.low is None else f" [{percent(rate.low, 0)}, {percent(rate.high, 0)}]"
        why = f" (no interval: {rate.reason})" if rate.low is None else ""
        return wrapped(
            f"Judge {self.model}: agrees with the lenient rule on {percent(rate.estimate, 0)}{within} of {of}{why}."
        )


def check_judging(judging: Judging | None, options: TaskOptions) -> None:
    """Raise ``InputError`` where a judge is asked for and there is nothing that it could compare."""
    if judging is None:
        return
    whole_number("sample", judging.sample, 1)
    if options.choices.get("mode") == "multi_value":
        raise InputError("a judge compares replies with one answer, and multi_value asks for several; leave judge out")
    if options.max_new_tokens == 0:
        raise InputError("a judge compares replies, and max_new_tokens is 0, so there are none; raise it")


def judged(data: TaskData, judging: Judging, folder: Path, quiet: bool) -> Judged:
    """Have a sample of the replies judged, in which items take turns.

    Raises
    ------
    InputError
        As :func:`attnprobe.tasks.endpoint.ask`; verdicts that have arrived are kept in ``judge.jsonl``.
    """
    asked = {item["item"]: item for item in data.about["items"]}
    scored = [outcome for outcome in data.outcomes if outcome.lenient is not None]
    places = sampled([outcome.item for outcome in scored], judging.sample, judging.seed)
    chosen = tuple(scored[place] for place in places)
    cases = [
        JudgeCase(one.item, asked[one.item]["question"], tuple(asked[one.item]["accepted"]), one.facts["reply"])
        for one in chosen
    ]
    verdicts = judge(judging.endpoint, cases, folder / VERDICTS, quiet)
    return Judged(judging.endpoint.model, chosen, agreement(cases, verdicts))
