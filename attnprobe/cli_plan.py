"""The command ``attnprobe plan``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from attnprobe.cli_input import given_file
from attnprobe.cli_options import (
    AttnImplementation,
    BatchSize,
    DeviceMap,
    Dtype,
    Format,
    Json,
    Layout,
    Limit,
    Markers,
    NoRows,
    PrefillChunk,
    Quiet,
    Revision,
    Rope,
    Template,
    TrustRemoteCode,
    chunk_tokens,
    kept_bytes,
    listed_names,
)
from attnprobe.cli_output import print_json, print_lines, reported
from attnprobe.errors import InputError
from attnprobe.terminal import say, work_bar

if TYPE_CHECKING:
    from attnprobe.blueprint import Blueprint
    from attnprobe.plan_study import StudyPlan


def plan(
    ctx: typer.Context,
    prompts: Annotated[
        str | None,
        typer.Argument(
            metavar="[PROMPTS|CONFIG]",
            help="Prompt file, or - for standard input; or the config of a task or of RoPE scalings (.yaml).",
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", "-m", help="Alias (smollm2), hub id, folder, or .gguf file.")
    ] = None,
    power: Annotated[
        float | None,
        typer.Option(
            metavar="RATIO",
            help="Say how many questions a study needs to measure such a head/middle ratio; needs --half-width.",
        ),
    ] = None,
    half_width: Annotated[
        float | None, typer.Option(help="With --power: half the width that its 95 % interval may have, e.g. 0.5.")
    ] = None,
    sd_log: Annotated[
        float | None,
        typer.Option(help="With --power: how much the log ratio varies between questions, from a pilot study."),
    ] = None,
    study: Annotated[
        bool, typer.Option("--study", help="Plan attnprobe study, not measure; the options up to --keep-runs are its.")
    ] = False,
    design: Annotated[
        Literal["williams", "cyclic", "insertion"] | None, typer.Option(help="[default: williams]")
    ] = None,
    bases: Annotated[int | None, typer.Option(min=1, help="Base orders of each question. [default: 1]")] = None,
    variants: Annotated[
        str | None, typer.Option(help="null, preamble, dummy, or one change, or none. [default: null,preamble]")
    ] = None,
    extras: Annotated[str | None, typer.Option(help="distance, values, effects. [default: none]")] = None,
    n_documents: Annotated[int | None, typer.Option(min=2, help="Fill questions up to so many documents.")] = None,
    gold_only: Annotated[bool, typer.Option("--gold-only", help="Keep the marked evidence only.")] = False,
    length_matched: Annotated[bool, typer.Option("--length-matched", help="Fill shorter documents up.")] = False,
    keep_runs: Annotated[str | None, typer.Option(help="Whole run files to keep, as a size. [default: 2 GB]")] = None,
    answers: Annotated[
        Literal["generate", "file"] | None,
        typer.Option(
            "--answers",
            "--answer",
            help='Let the model write its answer, or force the "answer" of each prompt of the file. '
            "[default: generate; with --study: file]",
        ),
    ] = None,
    max_new_tokens: Annotated[
        int | None,
        typer.Option(min=1, help="Longest answer to generate, tokens. [default: 64; with --study: 32]"),
    ] = None,
    format: Format = "auto",
    limit: Limit = None,
    layout: Layout = "question_last",
    markers: Markers = "xml",
    template: Template = "auto",
    batch_size: BatchSize = 1,
    prefill_chunk: PrefillChunk = "auto",
    no_rows: NoRows = False,
    dtype: Dtype = None,
    device_map: DeviceMap = None,
    attn_implementation: AttnImplementation = None,
    rope: Rope = None,
    revision: Revision = None,
    trust_remote_code: TrustRemoteCode = False,
    json_: Json = False,
    quiet: Quiet = False,
) -> None:
    """Say what a measurement, a study, a task or a comparison of RoPE scalings takes; loads no weights.

    Tokens are exact (of a study: nearly); memory and time are estimates. Exit status 1 where a prompt does not fit the
    model's window, but for RoPE scalings, which are there to go beyond it. With --power, which needs no prompts and no
    model: how many questions a study should have.
    """
    with reported("n_documents", "gold_only"):
        if power is None and (half_width is not None or sd_log is not None):
            raise InputError("--half-width and --sd-log have no effect without --power; add it")
        if power is not None:
            if prompts is not None or model is not None:
                what = "PROMPTS" if prompts is not None else "--model"
                raise InputError(f"{what} has no effect with --power, which plans without a model; leave it out")
            _print_power(power, half_width, sd_log, json_)
            return
        if prompts is not None and prompts.endswith((".yaml", ".yml")):
            _plan_config(ctx, Path(prompts), json_, quiet)
            return
        if prompts is None or model is None:
            raise InputError("give PROMPTS and --model, or --power with --half-width")
        of_study: dict[str, Any] = {
            "design": design,
            "bases": bases,
            "variants": variants,
            "extras": extras,
            "n_documents": n_documents,
            "gold_only": gold_only or None,
            "length_matched": length_matched or None,
            "keep_runs": keep_runs,
        }
        of_measure = {"batch_size": batch_size != 1, "prefill_chunk": prefill_chunk != "auto", "no_rows": no_rows}
        given = [name for name, value in of_study.items() if value is not None]
        if given and not study:
            raise InputError(f"{_option(given[0])} has no effect without --study; add it")
        if study and any(of_measure.values()):
            name = next(name for name, is_given in of_measure.items() if is_given)
            raise InputError(f"{_option(name)} has no effect with --study; leave it out")
        form: dict[str, Any] = {"layout": layout, "markers": markers, "template": template}
        common: dict[str, Any] = {"format": format, "limit": limit, **form}
        loading = {
            "dtype": dtype,
            "device_map": device_map,
            "attn_implementation": attn_implementation,
            "rope": rope,
            "revision": revision,
            "trust_remote_code": trust_remote_code,
        }
        if study:
            if max_new_tokens is not None:
                of_study["max_new_tokens"] = max_new_tokens
            planned = _plan_study(prompts, model, of_study, answers == "generate", common, form, loading, quiet)
            from attnprobe.plan_text import study_plan_lines

            if json_:
                print_json(planned.to_dict())
            else:
                print_lines(study_plan_lines(planned))
            if planned.too_long:
                raise typer.Exit(1)
            return
        chunk = chunk_tokens(prefill_chunk)
        from attnprobe.readers import read_prompts

        with given_file(prompts) as path:
            read = list(read_prompts(path, **common))
        from attnprobe.plan import plan as make_plan
        from attnprobe.plan_text import plan_lines

        one = make_plan(
            _blueprint(model, quiet, loading),
            read,
            answers=answers or "generate",
            max_new_tokens=max_new_tokens or 64,
            batch_size=batch_size,
            prefill_chunk=chunk,
            keep_rows=not no_rows,
            quiet=quiet,
        )
        if json_:
            print_json(one.to_dict())
        else:
            print_lines(plan_lines(one))
        if one.too_long:
            raise typer.Exit(1)


def _plan_study(
    prompts: str,
    model: str,
    given: dict[str, Any],
    generates: bool,
    common: dict[str, Any],
    form: dict[str, str],
    loading: dict[str, Any],
    quiet: bool,
) -> StudyPlan:
    from attnprobe.distractors import study_records
    from attnprobe.plan_study import plan_study
    from attnprobe.rotating import KEEP_RUNS, questions_of
    from attnprobe.study_options import StudyOptions, check_changes

    chosen = {name: value for name, value in given.items() if value is not None}
    reading = {name: chosen.pop(name) for name in ("n_documents", "gold_only") if name in chosen}
    kept = kept_bytes(chosen.pop("keep_runs")) if "keep_runs" in chosen else KEEP_RUNS
    for name in ("variants", "extras"):
        if name in chosen:
            chosen[name] = listed_names(_option(name), chosen[name])
    options = StudyOptions(**chosen)
    check_changes(options.variants, form)
    with given_file(prompts) as path:
        read = study_records(path, seed=options.seed, **reading, **common)
    for warning in (*read.warnings, *read.refused):
        say(f"note: {warning}", quiet)
    forced = None if generates else [record.prompt.answer for record in read.records]
    questions = questions_of(read.records, forced)
    return plan_study(_blueprint(model, quiet, loading), questions, options, kept, quiet)


def _plan_config(ctx: typer.Context, path: Path, as_json: bool, quiet: bool) -> None:
    """Plan what a config says, on its models; it says all that the other options could."""
    from attnprobe.grid_config import load_config
    from attnprobe.plan_text import scalings_plan_lines, task_plan_lines
    from attnprobe.rope_plan import plan_scalings
    from attnprobe.tasks.items import read_items
    from attnprobe.tasks.task_data import TASKS
    from attnprobe.tasks.task_plan import plan_task

    for name in ctx.params:
        source = ctx.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE" and name not in ("prompts", "json_", "quiet"):
            raise InputError(f"{_option(name)} has no effect with a config, which says it itself; leave it out")
    config: Any = load_config(path)
    if config.kind == "rope":
        items = read_items(config.items)
        compared = plan_scalings(
            config.model, config.scalings, config.options(), items, loading=config.loading, quiet=quiet
        )
        if as_json:
            print_json([compared.to_dict()])
        else:
            print_lines(scalings_plan_lines(compared))
        return
    if config.kind not in TASKS:
        remedy = "; plan it with PROMPTS, --model and --study" if config.kind == "study" else ""
        raise InputError(f"{path} is of kind {config.kind}, not one of {', '.join((*TASKS, 'rope'))}{remedy}")
    if config.endpoint is not None:
        raise InputError(f"{path} observes a server, whose time cannot be told")
    options = config.options()
    plans = [plan_task(_blueprint(name, quiet, config.loading), options, quiet) for name in config.models]
    if as_json:
        print_json([one.to_dict() for one in plans])
    else:
        print_lines([line for one in plans for line in task_plan_lines(one)])
    if any(one.too_long for one in plans):
        raise typer.Exit(1)


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _blueprint(model: str, quiet: bool, loading: dict[str, Any]) -> Blueprint:
    from attnprobe.blueprint import blueprint

    with work_bar("reading the model's config", None, quiet):
        return blueprint(model, **loading)


def _print_power(ratio: float, half_width: float | None, sd_log: float | None, as_json: bool) -> None:
    from attnprobe.plan_text import power_lines
    from attnprobe.power import SD_LOG, planned_questions

    if half_width is None:
        raise InputError("--power needs --half-width, half the width that its 95 % interval may have, e.g. 0.5")
    planned = planned_questions(ratio, half_width, SD_LOG if sd_log is None else sd_log)
    if as_json:
        print_json(planned.to_dict())
    else:
        print_lines(power_lines(planned, is_pilot=sd_log is not None))
