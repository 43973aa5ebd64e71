"""The grid: nothing lost, nothing repeated, whatever stops it."""

from __future__ import annotations

import errno
import json
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grid_jobs
import pytest
from grid_jobs import CONFIG, cells, do
from hypothesis import given, settings
from hypothesis import strategies as st

from attnprobe import grid, grid_folder, terminal
from attnprobe.errors import CaptureError, InputError
from attnprobe.grid import Cell, GridResult, read_cells, run_cells
from attnprobe.grid_processes import deal, is_out_of_memory, own_device, this_process
from attnprobe.grid_records import joined

FAST = settings(deadline=None, derandomize=True, max_examples=100)


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMI_RANK", "PMI_SIZE"):
        monkeypatch.delenv(name, raising=False)


def run(folder: Path, n: int = 6, work: Any = do, **options: Any) -> GridResult:
    return run_cells(folder, options.pop("config", CONFIG), cells(n), work, quiet=True, **options)


def table(folder: Path) -> dict[str, Any]:
    return {key: record["result"] for key, record in sorted(read_cells(folder).items())}


def expected(n: int) -> dict[str, Any]:
    return {cell.key: do(cell, 0) for cell in sorted(cells(n), key=lambda cell: cell.key)}


def counting(calls: list[str], work: Any = do) -> Any:
    def counted(cell: Cell, relief: int) -> Any:
        calls.append(cell.key)
        return work(cell, relief)

    return counted


def as_process(monkeypatch: pytest.MonkeyPatch, number: int, count: int) -> None:
    monkeypatch.setenv("RANK", str(number))
    monkeypatch.setenv("WORLD_SIZE", str(count))


def test_all_cells_are_done_once_and_in_order(tmp_path: Path) -> None:
    calls: list[str] = []
    result = run(tmp_path / "new" / "grid", work=counting(calls))
    assert (result.done, result.failed, result.skipped, result.complete) == (6, (), 0, True)
    costs = {cell.key: (cell.group, -cell.cost) for cell in cells(6)}
    assert [costs[key] for key in calls] == sorted(costs.values())
    assert table(tmp_path / "new" / "grid") == expected(6)
    again = run(tmp_path / "new" / "grid", work=counting(calls))
    assert (again.done, again.skipped, again.complete, len(calls)) == (0, 6, True, 6)


def test_what_a_record_and_the_grid_file_hold(tmp_path: Path) -> None:
    run(tmp_path, 1)
    (record,) = [json.loads(line) for line in (tmp_path / "cells-0.jsonl").read_text().splitlines()]
    assert record.pop("seconds") >= 0
    assert record == {"key": "q000", "status": "done", "result": do(cells(1)[0], 0), "process": 0, "relief": 0}
    about = json.loads((tmp_path / "grid.json").read_text())
    assert (about["config"], about["seed"], about["n_cells"]) == (CONFIG, 7, 1)
    assert about["versions"][0]["torch"]


def test_every_cut_off_end_is_left_out_and_written_over(tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    run(whole, 3)
    data = (whole / "cells-0.jsonl").read_bytes()
    folder = tmp_path / "cut"
    folder.mkdir()
    (folder / "grid.json").write_bytes((whole / "grid.json").read_bytes())
    for length in range(len(data)):
        (folder / "cells-0.jsonl").write_bytes(data[:length])
        n_whole = data[:length].count(b"\n")
        known = read_cells(folder)
        assert list(known) == [json.loads(line)["key"] for line in data.splitlines()[:n_whole]]
        calls: list[str] = []
        result = run(folder, 3, counting(calls))
        assert result.done == len(calls) == 3 - n_whole
        assert not set(calls) & set(known)
        assert (folder / "cells-0.jsonl").read_bytes().startswith(data[: data[:length].rfind(b"\n") + 1])
        assert table(folder) == expected(3)


@FAST
@given(junk=st.binary(max_size=40))
def test_any_end_without_a_record_is_dropped(tmp_path_factory: pytest.TempPathFactory, junk: bytes) -> None:
    folder = tmp_path_factory.mktemp("junk")
    run(folder, 2)
    with (folder / "cells-0.jsonl").open("ab") as file:
        file.write(junk.replace(b"\n", b"").replace(b"\r", b""))
    assert table(folder) == expected(2)
    assert run(folder, 2).done == 0
    assert (folder / "cells-0.jsonl").read_bytes().count(b"\n") == 2
    assert table(folder) == expected(2)


def test_damage_inside_is_said(tmp_path: Path) -> None:
    run(tmp_path, 3)
    lines = (tmp_path / "cells-0.jsonl").read_bytes().splitlines(keepends=True)
    for bad in (b"{\n", b"7\n", b'{"key": "q", "status": "gone"}\n', b'{"key": "q", "status": "done"}\n', b"\xff\n"):
        (tmp_path / "cells-0.jsonl").write_bytes(lines[0] + bad + lines[2])
        with pytest.raises(InputError, match=r"cells-0\.jsonl:2 is damaged .*delete that line"):
            run(tmp_path, 3)


def test_a_failed_cell_is_recorded_and_the_rest_go_on(tmp_path: Path) -> None:
    errors = {"q001": CaptureError("layer 3 hides"), "q002": InputError("too long"), "q003": ZeroDivisionError("bug")}

    def failing(cell: Cell, relief: int) -> dict[str, Any]:
        if cell.key in errors:
            raise errors[cell.key]
        return do(cell, relief)

    result = run(tmp_path, work=failing)
    texts = {"q001": "CaptureError: layer 3 hides", "q002": "InputError: too long", "q003": "ZeroDivisionError: bug"}
    assert (result.done, dict(result.failed), result.complete) == (3, texts, True)
    records = read_cells(tmp_path)
    assert {key: records[key]["error"] for key in texts} == texts
    assert "failing" in records["q003"]["traceback"]
    assert "traceback" not in records["q001"]
    calls: list[str] = []
    left = run(tmp_path, work=counting(calls))
    assert (left.done, left.skipped, dict(left.failed), calls) == (0, 6, texts, [])
    mended = run(tmp_path, work=counting(calls), retry_failed=True)
    assert (mended.done, mended.skipped, mended.failed, sorted(calls)) == (3, 3, (), sorted(texts))
    assert table(tmp_path) == expected(6)


@pytest.mark.parametrize("result", [{"x": math.nan}, {"x": {1, 2}}, [("x", object())], 7])
def test_a_result_that_json_cannot_hold_fails_its_cell(tmp_path: Path, result: Any) -> None:
    found = run(tmp_path, 2, lambda cell, relief: result if cell.key == "q000" else do(cell, relief))
    assert found.done == 1
    assert [key for key, _ in found.failed] == ["q000"]


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit])
def test_interrupts_stop_and_keep_what_is_done(tmp_path: Path, stop: type[BaseException]) -> None:
    def stopping(cell: Cell, relief: int) -> dict[str, Any]:
        if len(calls) == 3:
            raise stop
        return do(cell, relief)

    calls: list[str] = []
    with pytest.raises(stop):
        run(tmp_path, work=counting(calls, stopping))
    assert sorted(read_cells(tmp_path)) == sorted(calls[:2])
    assert run(tmp_path).done == 4
    assert table(tmp_path) == expected(6)


def torch_out_of_memory() -> Exception:
    import torch

    return torch.OutOfMemoryError("no room")


@pytest.mark.parametrize(
    "error", [torch_out_of_memory(), MemoryError("no room"), RuntimeError("DefaultCPUAllocator: can't allocate memory")]
)
def test_out_of_memory_asks_for_less(tmp_path: Path, error: Exception, capsys: pytest.CaptureFixture[str]) -> None:
    def greedy(cell: Cell, relief: int) -> dict[str, Any]:
        reliefs.append(relief)
        if relief < 2:
            raise error
        return {"relief": relief}

    reliefs: list[int] = []
    result = run_cells(tmp_path, CONFIG, cells(2), greedy, quiet=False)
    assert (result.done, reliefs) == (2, [0, 1, 2, 0, 1, 2])
    assert {record["relief"] for record in read_cells(tmp_path).values()} == {2}
    assert "q000: out of memory; once more with less (relief 1)" in capsys.readouterr().err


def test_out_of_memory_for_good_fails_the_cell(tmp_path: Path) -> None:
    def hopeless(cell: Cell, relief: int) -> dict[str, Any]:
        tries.append(cell.key)
        raise MemoryError("no room")

    tries: list[str] = []
    result = run(tmp_path, 1, hopeless)
    assert result.failed == (("q000", "MemoryError: no room"),)
    assert len(tries) == grid.TRIES
    assert read_cells(tmp_path)["q000"]["relief"] == grid.TRIES - 1
    assert not is_out_of_memory(RuntimeError("CUDA error: device-side assert"))


def test_another_config_is_refused_by_name(tmp_path: Path) -> None:
    run(tmp_path)
    for config, words in [
        ({**CONFIG, "seed": 8}, "seed is 7 there and 8 now"),
        ({**CONFIG, "models": ["a", "c"]}, r'models\[1\] is "b" there and "c" now'),
        ({**CONFIG, "models": ["a"]}, r'models is \["a", "b"\] there and \["a"\] now'),
        ({**CONFIG, "more": {"x": 1}}, "more is given only now"),
        ({"kind": "test", "seed": 7}, "models is given only there"),
    ]:
        with pytest.raises(InputError, match=rf"holds results of other settings: {words}\. Give another folder"):
            run(tmp_path, config=config)
    assert run(tmp_path, config={"seed": 7, "models": ("a", "b"), "kind": "test"}).skipped == 6
    with pytest.raises(InputError, match=r"makes other cells \(6 there, 5 now\)"):
        run(tmp_path, 5)


def test_true_is_not_one(tmp_path: Path) -> None:
    run(tmp_path, config={"x": True})
    with pytest.raises(InputError, match="x is true there and 1 now"):
        run(tmp_path, config={"x": 1})


def test_bad_cells_and_configs_are_refused(tmp_path: Path) -> None:
    for some, words in [
        ([Cell("a", 1.0, None), Cell("a", 2.0, None)], 'two cells have the key "a"'),
        ([Cell("a", math.nan, None)], "cost nan"),
        ([Cell("a", -1.0, None)], r"cost -1\.0"),
    ]:
        with pytest.raises(InputError, match=words):
            run_cells(tmp_path, CONFIG, some, do, quiet=True)
    with pytest.raises(InputError, match="config cannot be written as JSON"):
        run(tmp_path, config={"x": object()})
    assert not list(tmp_path.iterdir())


def test_damaged_grid_files_are_said(tmp_path: Path) -> None:
    run(tmp_path)
    good = json.loads((tmp_path / "grid.json").read_text())
    for content in ("", "[]", "{}", json.dumps({**good, "config": {"seed": 8}})):
        (tmp_path / "grid.json").write_text(content)
        with pytest.raises(InputError, match=r"grid\.json is damaged or not of attnprobe"):
            run(tmp_path)
    (tmp_path / "grid.json").write_text(json.dumps({**good, "schema": 99}))
    with pytest.raises(InputError, match="newer attnprobe"):
        run(tmp_path)
    (tmp_path / "grid.json").unlink()
    with pytest.raises(InputError, match=r"has cells, but no grid\.json"):
        run(tmp_path)


def test_other_packages_are_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(tmp_path)
    monkeypatch.setattr("attnprobe.manifest.package_versions", lambda: {"torch": "99"})
    for _ in range(2):
        run_cells(tmp_path, CONFIG, cells(6), do, quiet=False)
    assert capsys.readouterr().err.count("going on with other packages than before") == 1
    versions = json.loads((tmp_path / "grid.json").read_text())["versions"]
    assert [one["torch"] for one in versions][1:] == ["99"]


def test_two_runs_do_not_share_a_folder(tmp_path: Path) -> None:
    def nested(cell: Cell, relief: int) -> dict[str, Any]:
        with pytest.raises(InputError, match="in use by another run"):
            run(tmp_path)
        return do(cell, relief)

    assert run(tmp_path, 1, nested).done == 1


def test_a_run_does_not_start_beside_the_last_process_of_a_launch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grid_folder, "_SIBLING_SECONDS", 0.05)

    def beside(cell: Cell, relief: int) -> dict[str, Any]:
        with monkeypatch.context() as alone:
            alone.delenv("RANK")
            with pytest.raises(InputError, match="in use by another run"):
                run(tmp_path)
        return do(cell, relief)

    as_process(monkeypatch, 1, 2)
    assert run(tmp_path, work=beside).done == 3


def test_a_full_disk_stops_and_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = os.fsync, []

    def full(handle: int) -> None:
        calls.append(handle)
        if len(calls) == 4:  # one for grid.json, two cells, then
            raise OSError(errno.ENOSPC, "No space left on device")
        real(handle)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InputError, match="cannot be written: No space left on device; make room"):
        run(tmp_path)
    assert len(read_cells(tmp_path)) == 2
    assert (tmp_path / "cells-0.jsonl").read_bytes().endswith(b"}\n")
    monkeypatch.undo()
    assert run(tmp_path).done == 4
    assert table(tmp_path) == expected(6)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS])
def test_a_disk_that_fails_in_a_cell_ends_the_run_and_fails_no_cell(tmp_path: Path, number: int) -> None:
    calls: list[str] = []

    def full(cell: Cell, relief: int) -> Any:
        if len(calls) == 3:
            raise OSError(number, os.strerror(number))
        return do(cell, relief)

    with pytest.raises(InputError, match=f"cannot be written: {os.strerror(number)}.*the same command goes on"):
        run(tmp_path, work=counting(calls, full))
    assert [record["status"] for record in read_cells(tmp_path).values()] == ["done", "done"]
    assert run(tmp_path).done == 4
    assert table(tmp_path) == expected(6)


def test_a_file_that_a_cell_misses_fails_that_cell_alone(tmp_path: Path) -> None:
    def lacking(cell: Cell, relief: int) -> Any:
        if cell.key == "q002":
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), "input.txt")
        return do(cell, relief)

    result = run(tmp_path, work=lacking)
    assert (result.done, [key for key, _ in result.failed]) == (5, ["q002"])


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("questions_sha256", r"the questions, their order, their form \(layout, markers, template\) or their answers"),
        ("weights_sample_sha256", "the model's weights or their dtype"),
        ("tokenizer_sha256", "the tokenizer's vocabulary or chat template"),
    ],
)
def test_settings_known_by_a_hash_are_named_in_words(tmp_path: Path, name: str, words: str) -> None:
    run(tmp_path, config={"model": {name: "e5e0"}})
    with pytest.raises(InputError, match=rf"other settings: {words} differ \(model\.{name}\)\. Give another"):
        run(tmp_path, config={"model": {name: "5aeb"}})


def test_processes_share_the_cells_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    results = []
    for number in range(4):
        as_process(monkeypatch, number, 4)
        results.append(run(tmp_path, 11, counting(calls)))
    assert sorted(calls) == [cell.key for cell in cells(11)]
    assert [result.complete for result in results] == [False, False, False, True]
    assert sorted(path.name for path in tmp_path.glob("cells-*")) == [f"cells-{i}.jsonl" for i in range(4)]
    assert table(tmp_path) == expected(11)
    monkeypatch.undo()
    assert run(tmp_path, 11).skipped == 11


def test_any_number_of_processes_goes_on_from_any_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def until_third(cell: Cell, relief: int) -> dict[str, Any]:
        if len(own) == 2:
            raise SystemExit
        own.append(cell.key)
        return do(cell, relief)

    calls: list[str] = []
    for process in range(3):
        own: list[str] = []
        as_process(monkeypatch, process, 3)
        with pytest.raises(SystemExit):
            run(tmp_path, 12, until_third)
        calls += own
    assert sorted(read_cells(tmp_path)) == sorted(calls)
    assert len(calls) == 6
    for process in range(2):
        as_process(monkeypatch, process, 2)
        run(tmp_path, 12, counting(calls))
    assert sorted(calls) == [cell.key for cell in cells(12)]
    assert table(tmp_path) == expected(12)


COSTS = st.lists(st.tuples(st.floats(0, 1e6), st.integers(0, 3)), max_size=40)


@FAST
@given(COSTS, st.integers(1, 6))
def test_the_deal_is_whole_fair_and_ordered(given_cells: list[tuple[float, int]], n: int) -> None:
    some = [Cell(str(i), cost, None, group) for i, (cost, group) in enumerate(given_cells)]
    hands = deal(some, n)
    assert sorted(cell.key for hand in hands for cell in hand) == sorted(cell.key for cell in some)
    assert hands == deal(some, n)
    for hand in hands:
        order = [(cell.group, -cell.cost) for cell in hand]
        assert order == sorted(order)
    loads = [math.fsum(cell.cost for cell in hand) for hand in hands]
    # Greedy: no process is ahead of another by more than its own shortest cell.
    for hand, load in zip(hands, loads, strict=True):
        shortest = min((cell.cost for cell in hand), default=0.0)
        assert load - shortest <= min(loads) + 1e-6


def test_cells_without_cost_are_spread_evenly() -> None:
    assert [len(hand) for hand in deal([Cell(str(i), 0.0, None) for i in range(9)], 3)] == [3, 3, 3]


def test_this_process() -> None:
    assert this_process({}) == (0, 1)
    assert this_process({"RANK": "1"}) == (0, 1)
    assert this_process({"RANK": "1", "WORLD_SIZE": "4"}) == (1, 4)
    assert this_process({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}) == (0, 2)
    assert this_process({"PMI_RANK": "1", "PMI_SIZE": "2"}) == (1, 2)
    for number in ("4", "-1", "x"):
        with pytest.raises(InputError, match='RANK="'):
            this_process({"RANK": number, "WORLD_SIZE": "4"})


def test_own_device(monkeypatch: pytest.MonkeyPatch) -> None:
    launched = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "3"}
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    assert own_device(launched) == "cuda:1"
    assert own_device({**launched, "WORLD_SIZE": "1", "RANK": "0"}) is None
    assert own_device({}) is None
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    assert own_device(launched) is None


def test_it_says_what_is_left(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def failing(cell: Cell, relief: int) -> dict[str, Any]:
        if cell.key == "q0":
            raise InputError("too long")
        if cell.key == "q2":
            raise KeyboardInterrupt
        return {}

    some = [Cell(f"q{i}", 1.0, None) for i in range(4)]
    with pytest.raises(KeyboardInterrupt):
        run_cells(tmp_path, CONFIG, some, failing, quiet=False)
    assert capsys.readouterr().err.splitlines() == ["4 cells to do", "q0 failed: InputError: too long"]
    run_cells(tmp_path, CONFIG, some, lambda cell, relief: {}, quiet=False)
    first, last = capsys.readouterr().err.splitlines()
    assert first == ("2 cells to do, 1 done before, 1 failed before and left alone (--retry-failed tries them again)")
    assert last.startswith("2 cells done in ")
    run_cells(tmp_path, CONFIG, some, lambda cell, relief: {}, quiet=False, retry_failed=True)
    assert capsys.readouterr().err.startswith("1 cell to do, 3 done before\n")


class Clock:
    """Time that only work takes."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


def test_time_left_goes_by_cost_and_knows_earlier_sittings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(grid.time, "monotonic", clock.monotonic)
    shown: list[tuple[float, float, str]] = []

    @contextmanager
    def bar(text: str, total: float, quiet: bool, spent: float) -> Iterator[Any]:
        begin = clock.now
        yield lambda done, note: shown.append((done, total, terminal.time_left(done, total, spent + clock.now - begin)))

    monkeypatch.setattr(grid, "work_bar", bar)
    some = [Cell("a", 6.0, None), Cell("b", 3.0, None), Cell("c", 1.0, None)]

    def work(cell: Cell, relief: int) -> dict[str, Any]:
        if stop == cell.key:
            raise KeyboardInterrupt
        clock.now += 10 * cell.cost
        return {}

    stop = "b"
    with pytest.raises(KeyboardInterrupt):
        run_cells(tmp_path, CONFIG, some, work, quiet=True)
    assert shown == [(0.0, 10.0, ""), (6.0, 10.0, "about 40 s left")]
    shown.clear()
    stop = ""
    run_cells(tmp_path, CONFIG, some, work, quiet=True)
    assert shown == [
        (6.0, 10.0, "about 40 s left"),
        (9.0, 10.0, "about 10 s left"),
        (10.0, 10.0, "about 0.0 s left"),
    ]


def test_progress_without_a_terminal_is_a_line_a_minute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = Clock()
    monkeypatch.setattr(grid.time, "monotonic", clock.monotonic)

    def work(cell: Cell, relief: int) -> dict[str, Any]:
        clock.now += 40
        return {}

    some = [Cell(str(i), 1.0, None) for i in range(5)]
    run_cells(tmp_path, CONFIG, some, work, quiet=False)
    assert capsys.readouterr().err.splitlines() == [
        "5 cells to do",
        "2 of 5 cells, about 2 min 00 s left",
        "4 of 5 cells, about 40 s left",
        "5 cells done in 3 min 20 s, 0 failed",
    ]


def test_the_helper_program_runs_the_same_grid(tmp_path: Path) -> None:
    assert grid_jobs.run(tmp_path / "grid", 4).done == 4
    assert table(tmp_path / "grid") == expected(4)


def test_results_that_rounding_tells_apart_are_the_same(tmp_path: Path) -> None:
    first = {"key": "a", "status": "done", "result": {"x": [0.1, 2.0], "n": 3}}
    close = {"key": "a", "status": "done", "result": {"x": [0.1 + 1e-7, 2.0], "n": 3}}
    far = {"key": "a", "status": "done", "result": {"x": [0.11, 2.0], "n": 3}}
    assert joined([(tmp_path / "1", first), (tmp_path / "2", close)]) == {"a": first}
    with pytest.raises(InputError, match="another one in"):
        joined([(tmp_path / "1", first), (tmp_path / "2", far)])
