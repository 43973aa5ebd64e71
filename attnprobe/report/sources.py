"""What a report is made of: run files, folders of ``measure`` and folders of ``study``, told apart and read."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from attnprobe.errors import InputError, RunFileError
from attnprobe.run import Run
from attnprobe.run_folder import MANIFEST, RUNS, finished_runs
from attnprobe.study import Study
from attnprobe.study_folder import ABOUT
from attnprobe.terminal import count

ACCEPTED = "a report takes run files (.safetensors) and folders written by attnprobe measure, study, run or demo"


@dataclass(frozen=True)
class Loaded:
    """A run and the file that it was read from."""

    run: Run
    file: Path


@dataclass(frozen=True)
class Runs:
    """One run file, or the runs of a folder of ``measure``.

    Parameters
    ----------
    name
        Short, and no other source's.
    path
        As given.
    files
        The run files.
    is_folder
        Whether ``path`` is a folder.
    """

    name: str
    path: Path
    files: tuple[Path, ...]
    is_folder: bool

    def read(self, faults: list[str]) -> Iterator[Loaded]:
        """Read run after run, so that only one is held; what is damaged goes to ``faults``.

        Raises
        ------
        InputError
            A single file that cannot be read, or a folder without any run that can.
        """
        good = 0
        for file in self.files:
            try:
                run = Run.load(file)
            except InputError as error:
                if not self.is_folder:
                    raise RunFileError(f"{error}; measure it again, or give another file") from error
                faults.append(f"{error}; the command that measured it, run again, writes it anew")
                continue
            good += 1
            yield Loaded(run, file)
        if not good:
            raise RunFileError(f"{self.path}: no run of it can be read; the first: {faults[-len(self.files)]}")


@dataclass(frozen=True)
class StudyOfModel:
    """The study of one model.

    Parameters
    ----------
    name
        Short, and no other source's.
    path
        The model's folder.
    study
        The study, of this model alone.
    """

    name: str
    path: Path
    study: Study

    def fault(self) -> str | None:
        """How much of the study is not there, if it is not whole."""
        left_out = self.study.of().incomplete
        if not left_out:
            return None
        id, why = next(iter(left_out.items()))
        return (
            f"{self.path}: {complete_questions(self.study)}; the first that is not, {id!r}: {why}; the command of the "
            "study, run again, goes on with it"
        )


Source = Runs | StudyOfModel
Read = TypeVar("Read")


def complete_questions(study: Study) -> str:
    """``6 questions``, or, of a study that is not whole, ``4 of 6 questions complete``."""
    data = study.of()
    n, left = len(data.questions), len(data.incomplete)
    return f"{n} of {count(n + left, 'question')} complete" if left else count(n, "question")


def read_sources(given: Sequence[str | os.PathLike[str]], faults: list[str]) -> tuple[Source, ...]:
    """Tell apart what was given, in its order; what is damaged in a folder that has more goes to ``faults``.

    Raises
    ------
    InputError
        Something that is none of the accepted kinds, or is given twice, or nothing.
    RunFileError
        Something that is damaged.
    """
    if not given:
        raise InputError(f"no source is given; {ACCEPTED}")
    paths = [Path(one) for one in given]
    refuse_twice(paths)
    found: list[Source] = [source for path in paths for source in _sources_at(path, faults)]
    names = distinct_names([source.path for source in found], [source.name for source in found])
    return tuple(_named(source, name) for source, name in zip(found, names, strict=True))


def refuse_twice(paths: Sequence[Path]) -> None:
    """Raise ``InputError`` that names the first path which is that of an earlier one."""
    places = [path.resolve() for path in paths]
    for number, path in enumerate(paths):
        if places[number] in places[:number]:
            raise InputError(f"{path} is given twice; give it once")


def read_each(paths: Sequence[Path], read: Callable[[str, Path], Read], faults: list[str]) -> list[Read]:
    """What is read of every folder, given a name that no other has and its path; what cannot be goes to ``faults``.

    Raises
    ------
    InputError
        A path twice, or nothing can be read: the first one's error.
    """
    refuse_twice(paths)
    found, errors = [], []
    for name, path in zip(distinct_names(paths, [path.resolve().name for path in paths]), paths, strict=True):
        try:
            found.append(read(name, path))
        except InputError as error:
            errors.append(error)
    if errors and not found:
        raise errors[0]
    faults.extend(map(str, errors))
    return found


def distinct_names(paths: Sequence[Path], names: Sequence[str]) -> list[str]:
    """The names, each with as many of its parent folders before it as it takes to tell it from the others."""
    out = list(names)
    for depth in range(1, max((len(path.resolve().parts) for path in paths), default=1)):
        twice = {name for name in out if out.count(name) > 1}
        if not twice:
            break
        for number, path in enumerate(paths):
            if out[number] in twice:
                parents = path.resolve().parent.parts[-depth:]
                out[number] = "/".join((*parents, names[number]))
    return out


def _named(source: Source, name: str) -> Source:
    if isinstance(source, Runs):
        return Runs(name, source.path, source.files, source.is_folder)
    return StudyOfModel(name, source.path, source.study)


def _sources_at(path: Path, faults: list[str]) -> list[Source]:
    if not path.exists():
        raise InputError(f"{path} does not exist; {ACCEPTED}")
    if not path.is_dir():
        if path.suffix != ".safetensors":
            raise InputError(f"{path} is no run file; {ACCEPTED}")
        return [Runs(path.stem, path, (path,), is_folder=False)]
    if (path / ABOUT).exists():
        return _studies([path], faults)
    parts = sorted(file.parent for file in path.glob(f"*/{ABOUT}"))
    if parts:
        return _studies(parts, faults)
    if (path / MANIFEST).exists() and (path / RUNS).is_dir():
        return [Runs(path.resolve().name, path, _run_files(path, faults), is_folder=True)]
    hint = ""
    if any(path.glob("*.safetensors")):
        hint = "; give the run files in it one by one"
    raise InputError(f"{path} holds neither {MANIFEST} with {RUNS}/ nor a study; {ACCEPTED}{hint}")


def _studies(parts: Sequence[Path], faults: list[str]) -> list[Source]:
    found: list[StudyOfModel] = []
    errors = []
    for part in parts:
        try:
            found.append(_study(part))
        except InputError as error:
            errors.append(error)
    if not found:
        raise errors[0]
    faults.extend(map(str, errors))
    faults.extend(fault for one in found if (fault := one.fault()))
    return list(found)


def _study(part: Path) -> StudyOfModel:
    return StudyOfModel(part.resolve().name, part, Study.load(part))


def _run_files(folder: Path, faults: list[str]) -> tuple[Path, ...]:
    """The runs that the manifest lists; those that are there while it lists none, as before a measurement's end."""
    file = folder / MANIFEST
    try:
        content: Any = json.loads(file.read_text(encoding="utf-8"))
        listed = content["runs"]
        names = [Path(entry["file"]).name for entry in listed] if listed is not None else finished_runs(folder)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunFileError(
            f"{file} is damaged or not of attnprobe ({error}); give the run files in {folder / RUNS} one by one"
        ) from error
    if not names:
        raise InputError(f"{folder} holds no finished run yet; let measure finish one")
    if listed is None:
        faults.append(f"{folder}: the measurement is not finished; its {len(names)} finished runs are shown")
    return tuple(folder / RUNS / name for name in names)
