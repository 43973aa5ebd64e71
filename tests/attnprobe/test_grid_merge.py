"""Reading and merging records of several processes and folders."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from grid_jobs import CONFIG, cells, do
from safetensors.numpy import load_file, save_file

from attnprobe.errors import InputError
from attnprobe.grid import Cell, Merged, merge, read_cells, run_cells


def part(folder: Path, monkeypatch: pytest.MonkeyPatch, process: int, config: Any = CONFIG, work: Any = do) -> Path:
    """A folder in which one of two processes did its cells."""
    with monkeypatch.context() as launched:
        launched.setenv("RANK", str(process))
        launched.setenv("WORLD_SIZE", "2")
        run_cells(folder, config, cells(7), work, quiet=True)
    return folder


def failing(cell: Cell, relief: int) -> dict[str, Any]:
    raise InputError("not here")


def table(folder: Path) -> dict[str, Any]:
    return {key: record["result"] for key, record in sorted(read_cells(folder).items())}


def whole(folder: Path) -> dict[str, Any]:
    run_cells(folder, CONFIG, cells(7), do, quiet=True)
    return table(folder)


def append(folder: Path, process: int, **record: Any) -> None:
    with (folder / f"cells-{process}.jsonl").open("a") as file:
        file.write(json.dumps({"seconds": 1.0, "process": process, "relief": 0, **record}) + "\n")


def test_equal_results_collapse_and_different_ones_are_refused(tmp_path: Path) -> None:
    expected = whole(tmp_path)
    append(tmp_path, 1, key="q003", status="done", result=expected["q003"])
    append(tmp_path, 1, key="q004", status="failed", error="MemoryError: no room")
    assert table(tmp_path) == expected
    append(tmp_path, 10, key="q002", status="done", result={"number": -1})
    with pytest.raises(
        InputError, match=r'cell "q002" has one result in .*cells-0.jsonl and another one in .*cells-10'
    ):
        read_cells(tmp_path)


def test_done_counts_before_failed_and_the_last_failure_before_others(tmp_path: Path) -> None:
    append(tmp_path, 0, key="a", status="failed", error="first")
    append(tmp_path, 0, key="a", status="failed", error="second")
    assert read_cells(tmp_path)["a"]["error"] == "second"
    append(tmp_path, 2, key="a", status="done", result={})
    append(tmp_path, 10, key="a", status="failed", error="third")
    assert read_cells(tmp_path)["a"]["status"] == "done"


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nowhere cannot be read: No such file"):
        read_cells(tmp_path / "nowhere")


def test_parts_make_the_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = (part(tmp_path / name, monkeypatch, i) for i, name in enumerate("ab"))
    before = {path: path.read_bytes() for folder in (a, b) for path in folder.iterdir()}
    assert merge([a, b], tmp_path / "out") == Merged(7, 7, 0, ())
    assert table(tmp_path / "out") == whole(tmp_path / "whole")
    assert {path: path.read_bytes() for folder in (a, b) for path in folder.iterdir()} == before
    merge([b, a], tmp_path / "other")
    for name in ("cells-0.jsonl", "grid.json"):
        assert (tmp_path / "other" / name).read_bytes() == (tmp_path / "out" / name).read_bytes()
    assert run_cells(tmp_path / "out", CONFIG, cells(7), do, quiet=True).skipped == 7


def test_a_merge_of_some_can_be_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = part(tmp_path / "a", monkeypatch, 0), part(tmp_path / "b", monkeypatch, 0, work=failing)
    c = part(tmp_path / "c", monkeypatch, 1, work=failing)
    assert merge([a, b], tmp_path / "one") == Merged(7, 4, 0, ())
    merged = merge([c, b, a], tmp_path / "two")
    assert merged == Merged(7, 4, 3, ())
    assert merged.missing == 0
    assert run_cells(tmp_path / "two", CONFIG, cells(7), do, quiet=True, retry_failed=True).done == 3
    assert table(tmp_path / "two") == whole(tmp_path / "whole")


def test_mixed_configs_and_conflicts_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a = part(tmp_path / "a", monkeypatch, 0)
    other = part(tmp_path / "other", monkeypatch, 1, {**CONFIG, "seed": 8})
    with pytest.raises(InputError, match=r"hold different grids: seed is 7 in .*a and 8 in .*other"):
        merge([a, other], tmp_path / "out")
    odd = part(tmp_path / "odd", monkeypatch, 0, work=lambda cell, relief: {"odd": True})
    with pytest.raises(InputError, match=r"another one in .*odd.*not reproducible"):
        merge([a, odd], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_how_a_result_was_reached_may_differ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = [
        part(tmp_path / name, monkeypatch, 0, work=lambda cell, relief, n=n: {**do(cell, relief), "how": {"fed": n}})
        for n, name in enumerate("ab")
    ]
    assert merge(parts, tmp_path / "out").done == 4
    assert {record["result"]["how"]["fed"] for record in read_cells(tmp_path / "out").values()} == {0}


def test_what_cannot_be_merged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a = part(tmp_path / "a", monkeypatch, 0)
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="empty holds no grid"):
        merge([a, tmp_path / "empty"], tmp_path / "out")
    with pytest.raises(InputError, match="nothing to merge"):
        merge([], tmp_path / "out")
    with pytest.raises(InputError, match=r"a is inside .*a, which is to be merged"):
        merge([a], a)
    for twice in ([a, a], [a, tmp_path / "empty" / ".." / "a"]):
        with pytest.raises(InputError, match=r"a is given twice"):
            merge(twice, tmp_path / "out")
    part(tmp_path / "wide" / "m", monkeypatch, 0)
    for nested in ([tmp_path / "wide", tmp_path / "wide" / "m"], [tmp_path / "wide" / "m", tmp_path / "wide"]):
        with pytest.raises(InputError, match=r"wide/m is inside .*wide"):
            merge(nested, tmp_path / "out")
    assert merge([a], tmp_path / "empty").done == 4


def test_folders_of_several_grids_with_other_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    part(a / "m1" / "cells", monkeypatch, 0)
    part(b / "m1" / "cells", monkeypatch, 1)
    part(b / "m2" / "cells", monkeypatch, 0)
    for folder, name, text in [
        (a, "m1/arrays/q000.bin", "x"),
        (b, "m1/arrays/q001.bin", "y"),
        (a, "m1/study.json", "same"),
        (b, "m1/study.json", "same"),
        (a, "m1/notes.txt", "first"),
        (b, "m1/notes.txt", "second"),
        (a, "m1/curve.csv", "half"),
        (b, "m2/curve.csv", "other half"),
    ]:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    out = tmp_path / "out"
    assert merge([a, b], out, derived=["curve.csv"]) == Merged(14, 11, 0, ("m1/notes.txt",))
    assert (out / "m1" / "notes.txt").read_text() == "first"
    assert table(out / "m1" / "cells") == whole(tmp_path / "whole")
    assert len(table(out / "m2" / "cells")) == 4
    found = sorted(str(path.relative_to(out)) for path in out.rglob("*") if path.is_file())
    assert found == [
        "m1/arrays/q000.bin",
        "m1/arrays/q001.bin",
        *(f"{m}/cells/{name}" for m in ("m1",) for name in ("cells-0.jsonl", "grid.json")),
        "m1/notes.txt",
        "m1/study.json",
        *(f"m2/cells/{name}" for name in ("cells-0.jsonl", "grid.json")),
    ]


def test_a_cut_off_end_does_not_get_into_a_merge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = (part(tmp_path / name, monkeypatch, i) for i, name in enumerate("ab"))
    shutil.copytree(b, tmp_path / "cut")
    data = (b / "cells-1.jsonl").read_bytes()
    (tmp_path / "cut" / "cells-1.jsonl").write_bytes(data[:-5])
    assert merge([a, tmp_path / "cut"], tmp_path / "out") == Merged(7, 6, 0, ())


def test_arrays_that_rounding_tells_apart_are_one_and_others_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrays = {"mass": np.array([0.25, np.nan, 0.75, 1e-5], dtype=np.float32)}
    for folder, change in (("a", 0.0), ("b", 1e-7), ("c", 4e-5)):
        part(tmp_path / folder, monkeypatch, 0)
        save_file({"mass": arrays["mass"] + np.float32(change)}, tmp_path / folder / "q000.safetensors")
    merged = merge([tmp_path / "b", tmp_path / "a"], tmp_path / "out")
    assert merged.differing == ("q000.safetensors",)
    taken, first = (load_file(tmp_path / folder / "q000.safetensors")["mass"] for folder in ("out", "b"))
    np.testing.assert_array_equal(taken, first)
    with pytest.raises(InputError, match=r"a/q000.safetensors and .*c/q000.safetensors hold different arrays"):
        merge([tmp_path / "a", tmp_path / "c"], tmp_path / "none")
    assert not (tmp_path / "none").exists()
