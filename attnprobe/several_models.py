"""Commands that take several models, one after the other: which names are one model's, and which one an error is of."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from attnprobe.errors import CaptureError, InputError


def check_models(names: Sequence[str]) -> None:
    """Raise InputError where two names are one model's: the same alias or id, or paths to one place."""
    known: dict[str, str] = {}
    for name in names:
        path = Path(name).expanduser()
        place = str(path.resolve()) if path.exists() else name
        if place in known:
            raise InputError(f'the model "{name}" is given twice, first as "{known[place]}"; give each model once')
        known[place] = name


@contextmanager
def naming(name: str | None, before: Collection[str] = (), out: Path | None = None) -> Iterator[None]:
    """Name the model of several that an error is about, and say what is kept of those ``before`` it."""
    try:
        yield
    except (InputError, CaptureError) as error:
        if name is None:
            raise
        is_named = f'"{name}"' in str(error) or str(error).startswith((f"{name}:", f"{name} "))
        about = "" if is_named else f'model "{name}": '
        kept = (
            f"; what was measured before, on {', '.join(before)}, is kept in {out}, and the same command goes on from "
            "there"
            if before
            else ""
        )
        raise type(error)(f"{about}{error}{kept}") from error
