"""How every command ends: results on standard output, one line for an error, and an exit status."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperGroup

from attnprobe.errors import CaptureError, InputError
from attnprobe.terminal import plain, say

# typer's, whichever version of click it has inside.
_USAGE_ERROR: Any = typer.BadParameter.__base__
_NO_NAME = re.compile(r"[^\w,]")


class Commands(TyperGroup):
    """Commands that refuse wrong arguments in one line, as they refuse everything else."""

    def make_context(self, *arguments: Any, **options: Any) -> Any:
        """Parse what stands before the command."""
        with _refused_in_one_line():
            return super().make_context(*arguments, **options)

    def invoke(self, ctx: Any) -> Any:
        """Parse what stands behind it, and run it."""
        with _refused_in_one_line():
            return super().invoke(ctx)


@contextmanager
def _refused_in_one_line() -> Iterator[None]:
    try:
        yield
    except _USAGE_ERROR as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # the help itself
            raise
        where = error.ctx.command_path if error.ctx is not None else "attnprobe"
        message = " ".join(error.format_message().split()).replace("Value error, ", "").rstrip(".")
        say(f"error: {message[:1].lower()}{message[1:]}; {where} --help lists what can be given")
        raise typer.Exit(2) from error


@contextmanager
def reported(*options: str, kept: str | Path = "") -> Iterator[None]:
    """Turn what the user can mend into one line and exit status 2, and Ctrl-C into 130; bugs keep their traceback.

    Parameters
    ----------
    options
        Arguments of Python functions that errors may name, which the command has as options.
    kept
        Where a command keeps every finished cell, so that the same command goes on.
    """
    try:
        yield
    except (InputError, CaptureError) as error:
        say(f"error: {_in_options(str(error), options)}")
        raise typer.Exit(2) from error
    except MemoryError as error:
        say(_out_of_memory(error))
        raise typer.Exit(2) from error
    except KeyboardInterrupt:
        where = f": every finished cell is kept in {kept}; the same command goes on from there" if kept else ""
        say(f"interrupted{where}")
        raise typer.Exit(130) from None
    except RuntimeError as error:
        # torch's own class; comparing names spares an import of torch.
        if type(error).__name__ != "OutOfMemoryError":
            raise
        say(_out_of_memory(error))
        raise typer.Exit(2) from error


def _in_options(message: str, options: Sequence[str]) -> str:
    """An error's remedy in terms of the command line, on one line."""

    def option(match: re.Match[str]) -> str:
        return f"--{match[1].replace('_', '-')}"

    named = re.sub(r"\b(beyond_window|strict|trust_remote_code)=True", option, message)
    named = re.sub(r"\bextras=\(([^)]*)\)", lambda m: f"--extras {_NO_NAME.sub('', m[1]).strip(',')}", named)
    named = re.sub(r"\bstrict_filler=False", "--no-strict-filler", named)
    if options:
        # Not what is an option already, nor a part of a longer name.
        named = re.sub(rf"(?<![-.\w])({'|'.join(options)})\b(=?)", lambda m: option(m) + (" " if m[2] else ""), named)
    return " ".join(named.split())


def _out_of_memory(error: BaseException) -> str:
    return (
        f"error: out of memory ({' '.join(str(error).split())[:200]}); try --prefill-chunk 1024, --batch-size 1, or "
        "--dtype bfloat16; runs that were finished are kept"
    )


def leave_if_incomplete(faults: Sequence[str]) -> None:
    """Name what a result lacks, also when quiet, and leave with exit status 1; do nothing where it lacks nothing."""
    for fault in faults:
        say(f"left out: {fault}")
    if faults:
        raise typer.Exit(1)


def print_json(value: Any) -> None:
    """Print a result on standard output as JSON, all of it ASCII, which a terminal shows as it is."""
    _print(json.dumps(value, indent=1, allow_nan=False))


def print_lines(lines: list[str]) -> None:
    """Print a result on standard output, for people."""
    _print("\n".join(map(plain, lines)))


def _print(text: str) -> None:
    """Print on standard output, which may be a file on a full disk; a closed pipe is the reader's business."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        raise
    except OSError as error:
        say(f"error: standard output cannot be written: {error.strerror}; write it elsewhere")
        # What is still in the buffer would fail again as Python ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(2) from error
