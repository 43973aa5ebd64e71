"""Several models, one after the other: which names are one model's, which an error is of, and what is done in turn."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from attnprobe.errors import CaptureError, InputError
from attnprobe.terminal import say_unfinished

if TYPE_CHECKING:
    from attnprobe.models import LanguageModel

Data = TypeVar("Data")
Result = TypeVar("Result")

LOADING = ("dtype", "device_map", "attn_implementation", "rope", "revision", "trust_remote_code")
"""Arguments of :func:`attnprobe.load` that commands and configs hand on."""


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


def check_names(names: Sequence[str]) -> None:
    """Raise InputError unless every model has a folder of its own."""
    from attnprobe.study_folder import folder_name

    for name in names:
        if sum(folder_name(other) == folder_name(name) for other in names) > 1:
            raise InputError(
                f"two models have the name {name!r}, or names that are one as a folder; rename one, or give its "
                "LanguageModel a source of another name"
            )


def check_each(names: Sequence[str], loading: Mapping[str, Any], fit: Callable[[LanguageModel], object]) -> None:
    """Raise InputError where one of several models cannot be used, as far as that shows without weights.

    Else each would be refused only after those before it were measured. A single model says so itself.
    """
    from attnprobe.blueprint import blueprint

    check_models(names)
    if len(names) == 1:
        return
    found = []
    for name in names:
        with naming(name):
            shape = blueprint(name, **loading).lm
            fit(shape)
        found.append(shape.source.name)
    check_names(found)


def in_turn(
    names: Sequence[str],
    loading: Mapping[str, Any],
    out: Path,
    measure: Callable[[LanguageModel], Data | None],
    finish: Callable[[Data], Result],
    ended: Callable[[Path], Data | None],
    quiet: bool,
) -> dict[str, Result] | None:
    """Load one model after the other, measure it and write its results; they are written as soon as it is done.

    Parameters
    ----------
    names, loading
        The models, and arguments of :func:`attnprobe.load`.
    out
        The folder of all models.
    measure
        Gives what was measured; None where other processes still measure.
    finish
        Writes the results, and gives them.
    ended
        What is in a model's folder if other processes have ended in the meantime; None if not.
    quiet
        Say nothing.

    Returns
    -------
    dict or None
        Results by model. None where other processes are still measuring: the last one writes the results.
    """
    from attnprobe.models import load
    from attnprobe.study_folder import folder_name

    found: dict[str, Result | None] = {}
    for name in names:
        with naming(name if len(names) > 1 else None, found, out):
            lm = load(name, progress=not quiet, **loading)
            data = measure(lm)
            found[lm.source.name] = None if data is None else finish(data)
            del lm
    for model in [model for model, result in found.items() if result is None]:
        data = ended(out / folder_name(model))
        if data is not None:
            found[model] = finish(data)
    done = {model: result for model, result in found.items() if result is not None}
    if len(done) < len(found):
        say_unfinished(quiet)
        return None
    return done
