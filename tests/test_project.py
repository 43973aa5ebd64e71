"""The shape of the project: what importing, installing and tracking it must and must not do."""

from __future__ import annotations

import ast
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import attnprobe

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = (ROOT / "attnprobe", ROOT / "kernels" / "attnprobe_kernels")


def run_python(code: str, *, cwd: Path = ROOT, path: Path | None = None) -> str:
    """Standard output of a fresh interpreter; ``path`` goes in front of its import path."""
    env = {**os.environ, "HF_HUB_OFFLINE": "1"}
    env.pop("PYTHONPATH", None)
    if path is not None:
        env["PYTHONPATH"] = str(path)
    done = subprocess.run([sys.executable, "-c", code], cwd=cwd, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def accepted_kernels(tmp_path: Path) -> Path:
    """A folder whose metadata make the installed ``kernels`` pass for a release that transformers accepts.

    transformers treats any other release as absent, and would not import it.
    """
    try:
        importlib.metadata.version("kernels")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("the Hugging Face package `kernels` is not installed")
    from transformers.dependency_versions_table import deps

    oldest = re.search(r">=([0-9.]+)", deps["kernels"])
    assert oldest is not None, deps["kernels"]
    metadata = tmp_path / f"kernels-{oldest[1]}.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text(f"Metadata-Version: 2.1\nName: kernels\nVersion: {oldest[1]}\n")
    return tmp_path


def test_models_import_from_the_root_beside_the_kernels_package(accepted_kernels: Path) -> None:
    code = (
        "from transformers.utils import is_kernels_available; assert is_kernels_available()\n"
        "from transformers import LlamaForCausalLM\n"
        "import kernels; print(kernels.__file__)"
    )
    imported = Path(run_python(code, path=accepted_kernels).strip())
    assert ROOT / "kernels" not in imported.parents


def test_kernels_folder_is_no_package() -> None:
    assert (ROOT / "kernels").is_dir()
    assert not (ROOT / "kernels" / "__init__.py").exists()


def test_tests_are_no_packages() -> None:
    assert not list((ROOT / "tests").rglob("__init__.py"))


def test_import_is_light() -> None:
    heavy = ("transformers", "triton", "plotly", "pandas", "duckdb", "typer", "matplotlib")
    code = f"import sys, attnprobe; print([name for name in {heavy} if name in sys.modules])"
    assert run_python(code).strip() == "[]"


def test_wheel_holds_the_two_packages_alone(tmp_path: Path) -> None:
    pytest.importorskip("hatchling", reason="hatchling, which builds the wheel, is not installed")
    source = tmp_path / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for folder in ("attnprobe", "kernels"):
        shutil.copytree(ROOT / folder, source / folder, ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path)]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("attnprobe-*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names if not name.split("/")[0].endswith(".dist-info")}
    assert tops == {"attnprobe", "attnprobe_kernels"}
    for package in PACKAGES:
        for module in package.rglob("*.py"):
            assert module.relative_to(package.parent).as_posix() in names
    assert any(name.endswith("LICENSE") for name in names)


def test_versions_agree() -> None:
    import attnprobe

    declared = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert declared is not None
    assert attnprobe.__version__ == declared[1]


def test_every_public_name_resolves() -> None:
    import attnprobe

    for name in attnprobe.__all__:
        assert getattr(attnprobe, name) is not None


def test_floor_is_the_oldest_release_that_the_project_allows() -> None:
    lower = re.search(r'"transformers>=([0-9.]+)"', (ROOT / "pyproject.toml").read_text())
    floor = re.search(r"^transformers==([0-9.]+)$", (ROOT / "constraints-floor.txt").read_text(), re.MULTILINE)
    assert lower is not None
    assert floor is not None
    assert [*map(int, floor[1].split("."))][:2] == [*map(int, lower[1].split("."))][:2]


@pytest.mark.skipif("ATTNPROBE_FLOOR" not in os.environ, reason="only in `make floor`")
def test_floor_run_uses_the_floor() -> None:
    import transformers

    assert f"transformers=={transformers.__version__}" in (ROOT / "constraints-floor.txt").read_text().split()


def unpickling(tree: ast.Module) -> list[int]:
    """Lines that import pickle or a relative of it, or call ``torch.load``."""
    lines = []
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            names = [f"{node.value.id}.{node.attr}"]
        banned = ("pickle", "cPickle", "cloudpickle", "dill", "joblib", "shelve", "marshal", "torch.load")
        if any(name in banned for name in names):
            lines.append(node.lineno)
    return lines


@pytest.mark.parametrize(
    "line", ["import pickle", "from pickle import loads", "torch.load('x')", "from torch import load"]
)
def test_unpickling_is_recognised(line: str) -> None:
    assert unpickling(ast.parse(line)) == [1]


def test_packages_never_unpickle() -> None:
    for package in PACKAGES:
        for module in package.rglob("*.py"):
            lines = unpickling(ast.parse(module.read_text(encoding="utf-8")))
            assert not lines, f"{module.relative_to(ROOT)}, lines {lines}"


def tracked_files() -> list[Path]:
    """Files under version control, or about to be; without git, everything outside hidden folders."""
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        done = subprocess.run(listing, cwd=ROOT, capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        inside = (file for file in ROOT.rglob("*") if file.is_file())
        return [
            file
            for file in inside
            if not any(part.startswith(".") or part == "__pycache__" for part in file.relative_to(ROOT).parts)
        ]
    return [ROOT / name for name in done.stdout.decode().split("\0") if name and (ROOT / name).is_file()]


# Absolute paths into somebody's own folders, and addresses of machines that only one network knows. The examples
# below are written in pieces, so that this file does not match itself.
PRIVATE = re.compile(
    rb"(?<![\w.~-])/(?:home|Users|root|work|workspace|scratch)/[\w.-]"
    rb"|(?<![\d.])(?:10\.\d{1,3}|192\.168|172\.(?:1[6-9]|2\d|3[01]))\.\d{1,3}\.\d{1,3}(?![\d.])"
    rb"|https?://[\w.-]+\.(?:internal|corp|lan|local)\b"
)


@pytest.mark.parametrize(
    "text",
    ["see /ho" + "me/ann/x", "at 10.1" + ".2.3:80", "http://mirror.cor" + "p/simple", "/wor" + "k/main"],
)
def test_private_text_is_recognised(text: str) -> None:
    assert PRIVATE.search(text.encode())


@pytest.mark.parametrize("text", ["https://github.com/home/x", "version 1.10.0.1.2", "a/work/b", "~/work/b"])
def test_public_text_is_not(text: str) -> None:
    assert not PRIVATE.search(text.encode())


def test_tracked_files_name_no_build_machine() -> None:
    files = tracked_files()
    assert ROOT / "pyproject.toml" in files
    for file in files:
        found = PRIVATE.search(file.read_bytes())
        assert not found, f"{file.relative_to(ROOT)}: {found and found[0]!r}"


def test_no_public_name_is_also_a_module() -> None:
    """Importing a submodule binds its name on the package, and would hide a function of that name."""
    modules = {path.stem for path in (ROOT / "attnprobe").glob("*.py")}
    assert not modules & set(attnprobe._HOME)
