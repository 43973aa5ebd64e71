"""What a figure is drawn from, read from files and folders."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from attnprobe.errors import InputError
from attnprobe.report.figures import known_kind
from attnprobe.report.needle_figure import Needle
from attnprobe.report.sources import Runs, StudyOfModel, read_sources
from attnprobe.run import Run


def read_for(kind: str, paths: Sequence[Path], faults: list[str]) -> Any:
    """The source of a figure of some kind; of runs in a folder, one is held at a time.

    Parameters
    ----------
    kind
        One of :data:`attnprobe.report.figures.KINDS`.
    paths
        Run files, folders that measure or study wrote; for a needle one JSON file with ``lengths``, ``depths``,
        ``values``, ``label`` and ``unit``, as of :class:`attnprobe.report.needle_figure.Needle`.
    faults
        Takes what is damaged in a folder that has more, as runs are read.

    Raises
    ------
    InputError
        Files that are something else, or not what the kind is drawn from.
    """
    takes = known_kind(kind).takes
    if takes == "needle":
        if len(paths) != 1:
            raise InputError(f"{len(paths)} files; a needle's figure is drawn from one")
        return _needle(paths[0])
    sources = read_sources(paths, faults)
    if takes == "several":
        return {one.name: one.study if isinstance(one, StudyOfModel) else one.read(faults) for one in sources}
    studies = [one for one in sources if isinstance(one, StudyOfModel)]
    if takes == "run":
        if studies or sum(len(one.files) for one in sources if isinstance(one, Runs)) != 1:
            raise InputError(f'a figure of kind "{kind}" is drawn from one run; give one run file (.safetensors)')
        return next(_runs(sources, faults))
    if not studies:
        return _runs(sources, faults)
    if len(sources) > 1:
        raise InputError(
            f'a figure of kind "{kind}" is drawn from one study of one model or from runs, but {len(sources)} were '
            f'given: {", ".join(one.name for one in sources)}; give one, or draw the kind "compare"'
        )
    return studies[0].study


def _runs(sources: Sequence[Runs | StudyOfModel], faults: list[str]) -> Iterator[Run]:
    return chain.from_iterable(one.read(faults) for one in sources if isinstance(one, Runs))


def _needle(path: Path) -> Needle:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        parts = {name: content[name] for name in ("lengths", "depths", "values", "label")}
        return Needle(**parts, unit=content.get("unit", ""))
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        if isinstance(error, InputError):
            raise InputError(f"{path}: {error}") from error
        raise InputError(
            f"{path} is no needle file ({error}); it has one JSON object with lengths, depths, values [length][depth], "
            "label and unit"
        ) from error
