from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from attnprobe_kernels.backends import interpreted


@pytest.fixture
def triton_ready() -> Iterator[None]:
    """Skip without Triton; mend the interpreter of Triton 3.6, which new numpy versions break."""
    triton = pytest.importorskip("triton")
    if not torch.cuda.is_available() and not interpreted():
        pytest.skip("no GPU, and TRITON_INTERPRET is not set")
    from triton.runtime import interpreter

    original = interpreter._patch_lang_tensor

    def patched(tensor: Any, scope: Any) -> None:
        original(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.squeeze()))

    if tuple(int(x) for x in triton.__version__.split(".")[:2]) < (3, 7):
        interpreter._patch_lang_tensor = patched
    yield
    interpreter._patch_lang_tensor = original


@pytest.fixture
def poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fresh float memory is nan, fresh integers are absurd: nobody may read what nobody wrote."""
    real = torch.empty

    def empty(*args: Any, **kwargs: Any) -> torch.Tensor:
        made = real(*args, **kwargs)
        return made.fill_(float("nan") if made.is_floating_point() else -(2**30))

    monkeypatch.setattr(torch, "empty", empty)
