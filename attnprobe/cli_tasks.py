"""The commands ``attnprobe needle``, ``niah`` and ``filler``: is the answer worse where the model looks less?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from attnprobe.cli_options import (
    AttnImplementation,
    BeyondWindow,
    DeviceMap,
    Dtype,
    Json,
    Layout,
    Lengths,
    Limit,
    Markers,
    Quiet,
    Revision,
    Rope,
    Template,
    TrustRemoteCode,
    depth_parts,
    listed_names,
    listed_numbers,
    prompt_lengths,
)
from attnprobe.cli_output import reported
from attnprobe.errors import InputError

Models = Annotated[
    list[str] | None, typer.Option("--model", "-m", help="Alias, hub id, folder, or .gguf file; may be repeated.")
]
Out = Annotated[Path, typer.Option(help="Folder for every finished cell and the results; a second call resumes.")]
Items = Annotated[
    Path | None, typer.Option(help="File of needles: id, wordings, question, answer, foil. [default: built in]")
]
Only = Annotated[str, typer.Option(help="Take only the needles with these ids, e.g. ferry,museum. [default: all]")]
Trials = Annotated[int, typer.Option(min=1, help="Draws of each item: of distractors or filler, and the wording.")]
Seed = Annotated[int, typer.Option(min=0, help="Draws all that is random.")]
NoBaselines = Annotated[
    bool, typer.Option("--no-baselines", help="Do not ask without any text, and with the evidence alone.")
]
LooseFiller = Annotated[
    bool, typer.Option("--loose-filler", help="Note what looks like an answer in the filler, and do not refuse it.")
]
Reply = Annotated[int, typer.Option("--max-new-tokens", min=0, help="Longest reply, tokens; 0: no replies.")]
Endpoint = Annotated[
    str | None, typer.Option("--endpoint", metavar="URL", help="Observe a model on a server, e.g. http://host:8000/v1.")
]
EndpointModel = Annotated[str | None, typer.Option(metavar="NAME", help="The model's name on the server.")]
KeyEnv = Annotated[
    str | None, typer.Option(metavar="VARIABLE", help="Environment variable that holds the server's key.")
]
Tokenizer = Annotated[
    str | None, typer.Option(metavar="MODEL", help="With --endpoint: the model whose tokens are counted.")
]
PerMinute = Annotated[float | None, typer.Option(help="With --endpoint: most requests a minute. [default: any]")]
RetryFailed = Annotated[bool, typer.Option("--retry-failed", help="Measure cells again that failed.")]

_KINDS = "prose (built in), same_domain, repeated, shuffled; file:PATH, repeated:PATH, shuffled:PATH."


def needle(
    out: Out,
    model: Models = None,
    prompts: Annotated[
        Path | None,
        typer.Option(help="Questions of a file instead of needles: the document with the answer is what moves."),
    ] = None,
    items: Items = None,
    only: Only = "",
    limit: Limit = None,
    n_documents: Annotated[int, typer.Option(min=1, help="Documents of a prompt.")] = 10,
    positions: Annotated[str | None, typer.Option(help="Places of the needle, e.g. 0,4-5,9. [default: all]")] = None,
    other_topics: Annotated[
        bool, typer.Option("--other-topics", help="Take other items' distractors where an item has too few.")
    ] = False,
    keep_order: Annotated[
        bool, typer.Option("--keep-order", help="With --prompts: do not shuffle the other documents.")
    ] = False,
    trials: Trials = 1,
    seed: Seed = 0,
    no_baselines: NoBaselines = False,
    max_new_tokens: Reply = 32,
    layout: Layout = "question_last",
    markers: Annotated[
        Literal["xml", "numbered", "none"] | None,
        typer.Option(help="What is written around documents. [default: xml; with --prompts: numbered]"),
    ] = None,
    template: Template = "auto",
    endpoint: Endpoint = None,
    endpoint_model: EndpointModel = None,
    key_env: KeyEnv = None,
    tokenizer: Tokenizer = None,
    per_minute: PerMinute = None,
    beyond_window: BeyondWindow = False,
    dtype: Dtype = None,
    device_map: DeviceMap = None,
    attn_implementation: AttnImplementation = None,
    rope: Rope = None,
    revision: Revision = None,
    trust_remote_code: TrustRemoteCode = False,
    retry_failed: RetryFailed = False,
    json_: Json = False,
    quiet: Quiet = False,
) -> None:
    """Put a fact at every position among distractors, and ask for it.

    Prints accuracy, the right answer's log-probability and the attention that its document gets, by position, and how
    they go together. --prompts takes questions from a file of Lost in the Middle, HotpotQA or SQuAD.
    """
    with reported("n_documents", "other_topics", "limit", "max_new_tokens", kept=out):
        from attnprobe.tasks.cell import Form
        from attnprobe.tasks.task_command import TaskInput, run_task
        from attnprobe.tasks.task_options import TaskOptions

        places = None if positions is None else listed_numbers("--positions", positions)
        choices: dict[str, Any] = {"n_documents": n_documents, "positions": places, "trials": trials, "seed": seed}
        if prompts is None:
            if keep_order:
                raise InputError("--keep-order is of --prompts: the built-in distractors have no order to keep")
            choices["other_topics"] = other_topics
        else:
            if items is not None or only or other_topics:
                raise InputError("--items, --only and --other-topics are of needles; leave them out with --prompts")
            choices["shuffle"] = not keep_order
        if markers is None:
            markers = "xml" if prompts is None else "numbered"
        options = TaskOptions(
            "needle_sweep" if prompts is None else "multi_doc",
            {**choices, "with_baselines": not no_baselines},
            Form(layout, markers, template),
            source=items if prompts is None else prompts,
            only=listed_names("--only", only) or None,
            limit=limit,
            max_new_tokens=max_new_tokens,
            beyond_window=beyond_window,
        )
        server = _endpoint(endpoint, endpoint_model, key_env, tokenizer, per_minute, max_new_tokens)
        loading = _loading(dtype, device_map, attn_implementation, rope, revision, trust_remote_code)
        given = TaskInput(tuple(model or ()), loading, server, tokenizer)
        _print(run_task(given, options, out, retry_failed=retry_failed, quiet=quiet), json_)


def niah(
    out: Out,
    lengths: Lengths,
    model: Models = None,
    depths: Annotated[str, typer.Option(help="Parts of the filler before the needle, 0 to 1.")] = "0,0.25,0.5,0.75,1",
    mode: Annotated[
        Literal["single", "multi_key", "multi_value", "conflicting"],
        typer.Option(help="One needle; several, one or all of them asked for; or two that contradict each other."),
    ] = "single",
    n_needles: Annotated[int, typer.Option(min=2, help="Needles of multi_key and multi_value.")] = 3,
    filler: Annotated[str, typer.Option(help=_KINDS)] = "prose",
    loose_filler: LooseFiller = False,
    items: Items = None,
    only: Only = "",
    limit: Limit = None,
    trials: Trials = 1,
    seed: Seed = 0,
    no_baselines: NoBaselines = False,
    max_new_tokens: Reply = 32,
    layout: Layout = "question_last",
    markers: Markers = "none",
    template: Template = "auto",
    endpoint: Endpoint = None,
    endpoint_model: EndpointModel = None,
    key_env: KeyEnv = None,
    tokenizer: Tokenizer = None,
    per_minute: PerMinute = None,
    beyond_window: BeyondWindow = False,
    dtype: Dtype = None,
    device_map: DeviceMap = None,
    attn_implementation: AttnImplementation = None,
    rope: Rope = None,
    revision: Revision = None,
    trust_remote_code: TrustRemoteCode = False,
    retry_failed: RetryFailed = False,
    json_: Json = False,
    quiet: Quiet = False,
) -> None:
    """Hide a fact at depths of prompts of exact lengths, and ask for it: the needle in a haystack.

    Prints the matrix of length by depth, and the longest length up to which the middle holds.
    """
    with reported("lengths", "depths", "n_needles", "limit", "max_new_tokens", kept=out):
        from attnprobe.tasks.cell import Form
        from attnprobe.tasks.task_command import TaskInput, run_task
        from attnprobe.tasks.task_options import TaskOptions

        choices = {
            "lengths": prompt_lengths(lengths),
            "depths": depth_parts(depths),
            "mode": mode,
            "n_needles": n_needles,
            "filler": filler,
            "strict_filler": not loose_filler,
            "trials": trials,
            "seed": seed,
            "with_baselines": not no_baselines,
        }
        options = TaskOptions(
            "niah",
            choices,
            Form(layout, markers, template),
            source=items,
            only=listed_names("--only", only) or None,
            limit=limit,
            max_new_tokens=max_new_tokens,
            beyond_window=beyond_window,
        )
        server = _endpoint(endpoint, endpoint_model, key_env, tokenizer, per_minute, max_new_tokens)
        loading = _loading(dtype, device_map, attn_implementation, rope, revision, trust_remote_code)
        given = TaskInput(tuple(model or ()), loading, server, tokenizer)
        _print(run_task(given, options, out, retry_failed=retry_failed, quiet=quiet), json_)


def filler(
    out: Out,
    lengths: Lengths,
    model: Models = None,
    fillers: Annotated[str, typer.Option(help=f"Kinds of filler, any of {_KINDS}")] = "repeated,prose,same_domain",
    placements: Annotated[str, typer.Option(help="Where it stands: after the evidence, before, split.")] = "after",
    loose_filler: LooseFiller = False,
    items: Items = None,
    only: Only = "",
    limit: Limit = None,
    trials: Trials = 1,
    seed: Seed = 0,
    no_baselines: NoBaselines = False,
    max_new_tokens: Reply = 32,
    layout: Layout = "question_last",
    markers: Markers = "none",
    template: Template = "auto",
    endpoint: Endpoint = None,
    endpoint_model: EndpointModel = None,
    key_env: KeyEnv = None,
    tokenizer: Tokenizer = None,
    per_minute: PerMinute = None,
    beyond_window: BeyondWindow = False,
    dtype: Dtype = None,
    device_map: DeviceMap = None,
    attn_implementation: AttnImplementation = None,
    rope: Rope = None,
    revision: Revision = None,
    trust_remote_code: TrustRemoteCode = False,
    retry_failed: RetryFailed = False,
    json_: Json = False,
    quiet: Quiet = False,
) -> None:
    """Keep evidence and question, and let the prompt grow by text without any use.

    Prints what length, other content and content on the same topic cost, and what more tokens cost at each length.
    """
    with reported("lengths", "fillers", "placements", "limit", "max_new_tokens", kept=out):
        from attnprobe.tasks.cell import Form
        from attnprobe.tasks.task_command import TaskInput, run_task
        from attnprobe.tasks.task_options import TaskOptions

        choices = {
            "lengths": prompt_lengths(lengths),
            "fillers": listed_names("--fillers", fillers),
            "placements": listed_names("--placements", placements),
            "strict_filler": not loose_filler,
            "trials": trials,
            "seed": seed,
            "with_baselines": not no_baselines,
        }
        options = TaskOptions(
            "filler_control",
            choices,
            Form(layout, markers, template),
            source=items,
            only=listed_names("--only", only) or None,
            limit=limit,
            max_new_tokens=max_new_tokens,
            beyond_window=beyond_window,
        )
        server = _endpoint(endpoint, endpoint_model, key_env, tokenizer, per_minute, max_new_tokens)
        loading = _loading(dtype, device_map, attn_implementation, rope, revision, trust_remote_code)
        given = TaskInput(tuple(model or ()), loading, server, tokenizer)
        _print(run_task(given, options, out, retry_failed=retry_failed, quiet=quiet), json_)


def _loading(
    dtype: str | None,
    device_map: str | None,
    attn_implementation: str | None,
    rope: str | None,
    revision: str | None,
    trust_remote_code: bool,
) -> dict[str, Any]:
    from attnprobe.grid_processes import own_device

    return {
        "dtype": dtype,
        "device_map": device_map or own_device(),
        "attn_implementation": attn_implementation,
        "rope": rope,
        "revision": revision,
        "trust_remote_code": trust_remote_code,
    }


def _endpoint(
    url: str | None,
    name: str | None,
    key_env: str | None,
    tokenizer: str | None,
    per_minute: float | None,
    max_tokens: int,
) -> Any:
    """The server that is observed, or None."""
    from attnprobe.tasks.endpoint import Endpoint

    if url is None:
        given = {"--endpoint-model": name, "--key-env": key_env, "--tokenizer": tokenizer, "--per-minute": per_minute}
        for option, value in given.items():
            if value is not None:
                raise InputError(
                    f"{option} has no effect without --endpoint; add the server's address, or leave it out"
                )
        return None
    if name is None:
        raise InputError("--endpoint needs --endpoint-model, the model's name on the server")
    return Endpoint(url, name, key_env=key_env, per_minute=per_minute, max_tokens=max(max_tokens, 1))


def _print(results: Any, as_json: bool) -> None:
    """Print what was found; leave with exit status 1 where cells have failed."""
    from attnprobe.tasks.task_command import print_results

    if results is not None and print_results(results, as_json):
        raise typer.Exit(1)
