"""The commands ``attnprobe rope MODEL`` and ``attnprobe rope inspect MODEL``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from attnprobe.cli_options import (
    AttnImplementation,
    DeviceMap,
    Dtype,
    Json,
    Lengths,
    Quiet,
    RetryFailed,
    Revision,
    Scalings,
    TrustRemoteCode,
    depth_parts,
    prompt_lengths,
)
from attnprobe.cli_output import Commands, print_json, print_lines, reported
from attnprobe.terminal import say

_HELP = "-h", "--help"


class _Commands(Commands):
    """``compare`` is the command where none is named."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in (*self.commands, *_HELP):
            args = ["compare", *args]
        return list(super().parse_args(ctx, args))


rope = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    help="Compare RoPE scalings by what heads do.\n\n"
    "attnprobe rope MODEL ... is attnprobe rope compare MODEL ...; inspect needs no weights.",
)


@rope.command()
def inspect(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="Alias (smollm2), hub id, folder, .gguf file, or a config.json.")
    ],
    scaling: Scalings = None,
    lengths: Lengths = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Draw a picture: a name with .png, .svg or .pdf.")
    ] = None,
    revision: Revision = None,
    trust_remote_code: TrustRemoteCode = False,
    json_: Json = False,
    quiet: Quiet = False,
) -> None:
    """Show what scalings do to a model's rotary frequencies; from its config alone, without weights.

    For every pair of rotary dimensions its wavelength, the turns it makes in the trained length, and how much each
    scaling slows it down; for every scaling and length the pairs that never complete a turn, those that reach angles
    which training never showed, and how q.k decays with distance. Frequencies are those of the model's own class,
    which is refused where it ignores a scaling.
    """
    with reported():
        n_tokens = prompt_lengths(lengths)
        from attnprobe.rope_inspect import inspect_rope
        from attnprobe.rope_inspect_text import inspect_lines

        if out is not None:
            from attnprobe.report.style import check_suffix

            check_suffix(out)
        found = inspect_rope(model, scaling or [], n_tokens, revision=revision, trust_remote_code=trust_remote_code)
        if json_:
            print_json(found.to_dict())
        else:
            print_lines(inspect_lines(found))
        if out is not None:
            from attnprobe.report.rope_figure import save_rope_figure

            save_rope_figure(found, out)
            say(f"picture in {out}", quiet)


@rope.command()
def compare(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Alias (smollm2), hub id, folder, or .gguf file.")],
    out: Annotated[Path, typer.Option(help="Folder for every finished cell and the results; a second call resumes.")],
    scaling: Scalings = None,
    lengths: Lengths = "2k,8k,16k",
    texts: Annotated[int, typer.Option(min=1, help="Texts of each length; intervals take five.")] = 5,
    depths: Annotated[
        str, typer.Option(help="Where the needles of a text stand, from 0 (start) to 1 (end).")
    ] = "0,0.25,0.5,0.75,1",
    items: Annotated[
        Path | None,
        typer.Option(
            help="File of needles, one JSON object a line: id, wordings (texts that state the fact), question, answer, "
            "foil. [default: built in]"
        ),
    ] = None,
    filler: Annotated[
        str, typer.Option(help="Text around the needles: prose, repeated, shuffled, file:PATH, ...")
    ] = "prose",
    seed: Annotated[int, typer.Option(min=0, help="Draws needles, filler and halves.")] = 0,
    top: Annotated[int, typer.Option(min=1, help="Retrieval heads to choose on the unscaled model.")] = 10,
    margin_logprob: Annotated[
        float, typer.Option(help="An answer is kept where a loss of this much log-probability is ruled out, nats.")
    ] = 1.0,
    margin_advantage: Annotated[float, typer.Option(help="The same of the needle's advantage, nats.")] = 0.25,
    margin_loss: Annotated[float, typer.Option(help="The same of a rise of the text's loss, nats a token.")] = 0.05,
    dtype: Dtype = None,
    device_map: DeviceMap = None,
    attn_implementation: AttnImplementation = None,
    revision: Revision = None,
    trust_remote_code: TrustRemoteCode = False,
    retry_failed: RetryFailed = False,
    json_: Json = False,
    quiet: Quiet = False,
) -> None:
    """Compare RoPE scalings on the same texts: what they cost in the trained window, and how far they reach beyond it.

    Each text has needles at several depths, whose answers are forced in turn. The unscaled model (none) is always
    measured, as the others are compared with it. Writes summary.json, table.csv and pictures. Every finished cell is
    kept in OUT at once; the same command goes on where it was interrupted. Exit status 1 where a cell has no result.
    """
    with reported(kept=out):
        from attnprobe.rope_command import print_rope, run_rope
        from attnprobe.rope_options import Margins, RopeOptions

        options = RopeOptions(
            lengths=tuple(prompt_lengths(lengths)),
            depths=depth_parts(depths),
            texts=texts,
            filler=filler,
            seed=seed,
            n_heads=top,
            margins=Margins(margin_logprob, margin_advantage, margin_loss),
        )
        found = run_rope(
            model,
            scaling or [],
            options,
            out,
            items=items,
            loading={
                "dtype": dtype,
                "device_map": device_map,
                "attn_implementation": attn_implementation,
                "revision": revision,
                "trust_remote_code": trust_remote_code,
            },
            retry_failed=retry_failed,
            quiet=quiet,
        )
        if found is not None and print_rope(found, json_):
            raise typer.Exit(1)
