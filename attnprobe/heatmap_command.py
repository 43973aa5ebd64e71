"""Heatmap pages of a saved run, or of the prompts of a file: measured one by one, each page written at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnprobe.errors import InputError
from attnprobe.measure_folder import AnswerSource, check_answers
from attnprobe.prompt import Prompt
from attnprobe.report.heatmap import write_heatmap
from attnprobe.report.own_files import check_page
from attnprobe.run import Run
from attnprobe.run_folder import run_name
from attnprobe.summary import Selection, check_selection
from attnprobe.terminal import count, size, work_bar

EXTRAS = ("top", "columns", "keys")
Heads = Sequence[tuple[int, int]] | None


@dataclass(frozen=True)
class Page:
    """A page that was written."""

    prompt: str
    path: Path
    n_bytes: int
    n_tokens: int

    def to_dict(self) -> dict[str, Any]:
        """Everything in JSON's terms."""
        return {"prompt": self.prompt, "page": str(self.path), "bytes": self.n_bytes, "tokens": self.n_tokens}

    def line(self) -> str:
        """One line for people."""
        return f"{self.path}  {count(self.n_tokens, 'token')}, {size(self.n_bytes)}"


def heatmap_of_run(file: Path, out: Path, heads: Heads) -> Page:
    """The page of a saved run; ``out`` is the page, or a folder where it gets the run file's name."""
    target = _prepared(out, file.name)
    run = Run.load(file)
    try:
        return _written(run, run.prompt_id or file.stem, target, heads)
    except InputError as error:
        raise InputError(f"{file}: {error}") from error


def heatmaps_of_prompts(
    file: Path,
    model: str,
    out: Path,
    *,
    prompt: str | None,
    heads: Heads,
    answers: AnswerSource,
    reading: Mapping[str, Any],
    loading: Mapping[str, Any],
    quiet: bool,
    **options: Any,
) -> list[Page]:
    """Measure prompts and write a page of each.

    Parameters
    ----------
    file
        Prompt file.
    model
        As for :func:`attnprobe.load`.
    out
        The page, where there is one prompt; or a folder.
    prompt
        Id or number of the only prompt to show; None: all.
    heads
        As for :func:`attnprobe.report.heatmap.write_heatmap`.
    answers
        ``generate``, or force those of the ``file``.
    reading, loading, options
        Arguments of ``read_prompts``, ``load`` and ``measure``.

    Raises
    ------
    InputError, CaptureError
        Before the weights are loaded, where the file, a prompt, ``heads`` or ``out`` cannot be used, or a prompt does
        not fit the model; then as ``measure``.
    """
    from attnprobe.readers import read_prompts

    chosen = _chosen(list(read_prompts(file, **reading)), prompt, file)
    if answers == "file":
        check_answers([one for _, one in chosen])
    if len(chosen) > 1 and _is_page(out):
        raise InputError(f"{out} is one page, but there are {len(chosen)} prompts; give a folder, or one --prompt")
    targets = [_prepared(out, run_name(number, _id(number, one))) for number, one in chosen]

    from attnprobe.measuring import measure
    from attnprobe.models import load

    _check_prompts(chosen, model, answers, heads, loading, options)
    lm = load(model, progress=not quiet, **loading)
    pages = []
    for (number, one), target in zip(chosen, targets, strict=True):
        id = _id(number, one)
        with work_bar(f"measuring {id}", None, quiet):
            run = measure(lm, one, answer=one.answer if answers == "file" else None, extras=EXTRAS, **options)
        pages.append(_written(run, id, target, heads))
    return pages


def _check_prompts(
    chosen: Sequence[tuple[int, Prompt]],
    model: str,
    answers: AnswerSource,
    heads: Heads,
    loading: Mapping[str, Any],
    options: Mapping[str, Any],
) -> None:
    """What config and tokenizer can tell: that every prompt fits, and that the model has the heads."""
    from attnprobe.blueprint import blueprint
    from attnprobe.measuring import options_of, prepare

    lm = blueprint(model, **loading).lm
    if heads is not None:
        check_selection(lm, Selection("share", None, list(heads)), keep_rows=True)
    settings = options_of({**options, "extras": EXTRAS})
    for number, one in chosen:
        prepare(lm, number, one, one.answer if answers == "file" else None, settings)


def _is_page(out: Path) -> bool:
    return out.suffix.lower() == ".html"


def _prepared(out: Path, run_file: str) -> Path:
    """Where a page goes, in a folder by the name that its run's file has; once it is known to be possible."""
    target = out if _is_page(out) else out / Path(run_file).with_suffix(".html").name
    check_page(target)
    return target


def _chosen(prompts: list[Prompt], wanted: str | None, file: Path) -> list[tuple[int, Prompt]]:
    numbered = list(enumerate(prompts))
    if wanted is None:
        return numbered
    by_id = [(number, prompt) for number, prompt in numbered if prompt.id == wanted]
    if by_id:
        return by_id[:1]
    if wanted.isdecimal() and int(wanted) < len(prompts):
        return [numbered[int(wanted)]]
    known = ", ".join(f'"{_id(number, prompt)}"' for number, prompt in numbered[:5])
    more = f" and {len(prompts) - 5} more" if len(prompts) > 5 else ""
    raise InputError(f'--prompt is "{wanted}", but {file} has {known}{more}; give one of these, or a number from 0')


def _id(number: int, prompt: Prompt) -> str:
    return str(number) if prompt.id is None else prompt.id


def _written(run: Run, id: str, target: Path, heads: Heads) -> Page:
    path = write_heatmap(run, target, heads)
    return Page(id, path, path.stat().st_size, len(run.token_ids))
