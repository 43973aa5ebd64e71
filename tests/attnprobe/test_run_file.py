from __future__ import annotations

import json
import os
import struct
import time
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from runs import make_run
from safetensors.numpy import load, save

from attnprobe import run_file
from attnprobe.errors import InputError, RunFileError
from attnprobe.run import Run, check_run


def assert_same(a: Run, b: Run) -> None:
    for field in fields(Run):
        x, y = getattr(a, field.name), getattr(b, field.name)
        if isinstance(x, np.ndarray):
            assert isinstance(y, np.ndarray)
            assert (x.dtype, x.shape, x.tobytes()) == (y.dtype, y.shape, y.tobytes()), field.name
        else:
            assert type(x) is type(y), field.name
            assert x == y, field.name


def split(data: bytes) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The JSON entry and the tensors of a run file."""
    (n,) = struct.unpack("<Q", data[:8])
    return json.loads(json.loads(data[8 : 8 + n])["__metadata__"]["attnprobe"]), load(data)


def write_parts(path: Path, entry: Any, tensors: dict[str, np.ndarray]) -> Path:
    text = entry if isinstance(entry, str) else json.dumps(entry)
    path.write_bytes(save({k: np.ascontiguousarray(v) for k, v in tensors.items()}, {"attnprobe": text}))
    return path


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "run.safetensors"
    make_run(1).save(path)
    return path


@pytest.mark.parametrize("keep_rows", [True, False])
@pytest.mark.parametrize("learned_sink", [True, False])
@pytest.mark.parametrize("rows", ["predicting", "answer"])
def test_round_trip_is_bit_equal(tmp_path: Path, keep_rows: bool, learned_sink: bool, rows: str) -> None:
    run = make_run(
        2,
        names=("Straße.md", "文書 👩‍👩‍👧", 'a"b\\c\n', "\u202eحق", "cafe\u0301"),
        document_tokens=(2, 0, 3, 1, 7),
        layers=(3, 7),
        keep_rows=keep_rows,
        learned_sink=learned_sink,
        rows=rows,
        prompt_text='quote " slash \\ \r\n 😀 e\u0301',
        answer="四十七 days\u2028",
        prompt_id=None,
        warnings=(),
        residual=1.2345678901234567e-8,
        manifest={"ключ": [1, 2.5, None, True, {"x": "y"}], "big": 2**70},
    )
    path = tmp_path / "r.safetensors"
    run.save(path)
    assert_same(Run.load(path), run)
    assert_same(Run.load(str(path)), run)


def test_runs_of_the_second_schema_are_still_read(tmp_path: Path) -> None:
    newer = {"token_chars", "key_mass", "key_token", "prompt_mass", "prompt_edges"}
    run = replace(make_run(11, extras=True), **dict.fromkeys(newer))
    path = tmp_path / "r.safetensors"
    run.save(path)
    entry, tensors = split(path.read_bytes())
    assert entry.pop("prompt_edges") is None
    write_parts(path, {**entry, "schema": 2}, tensors)
    assert_same(Run.load(path), run)
    write_parts(path, {**entry, "schema": 3}, tensors)
    with pytest.raises(RunFileError, match='field "prompt_edges" is missing'):
        Run.load(path)


@pytest.mark.parametrize("keep_rows", [True, False])
def test_extras_make_the_round_trip(tmp_path: Path, keep_rows: bool) -> None:
    run = make_run(11, extras=True, keep_rows=keep_rows, learned_sink=True, secondary=(8,), windows=(None, 9))
    assert (run.top_mass is None) != keep_rows
    path = tmp_path / "r.safetensors"
    run.save(path)
    assert_same(Run.load(path), run)
    entry, tensors = split(path.read_bytes())
    write_parts(path, {**entry, "distance_edges": [0.0, *entry["distance_edges"][1:]]}, tensors)
    with pytest.raises(RunFileError, match="distance_edges is"):
        Run.load(path)
    write_parts(path, {**entry, "prompt_edges": [0.0, *entry["prompt_edges"][1:]]}, tensors)
    with pytest.raises(RunFileError, match="prompt_edges is"):
        Run.load(path)
    del tensors["column_mass"]
    write_parts(path, entry, tensors)
    with pytest.raises(RunFileError, match='"column_mass" is missing'):
        Run.load(path)


def test_files_of_the_first_schema_are_still_read(saved: Path) -> None:
    entry, tensors = split(saved.read_bytes())
    assert entry["schema"] == 3
    newer = ("extras", "distance_edges", "prompt_edges")
    older = {key: value for key, value in entry.items() if key not in newer} | {"schema": 1}
    write_parts(saved, older, tensors)
    assert_same(Run.load(saved), make_run(1))
    write_parts(saved, {**older, "extras": []}, tensors)
    with pytest.raises(RunFileError, match='field "extras" is unknown'):
        Run.load(saved)


def test_saving_a_loaded_run_gives_the_same_bytes(saved: Path, tmp_path: Path) -> None:
    again = tmp_path / "again.safetensors"
    Run.load(saved).save(again)
    assert again.read_bytes() == saved.read_bytes()


def test_lone_surrogates_survive(tmp_path: Path) -> None:
    path = tmp_path / "r.safetensors"
    make_run(answer="\ud83d").save(path)
    assert Run.load(path).answer == "\ud83d"


def test_non_contiguous_arrays_are_saved_as_they_read(tmp_path: Path) -> None:
    run = make_run(3)
    turned = replace(run, row_mass=np.asfortranarray(run.row_mass), visible=np.asfortranarray(run.visible))
    turned.save(tmp_path / "r.safetensors")
    assert_same(Run.load(tmp_path / "r.safetensors"), run)


def test_size_is_what_the_documentation_states(tmp_path: Path) -> None:
    run = make_run(4, layers=(0, 1, 2, 3), n_heads=8, n_answer=20, document_tokens=(30,) * 6)
    n_layers, n_heads, n_rows, n_spans = 4, 8, 20, len(run.spans)
    numbers = 4 * n_layers * n_spans * (n_heads + n_rows)
    with_rows = numbers + 4 * n_layers * n_heads * n_rows * (n_spans + 1)
    path = tmp_path / "r.safetensors"
    run.save(path)
    assert 0 < path.stat().st_size - with_rows < 10_000
    replace(run, row_mass=None, row_total=None).save(path)
    assert 0 < path.stat().st_size - numbers < 10_000


def test_saving_replaces_and_leaves_nothing_else(saved: Path) -> None:
    make_run(5).save(saved)
    assert_same(Run.load(saved), make_run(5))
    assert [entry.name for entry in saved.parent.iterdir()] == ["run.safetensors"]


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_failed_save_keeps_the_old_file(saved: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    before = saved.read_bytes()

    def fail(*args: Any, **kwargs: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(run_file.os, step, fail)
    with pytest.raises(OSError, match="No space left"):
        make_run(6).save(saved)
    monkeypatch.undo()
    assert saved.read_bytes() == before
    assert [entry.name for entry in saved.parent.iterdir()] == ["run.safetensors"]


def test_the_old_file_is_whole_until_the_new_one_is_on_disk(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, seen = saved.read_bytes(), []
    replace_file = os.replace

    def spy(source: Path, target: Path) -> None:
        seen.append((source.parent == target.parent, target.read_bytes() == before, source.read_bytes()))
        replace_file(source, target)

    monkeypatch.setattr(run_file.os, "replace", spy)
    make_run(7).save(saved)
    assert seen == [(True, True, saved.read_bytes())]


def test_a_saved_file_has_ordinary_permissions(saved: Path) -> None:
    plain = saved.parent / "plain"
    plain.touch()
    assert saved.stat().st_mode == plain.stat().st_mode


def test_bad_targets_are_named(tmp_path: Path) -> None:
    run = make_run()
    with pytest.raises(InputError, match=r'run\.bin: a run file\'s name must end in "\.safetensors"'):
        run.save(tmp_path / "run.bin")
    with pytest.raises(InputError, match=r"the folder .*missing does not exist"):
        run.save(tmp_path / "missing" / "r.safetensors")
    (tmp_path / "folder.safetensors").mkdir()
    with pytest.raises(InputError, match="this is a folder"):
        run.save(tmp_path / "folder.safetensors")
    with pytest.raises(InputError, match="this is a folder"):
        Run.load(tmp_path / "folder.safetensors")
    with pytest.raises(InputError, match=r"absent\.safetensors: no such file"):
        Run.load(tmp_path / "absent.safetensors")
    with pytest.raises(InputError, match="must end in"):
        Run.load(tmp_path / "run.pt")


def test_too_long_a_header_is_refused_when_saving(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = saved.read_bytes()
    monkeypatch.setattr(run_file, "MAX_HEADER", 2000)
    with pytest.raises(InputError, match="the format allows 2000"):
        make_run(prompt_text="x" * 3000).save(saved)
    assert saved.read_bytes() == before


def headed(n: int, rest: bytes) -> bytes:
    return struct.pack("<Q", n) + rest


def described(header: dict[str, Any]) -> bytes:
    text = json.dumps(header).encode()
    return headed(len(text), text + b"\0" * 8)


def header_length(data: bytes) -> int:
    return int.from_bytes(data[:8], "little")


HUGE_SHAPE = {"mass": {"dtype": "F32", "shape": [2**40, 2**40], "data_offsets": [0, 8]}}
HUGE_OFFSET = {"mass": {"dtype": "F32", "shape": [2**58], "data_offsets": [0, 2**60]}}
OVERLAPPING = {
    "mass": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
    "visible": {"dtype": "I32", "shape": [2], "data_offsets": [0, 8]},
}
DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "five": lambda data: data[:5],
    "eight": lambda data: data[:8],
    "half-header": lambda data: data[: 8 + header_length(data) // 2],
    "half": lambda data: data[: len(data) // 2],
    "last-byte": lambda data: data[:-1],
    "one-more": lambda data: data + b"\0",
    "length-0": lambda data: headed(0, data[8:]),
    "length-1": lambda data: headed(header_length(data) - 1, data[8:]),
    "length+1": lambda data: headed(header_length(data) + 1, data[8:]),
    "length-max": lambda data: headed(2**64 - 1, data[8:]),
    "length-to-end": lambda data: headed(len(data) - 8, data[8:]),
    "text": lambda data: b'{"id": 1, "documents": []}\n' * 20,
    "zeros": lambda data: b"\0" * 5000,
    "deep": lambda data: headed(200_000, b'{"a":' * 40_000),
    "huge-shape": lambda data: described(HUGE_SHAPE),
    "huge-offset": lambda data: described(HUGE_OFFSET),
    "overlapping": lambda data: described(OVERLAPPING),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damaged_files_are_refused_by_name(saved: Path, name: str) -> None:
    saved.write_bytes(DAMAGE[name](saved.read_bytes()))
    start = time.perf_counter()
    with pytest.raises(RunFileError, match=r"run\.safetensors: "):
        Run.load(saved)
    assert time.perf_counter() - start < 5


def test_other_safetensors_files_are_not_runs(saved: Path) -> None:
    for metadata in (None, {"format": "pt"}):
        saved.write_bytes(save({"w": np.zeros((2, 2), np.float32)}, metadata))
        with pytest.raises(RunFileError, match="not an attnprobe run"):
            Run.load(saved)


def test_a_newer_schema_asks_for_an_upgrade(saved: Path) -> None:
    entry, tensors = split(saved.read_bytes())
    write_parts(saved, {"schema": 7, "anything": "else"}, tensors)
    with pytest.raises(RunFileError, match=r"newer attnprobe \(schema 7; this version reads up to 3\): upgrade"):
        Run.load(saved)
    write_parts(saved, {**entry, "schema": 0}, tensors)
    with pytest.raises(RunFileError, match="schema 0 does not exist"):
        Run.load(saved)


ENTRIES: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "not-json": (lambda e: "{", "not valid JSON"),
    "nan": (lambda e: json.dumps({**e, "residual": float("nan")}), "not valid JSON"),
    "deep-json": (lambda e: "[" * 100_000, "not valid JSON"),
    "long-int": (lambda e: '{"schema": ' + "9" * 5000 + "}", "not valid JSON"),
    "list": (lambda e: [1], "no schema number"),
    "no-schema": (lambda e: {k: v for k, v in e.items() if k != "schema"}, "no schema number"),
    "bool-schema": (lambda e: {**e, "schema": True}, "no schema number"),
    "missing": (lambda e: {k: v for k, v in e.items() if k != "rows"}, 'field "rows" is missing'),
    "unknown": (lambda e: {**e, "colour": 1}, 'field "colour" is unknown'),
    "type-int": (lambda e: {**e, "n_prompt": "9"}, 'field "n_prompt" has the wrong type str'),
    "type-bool": (lambda e: {**e, "n_prompt": True}, 'field "n_prompt" has the wrong type bool'),
    "type-list": (lambda e: {**e, "token_ids": {}}, 'field "token_ids" has the wrong type dict'),
    "type-float": (lambda e: {**e, "residual": None}, 'field "residual" has the wrong type'),
    "ids-nested": (lambda e: {**e, "token_ids": [[1]]}, "token_ids must be"),
    "ids-text": (lambda e: {**e, "token_ids": ["a"]}, "token_ids must be"),
    "layers-text": (lambda e: {**e, "layers": ["a", "b"]}, "layers must be"),
    "warnings-int": (lambda e: {**e, "warnings": [1]}, "warnings must be"),
    "span-list": (lambda e: {**e, "spans": [[1]]}, "span 0 must be an object"),
    "span-key": (lambda e: {**e, "spans": [{"kind": "sink"}]}, "span 0 must be an object"),
    "span-segments": (lambda e: with_span(e, 0, segments=[3]), "segments must be a list"),
    "span-triple": (lambda e: with_span(e, 0, segments=[[0, 1, 2]]), "segments must be"),
    "span-kind": (lambda e: with_span(e, 0, kind=["sink"]), "is unknown"),
    "span-gap": (lambda e: with_span(e, 0, segments=[]), "belong to no span"),
    "span-huge": (lambda e: with_span(e, 0, segments=[[0, 10**30]]), "overlaps|spans cover"),
    "extras-missing": (lambda e: {k: v for k, v in e.items() if k != "extras"}, 'field "extras" is missing'),
    "extras-type": (lambda e: {**e, "extras": {}}, 'field "extras" has the wrong type dict'),
    "extras-unknown": (lambda e: {**e, "extras": ["mass"]}, "extras\" names 'mass'"),
    "extras-nested": (lambda e: {**e, "extras": [["top_mass"]]}, 'extras" names'),
    "extras-absent": (lambda e: {**e, "extras": ["top_mass"]}, 'tensor "top_mass" is missing'),
    "edges-alone": (lambda e: {**e, "distance_edges": [0, 1]}, "distance_mass and distance_edges are kept together"),
    "blocks-alone": (lambda e: {**e, "prompt_edges": [0, 1]}, "prompt_mass and prompt_edges are kept together"),
    "edges-type": (lambda e: {**e, "distance_edges": "0"}, 'field "distance_edges" has the wrong type str'),
    "rows-not-kept": (lambda e: {**e, "rows_kept": False}, 'tensor "row_mass" does not belong'),
}


def with_span(entry: dict[str, Any], i: int, **changes: Any) -> dict[str, Any]:
    spans = [dict(span) for span in entry["spans"]]
    spans[i].update(changes)
    return {**entry, "spans": spans}


@pytest.mark.parametrize("case", ENTRIES)
def test_wrong_entries_are_refused(saved: Path, case: str) -> None:
    entry, tensors = split(saved.read_bytes())
    change, message = ENTRIES[case]
    write_parts(saved, change(entry), tensors)
    with pytest.raises(RunFileError, match=message) as caught:
        Run.load(saved)
    assert str(saved) in str(caught.value)


def put(array: np.ndarray, value: float) -> np.ndarray:
    copy = array.copy()
    copy.flat[0] = value
    return copy


TENSORS: dict[str, tuple[Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]], str]] = {
    "missing": (lambda t: {k: v for k, v in t.items() if k != "mass"}, 'tensor "mass" is missing'),
    "row-missing": (lambda t: {k: v for k, v in t.items() if k != "row_total"}, '"row_total" is missing'),
    "extra": (lambda t: {**t, "extra": np.zeros(1, np.float32)}, 'tensor "extra" does not belong'),
    "dtype": (lambda t: {**t, "mass": t["mass"].astype(np.float64)}, 'tensor "mass" is F64; expected F32'),
    "half": (lambda t: {**t, "mass": t["mass"].astype(np.float16)}, 'tensor "mass" is F16'),
    "shape": (lambda t: {**t, "mass": t["mass"][:, :, :-1]}, "mass has shape"),
    "rank": (lambda t: {**t, "mass": t["mass"].reshape(-1)}, "mass must be an array"),
    "zero-size": (lambda t: {**t, "visible": t["visible"][:, :0]}, "at least one head and one row"),
    "nan": (lambda t: {**t, "row_mass": put(t["row_mass"], np.nan)}, "not finite"),
    "negative": (lambda t: {**t, "row_mass": put(t["row_mass"], -0.5)}, "negative mass"),
    "sum": (lambda t: {**t, "row_mass": t["row_mass"] * np.float32(1.001)}, "does not sum to 1"),
    "visible": (lambda t: {**t, "visible": put(t["visible"], 2**31 - 1)}, "visible counts more tokens"),
}


@pytest.mark.parametrize("case", TENSORS)
def test_wrong_tensors_are_refused(saved: Path, case: str) -> None:
    entry, tensors = split(saved.read_bytes())
    change, message = TENSORS[case]
    write_parts(saved, entry, change(tensors))
    with pytest.raises(RunFileError, match=message) as caught:
        Run.load(saved)
    assert str(saved) in str(caught.value)


def assert_refused_or_valid(path: Path) -> None:
    try:
        run = Run.load(path)
    except RunFileError as error:
        refusal = str(error)
        assert str(path) in refusal
    else:
        check_run(run)


FUZZ = settings(
    max_examples=200,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@FUZZ
@given(data=st.data())
def test_random_damage_raises_only_run_file_errors(tmp_path: Path, data: st.DataObject) -> None:
    path = tmp_path / "fuzz.safetensors"
    make_run(8, learned_sink=True, document_tokens=(1, 2), n_heads=1).save(path)
    content = bytearray(path.read_bytes())
    header = 8 + header_length(bytes(content))
    # Most of the structure is in the header, so half the flips go there.
    where = st.one_of(st.integers(0, header - 1), st.integers(0, len(content) - 1))
    for position, value in data.draw(st.lists(st.tuples(where, st.integers(0, 255)), max_size=4)):
        content[position] = value
    stop = data.draw(st.one_of(st.just(len(content)), st.integers(0, len(content))))
    path.write_bytes(bytes(content[:stop]))
    assert_refused_or_valid(path)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 2**70) | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)


@FUZZ
@given(data=st.data())
def test_random_entries_raise_only_run_file_errors(tmp_path: Path, data: st.DataObject) -> None:
    path = tmp_path / "fuzz.safetensors"
    make_run(9, document_tokens=(1, 2), n_heads=1).save(path)
    entry, tensors = split(path.read_bytes())
    place: Any = entry
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        key = data.draw(st.sampled_from(keys))
        if isinstance(place[key], dict | list) and len(place[key]) and data.draw(st.booleans()):
            place = place[key]
            continue
        place[key] = data.draw(JSON_VALUES)
        break
    write_parts(path, entry, tensors)
    assert_refused_or_valid(path)
