"""The commands ``attnprobe needle``, ``niah`` and ``filler``: is the answer worse where the model looks less?"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_type_hints

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
    RetryFailed,
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

if TYPE_CHECKING:
    from attnprobe.tasks.endpoint import Endpoint as Server

Models = Annotated[
    list[str] | None, typer.Option("--model", "-m", help="Alias, hub id, folder, or .gguf file; may be repeated.")
]
Out = Annotated[Path, typer.Option(help="Folder for every finished cell and the results; a second call resumes.")]
Items = Annotated[
    Path | None,
    typer.Option(
        help="File of needles, one JSON object a line: id, wordings (texts that state the fact), question, answer, "
        "foil; distractors (texts on the topic) for needle, terms for same_domain. [default: built in]"
    ),
]
Only = Annotated[
    str | None, typer.Option(help="Take only the needles with these ids, e.g. ferry,museum. [default: all]")
]
Trials = Annotated[int, typer.Option(min=1, help="Draws of each item: of distractors or filler, and the wording.")]
Seed = Annotated[int, typer.Option(min=0, help="Draws all that is random.")]
NoBaselines = Annotated[
    bool, typer.Option("--no-baselines", help="Do not ask without any text, and with the evidence alone.")
]
NoStrictFiller = Annotated[
    bool, typer.Option("--no-strict-filler", help="Note filler of an answer's form (a number, a date), not refuse it.")
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

_KINDS = "prose (built in), same_domain, repeated, shuffled; file:PATH, repeated:PATH, shuffled:PATH."


@dataclass(frozen=True)
class TaskArguments:
    """The options that every task has."""

    out: Out
    model: Models = None
    items: Items = None
    only: Only = None
    limit: Limit = None
    trials: Trials = 1
    seed: Seed = 0
    no_baselines: NoBaselines = False
    max_new_tokens: Reply = 32
    layout: Layout = "question_last"
    template: Template = "auto"
    endpoint: Endpoint = None
    endpoint_model: EndpointModel = None
    key_env: KeyEnv = None
    tokenizer: Tokenizer = None
    per_minute: PerMinute = None
    beyond_window: BeyondWindow = False
    dtype: Dtype = None
    device_map: DeviceMap = None
    attn_implementation: AttnImplementation = None
    rope: Rope = None
    revision: Revision = None
    trust_remote_code: TrustRemoteCode = False
    retry_failed: RetryFailed = False
    json_: Json = False
    quiet: Quiet = False

    def run(self, task: str, choices: Mapping[str, Any], markers: Any, prompts: Path | None = None) -> None:
        """Do a task with these and its own choices, and print what was found; exit status 1 where cells have failed."""
        from attnprobe.several_models import LOADING
        from attnprobe.tasks.cell import Form
        from attnprobe.tasks.task_command import print_results, run_task
        from attnprobe.tasks.task_input import TaskInput
        from attnprobe.tasks.task_options import TaskOptions

        options = TaskOptions(
            task,
            {**choices, "trials": self.trials, "seed": self.seed, "with_baselines": not self.no_baselines},
            Form(self.layout, markers, self.template),
            source=self.items if prompts is None else prompts,
            only=None if self.only is None else listed_names("--only", self.only),
            limit=self.limit,
            max_new_tokens=self.max_new_tokens,
            beyond_window=self.beyond_window,
        )
        loading = {name: getattr(self, name) for name in LOADING}
        given = TaskInput(tuple(self.model or ()), loading, self._server(), self.tokenizer)
        found = run_task(given, options, self.out, retry_failed=self.retry_failed, quiet=self.quiet)
        if found is not None and print_results(found, self.json_):
            raise typer.Exit(1)

    def _server(self) -> Server | None:
        """The server that is observed; options without effect are refused."""
        from attnprobe.several_models import LOADING
        from attnprobe.tasks.endpoint import Endpoint

        if self.endpoint is None:
            self._refuse(
                ("endpoint_model", "key_env", "tokenizer", "per_minute"),
                "without --endpoint; add the server's address, or leave it out",
            )
            return None
        self._refuse((*LOADING, "beyond_window"), "with --endpoint, whose server has loaded the model; leave it out")
        if self.endpoint_model is None:
            raise InputError("--endpoint needs --endpoint-model, the model's name on the server")
        return Endpoint(
            self.endpoint,
            self.endpoint_model,
            key_env=self.key_env,
            per_minute=self.per_minute,
            max_tokens=max(self.max_new_tokens, 1),
        )

    def _refuse(self, names: tuple[str, ...], why: str) -> None:
        for name in names:
            if getattr(self, name) not in (None, False):
                raise InputError(f"--{name.replace('_', '-')} has no effect {why}")


def _with_common(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of `TaskArguments` in the place of its parameter ``common``."""
    hints = get_type_hints(TaskArguments, include_extras=True)
    first, *others = (
        Parameter(
            field.name,
            Parameter.KEYWORD_ONLY,
            default=Parameter.empty if field.default is MISSING else field.default,
            annotation=hints[field.name],
        )
        for field in fields(TaskArguments)
    )
    own_hints = get_type_hints(command, include_extras=True)
    own = [
        parameter.replace(kind=Parameter.KEYWORD_ONLY, annotation=own_hints[parameter.name])
        for parameter in signature(command).parameters.values()
        if parameter.name != "common"
    ]

    @wraps(command)
    def called(**given: Any) -> None:
        common = TaskArguments(**{field.name: given.pop(field.name) for field in fields(TaskArguments)})
        command(common=common, **given)

    # Typer reads both of them.
    shown = [first, *own, *others]
    called.__signature__ = Signature(shown)  # type: ignore[attr-defined]
    called.__annotations__ = {parameter.name: parameter.annotation for parameter in shown}
    return called


@_with_common
def needle(
    *,
    common: TaskArguments,
    prompts: Annotated[
        Path | None,
        typer.Option(help="Questions of a file instead of needles: the document with the answer is what moves."),
    ] = None,
    n_documents: Annotated[int, typer.Option(min=1, help="Documents of a prompt.")] = 10,
    positions: Annotated[str | None, typer.Option(help="Places of the needle, e.g. 0,4-5,9. [default: all]")] = None,
    other_topics: Annotated[
        bool, typer.Option("--other-topics", help="Take other items' distractors where an item has too few.")
    ] = False,
    no_shuffle: Annotated[
        bool, typer.Option("--no-shuffle", help="With --prompts: keep the file's order of the other documents.")
    ] = False,
    markers: Annotated[
        Literal["xml", "numbered", "none"] | None,
        typer.Option(help="What is written around documents. [default: xml; with --prompts: numbered]"),
    ] = None,
) -> None:
    """Put a fact at every position among distractors, and ask for it.

    Prints accuracy, the right answer's log-probability and the attention that its document gets, by position, and how
    they go together. --prompts takes questions from a file of Lost in the Middle, HotpotQA or SQuAD.
    """
    with reported("n_documents", "other_topics", "max_new_tokens", "key_env", kept=common.out):
        places = None if positions is None else listed_numbers("--positions", positions)
        choices: dict[str, Any] = {"n_documents": n_documents, "positions": places}
        if prompts is None:
            if no_shuffle:
                raise InputError("--no-shuffle is of --prompts: the built-in distractors have no order to keep")
            common.run("needle_sweep", {**choices, "other_topics": other_topics}, markers or "xml")
        else:
            if common.items is not None or common.only is not None or other_topics:
                raise InputError("--items, --only and --other-topics are of needles; leave them out with --prompts")
            common.run("multi_doc", {**choices, "shuffle": not no_shuffle}, markers or "numbered", prompts)


@_with_common
def niah(
    *,
    common: TaskArguments,
    lengths: Lengths,
    depths: Annotated[str, typer.Option(help="Parts of the filler before the needle, 0 to 1.")] = "0,0.25,0.5,0.75,1",
    mode: Annotated[
        Literal["single", "multi_key", "multi_value", "conflicting"],
        typer.Option(help="One needle; several, one or all of them asked for; or two that contradict each other."),
    ] = "single",
    n_needles: Annotated[int, typer.Option(min=2, help="Needles of multi_key and multi_value.")] = 3,
    filler: Annotated[str, typer.Option(help=_KINDS)] = "prose",
    no_strict_filler: NoStrictFiller = False,
    markers: Markers = "none",
) -> None:
    """Hide a fact at depths of prompts of exact lengths, and ask for it: the needle in a haystack.

    Prints the matrix of length by depth, and the longest length up to which the middle holds.
    """
    with reported("lengths", "depths", "n_needles", "max_new_tokens", "key_env", kept=common.out):
        choices = {
            "lengths": prompt_lengths(lengths),
            "depths": depth_parts(depths),
            "mode": mode,
            "n_needles": n_needles,
            "filler": filler,
            "strict_filler": not no_strict_filler,
        }
        common.run("niah", choices, markers)


@_with_common
def filler(
    *,
    common: TaskArguments,
    lengths: Lengths,
    fillers: Annotated[str, typer.Option(help=f"Kinds of filler, any of {_KINDS}")] = "repeated,prose,same_domain",
    placements: Annotated[str, typer.Option(help="Where it stands: after the evidence, before, split.")] = "after",
    no_strict_filler: NoStrictFiller = False,
    markers: Markers = "none",
) -> None:
    """Keep evidence and question, and let the prompt grow by text without any use.

    Prints what length, other content and content on the same topic cost, and what more tokens cost at each length.
    """
    with reported("lengths", "fillers", "placements", "max_new_tokens", "key_env", kept=common.out):
        choices = {
            "lengths": prompt_lengths(lengths),
            "fillers": listed_names("--fillers", fillers),
            "placements": listed_names("--placements", placements),
            "strict_filler": not no_strict_filler,
        }
        common.run("filler_control", choices, markers)
