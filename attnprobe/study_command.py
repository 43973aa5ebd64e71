"""Run a study from the command line or a config: read the prompts, study each model, write tables and pictures."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnprobe.csv_text import table_csv
from attnprobe.distractors import study_records
from attnprobe.errors import InputError
from attnprobe.report.study_figures import save_study_figures
from attnprobe.rotating import (
    KEEP_RUNS,
    check_extras,
    fitted_questions,
    questions_of,
    study_of_model,
)
from attnprobe.several_models import check_each, in_turn
from attnprobe.study import Study
from attnprobe.study_data import StudyData
from attnprobe.study_folder import SUMMARY, TABLE, StudyFolder, folder_name
from attnprobe.study_options import StudyOptions
from attnprobe.terminal import bytes_of, say, speaks_unicode

if TYPE_CHECKING:
    from attnprobe.models import LanguageModel
    from attnprobe.study_config import StudyConfig


@dataclass(frozen=True)
class StudyInput:
    """What a study reads, and on which models.

    Parameters
    ----------
    models
        Aliases, hub ids, folders or files.
    prompts
        A prompt file of any of the known formats.
    answers
        ``file``: force the file's answers; ``generate``: the model's own most frequent ones.
    n_documents
        Fill questions with fewer documents up with distractors from the file's other questions; None leaves them.
    gold_only
        Take only the documents that the file marks as evidence, and fill up from there.
    limit
        Questions to take; None for all.
    form
        Layout, markers and template of the prompts.
    loading
        Arguments of :func:`attnprobe.load`.
    """

    models: tuple[str, ...]
    prompts: Path
    answers: str = "file"
    n_documents: int | None = None
    gold_only: bool = False
    limit: int | None = None
    form: Mapping[str, Any] | None = None
    loading: Mapping[str, Any] | None = None


def run_study(
    given: StudyInput,
    options: StudyOptions,
    out: Path,
    *,
    keep_runs: int = KEEP_RUNS,
    retry_failed: bool = False,
    quiet: bool = False,
) -> Study | None:
    """Study every model, one loaded at a time, and write summary, table and pictures beside the cells.

    Each model's results are written as soon as it is done.

    Returns
    -------
    Study or None
        None where other processes are still measuring: the last one writes the results.

    Raises
    ------
    InputError
        Prompts, answers or options that do not fit; a model that cannot be studied, before any is measured as far as
        that shows without its weights; a folder of another study.
    """
    read = study_records(
        given.prompts,
        given.n_documents,
        limit=given.limit,
        seed=options.seed,
        gold_only=given.gold_only,
        **(given.form or {}),
    )
    records = read.records
    for warning in (*read.warnings, *read.refused[:5]):
        say(f"note: {warning}", quiet)
    if len(read.refused) > 5:
        say(f"note: {len(read.refused) - 5} more questions left out", quiet)
    forced: Sequence[str | None] | None = None
    if given.answers == "file":
        forced = [record.prompt.answer for record in records]
        without = [record.prompt.id for record in records if not record.prompt.answer]
        if without:
            raise InputError(
                f"{len(without)} of {len(records)} questions of {given.prompts} have no answer to force, e.g. "
                f"{without[0]!r}; give each one, or let the model write its own (--answers generate)"
            )
    questions = questions_of(records, forced)
    loading = given.loading or {}
    check_each(given.models, loading, lambda shape: fitted_questions(shape, questions, options))

    def measure(lm: LanguageModel) -> StudyData | None:
        fitted = fitted_questions(lm, questions, options)
        check_extras(lm, fitted[0], options, out)
        return study_of_model(lm, fitted, options, out, keep_runs, retry_failed, quiet)

    def finish(data: StudyData) -> StudyData:
        write_results(Study({data.model: data}, options), data.model, out / folder_name(data.model), quiet)
        return data

    def ended(path: Path) -> StudyData | None:
        folder = StudyFolder.at(path)
        return folder.load() if folder.is_complete else None

    done = in_turn(given.models, loading, out, measure, finish, ended, quiet)
    if done is None:
        return None
    return Study(done, options)


def write_results(study: Study, model: str, folder: Path, quiet: bool = True) -> None:
    """Write the summary, the table and the pictures of one model's study."""
    own = StudyFolder.at(folder)
    own.write(SUMMARY, json.dumps(study.to_dict(model), indent=1, allow_nan=False) + "\n")
    own.write(TABLE, table_csv(study.table(model)))
    pictures = save_study_figures(study, folder, model)
    say(f"{SUMMARY}, {TABLE}, {', '.join(path.name for path in pictures)} in {folder}", quiet)


def run_study_config(config: StudyConfig, *, quiet: bool, retry_failed: bool, as_json: bool) -> int:
    """Run a study as its config says, and print what it found; gives the exit status."""
    variants = [
        *(["null"] if config.null else []),
        *(["preamble"] if config.preamble is not None else []),
        *config.variants,
    ]
    options: dict[str, Any] = {} if config.preamble is None else {"preamble": config.preamble}
    study = run_study(
        StudyInput(
            models=tuple(config.models),
            prompts=config.prompts,
            answers=config.answers,
            n_documents=config.n_documents,
            gold_only=config.gold_only,
            limit=config.limit,
            form={"layout": config.layout, "markers": config.markers, "template": config.template},
            loading=config.loading,
        ),
        StudyOptions(
            design=config.design,
            bases=config.bases,
            seed=config.seed,
            variants=tuple(variants),
            length_matched=config.length_matched,
            extras=tuple(config.extras),
            rows=config.rows,
            max_new_tokens=config.max_new_tokens,
            beyond_window=config.beyond_window,
            **options,
        ),
        config.out,
        keep_runs=bytes_of(config.keep_runs),
        retry_failed=retry_failed,
        quiet=quiet,
    )
    return 0 if study is None else print_study(study, as_json)


def print_study(study: Study, as_json: bool) -> int:
    """Print the findings on standard output; gives the exit status: 1 where questions were left out."""
    from attnprobe.cli_output import print_json, print_lines
    from attnprobe.study_text import study_lines

    if as_json:
        print_json({name: study.to_dict(name) for name in study.models})
    else:
        for name in study.models:
            print_lines([*study_lines(study, name, speaks_unicode()), ""])
    return int(any(study.of(name).incomplete for name in study.models))
