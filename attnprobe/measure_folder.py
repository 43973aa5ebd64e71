"""Measure a list of prompts into a folder, one run file each; a second call goes on where the first one ended."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from attnprobe.errors import InputError
from attnprobe.measuring import measure, measure_many
from attnprobe.prompt import Prompt, encode_answer
from attnprobe.run import Run
from attnprobe.run_folder import (
    CURVE,
    RUNS,
    finished_runs,
    opened_folder,
    run_name,
    settings_hash,
    stored_run,
    write_manifest,
    write_text,
)
from attnprobe.run_settings import run_settings
from attnprobe.summary import Group, PromptResult, Selection, check_selection, curve_csv, groups, prompt_result
from attnprobe.terminal import count, duration, say, work_bar

if TYPE_CHECKING:
    from attnprobe.models import LanguageModel

AnswerSource = Literal["generate", "file"]

DECODE_WEIGHT = 40
"""Work of one decoding step in prefilled tokens, for the time left: about the ratio on a CPU."""

_RUNS_HELD = 16  # prompts measured between two releases of their runs
_MAX_NEW_TOKENS = (measure.__kwdefaults__ or {})["max_new_tokens"]


@dataclass(frozen=True, eq=False)
class FolderResult:
    """What a folder holds now: a result for each prompt, in the file's order, and the mean curves."""

    out: Path
    results: tuple[PromptResult, ...]
    means: tuple[Group, ...]
    settings_sha256: str
    n_measured: int
    seconds: float


@dataclass(frozen=True)
class _Task:
    """A prompt to measure; its encoding is not kept, which thousands of long prompts could not afford."""

    number: int
    prompt: Prompt
    answer: str | None
    n_prompt: int
    n_answer: int

    @property
    def work(self) -> int:
        """Tokens to prefill, and decoding steps in such tokens."""
        return self.n_prompt + (self.n_answer if self.answer is not None else DECODE_WEIGHT * self.n_answer)


def measure_folder(
    lm: LanguageModel,
    prompts: Sequence[Prompt],
    out: Path,
    *,
    answers: AnswerSource = "generate",
    selection: Selection | None = None,
    batch_size: int = 1,
    force: bool = False,
    settings: Mapping[str, Any] | None = None,
    about: Mapping[str, Any] | None = None,
    quiet: bool = True,
    **options: Any,
) -> FolderResult:
    """Measure prompts and keep each run as soon as it is there; prompts whose run is there already are skipped.

    A run counts as there when its file loads, passes every check of a run, holds the same token ids and spans, and
    was made under the same settings. A damaged file is measured again, and said. Nothing whole is overwritten
    unless ``force``.

    Parameters
    ----------
    lm
        The model.
    prompts
        What to ask; ids are unique.
    out
        The folder; made if need be.
    answers
        ``generate`` them, or force those of the ``file`` (``prompt.answer``).
    selection
        How curves are made of runs. Not a setting: the same runs can be read in many ways.
    batch_size
        Prompts run together.
    force
        Measure everything again.
    settings
        More settings under which runs belong together, as JSON values.
    about
        More to write into the manifest, as JSON values.
    quiet
        Say nothing and show no progress.
    options
        As for ``measure``.

    Raises
    ------
    InputError, CaptureError
        As ``measure_many``; when prompts lack an answer to force; when the folder cannot be used (see
        ``opened_folder``) or holds runs of other settings or prompts.
    """
    selection = selection or Selection()
    keep_rows = bool(options.get("keep_rows", True))
    check_selection(lm, selection, keep_rows)
    if answers == "file":
        check_answers(prompts)
    asked = run_settings(lm, answers, batch_size, options) | dict(settings or {})
    sha256 = settings_hash(asked)
    begin = time.monotonic()
    with opened_folder(out, asked, about or {}, force):
        results, tasks = _sort_out(lm, prompts, out, answers, sha256, selection, quiet, options)
        if results:
            say(f"{count(len(results), 'prompt')} measured before, {len(tasks)} to go", quiet)

        def keep(number: int, run: Run) -> None:
            stamped = replace(run, manifest={**run.manifest, "settings_sha256": sha256, "number": number})
            stamped.save(_path(out, number, prompts[number]))
            results[number] = _result(stamped, number, prompts[number], selection, is_reused=False)

        _measure_tasks(lm, tasks, keep, batch_size, quiet, options)
        ordered = tuple(results[number] for number in range(len(prompts)))
        means = tuple(groups(ordered))
        write_text(out / CURVE, curve_csv(ordered, means))
        runs = [{"number": result.number, "id": result.id, "file": result.file} for result in ordered]
        write_manifest(out, asked, about or {}, runs)
        _mention_others(out, ordered, quiet)
    return FolderResult(out, ordered, means, sha256, len(tasks), time.monotonic() - begin)


def _sort_out(
    lm: LanguageModel,
    prompts: Sequence[Prompt],
    out: Path,
    answers: AnswerSource,
    sha256: str,
    selection: Selection,
    quiet: bool,
    options: Mapping[str, Any],
) -> tuple[dict[int, PromptResult], list[_Task]]:
    """Results of the prompts that are measured already, and the others, longest first; every prompt is checked."""
    results: dict[int, PromptResult] = {}
    tasks = []
    strict = bool(options.get("strict", False))
    with work_bar("reading", len(prompts), quiet) as advance:
        for number, prompt in enumerate(prompts):
            answer = prompt.answer if answers == "file" else None
            try:
                encoded = prompt.encode(lm.tokenizer, strict=strict)
                ids = None if answer is None else encode_answer(encoded, lm.tokenizer, answer)[0]
            except InputError as error:
                raise InputError(f'prompt "{_id(number, prompt)}": {error}') from error
            run, fault = stored_run(_path(out, number, prompt), encoded, ids, sha256)
            if fault is not None:
                say(f"measuring again, as the run file is no longer whole: {fault}", quiet)
            if run is not None:
                results[number] = _result(run, number, prompt, selection, is_reused=True)
            else:
                n_answer = len(ids) if ids is not None else int(options.get("max_new_tokens", _MAX_NEW_TOKENS))
                tasks.append(_Task(number, prompt, answer, encoded.n_tokens, n_answer))
            advance(number + 1, f"{number + 1}/{len(prompts)}")
    # So that a prompt too long for the model or the memory shows at once.
    return results, sorted(tasks, key=lambda task: -(task.n_prompt + task.n_answer))


def _measure_tasks(
    lm: LanguageModel,
    tasks: Sequence[_Task],
    keep: Callable[[int, Run], None],
    batch_size: int,
    quiet: bool,
    options: Mapping[str, Any],
) -> None:
    if not tasks:
        return
    if batch_size < 1:
        raise InputError(f"batch_size is {batch_size}; it must be at least 1")
    begin, done, work = time.monotonic(), 0, 0
    say(f"measuring {count(len(tasks), 'prompt')}, {sum(task.n_prompt for task in tasks):,} tokens", quiet)
    with work_bar("measuring", sum(task.work for task in tasks), quiet) as advance:

        def on_run(group: Sequence[_Task], place: int, run: Run) -> None:
            nonlocal done, work
            keep(group[place].number, run)
            done += 1
            work += group[place].work
            advance(work, f"{done}/{len(tasks)}")

        def on_tokens(stage: str, n_done: int, n_total: int) -> None:
            begun = sum(_work_done(task, stage, n_done / n_total) for task in tasks[done : done + batch_size])
            advance(work + begun, f"{done}/{len(tasks)}, {stage} {n_done:,}/{n_total:,}")

        # In groups, as measure_many holds the runs of one call in memory.
        size = batch_size * max(1, _RUNS_HELD // batch_size)
        for start in range(0, len(tasks), size):
            group = tasks[start : start + size]
            measure_many(
                lm,
                [task.prompt for task in group],
                answers=[task.answer for task in group],
                batch_size=batch_size,
                on_run=partial(on_run, group),
                progress=on_tokens,
                **options,
            )
    say(f"measured {count(len(tasks), 'prompt')} in {duration(time.monotonic() - begin)}", quiet)


def _work_done(task: _Task, stage: str, fraction: float) -> float:
    if task.answer is not None or stage == "prefill":
        return fraction * (task.work if task.answer is not None else task.n_prompt)
    return task.n_prompt + fraction * (task.work - task.n_prompt)


def _result(run: Run, number: int, prompt: Prompt, selection: Selection, is_reused: bool) -> PromptResult:
    id = _id(number, prompt)
    return prompt_result(run, number, id, f"{RUNS}/{run_name(number, id)}", selection, is_reused)


def _path(out: Path, number: int, prompt: Prompt) -> Path:
    return out / RUNS / run_name(number, _id(number, prompt))


def _id(number: int, prompt: Prompt) -> str:
    return str(number) if prompt.id is None else prompt.id


def check_answers(prompts: Sequence[Prompt]) -> None:
    """Raise InputError unless every prompt has an answer to force."""
    without = [f'"{_id(number, prompt)}"' for number, prompt in enumerate(prompts) if not prompt.answer]
    if without:
        more = f" and {len(without) - 5} more" if len(without) > 5 else ""
        raise InputError(
            f"{len(without)} of {count(len(prompts), 'prompt')} have no answer to force: {', '.join(without[:5])}"
            f'{more}; give each an "answer", or let the model generate (--answers generate)'
        )


def _mention_others(out: Path, results: Sequence[PromptResult], quiet: bool) -> None:
    ours = {Path(result.file).name for result in results}
    others = [name for name in finished_runs(out) if name not in ours]
    if others:
        say(
            f"{out / RUNS} also holds {count(len(others), 'run')} of prompts that are not in this file, e.g. "
            f"{others[0]}; left out of {CURVE}",
            quiet,
        )
