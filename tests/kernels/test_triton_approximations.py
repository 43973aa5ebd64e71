"""The kernels with arithmetic as coarse as the hardware's, which the interpreter's is not."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from kernel_cases import DEVICE, cut_evenly, draw

from attnprobe_kernels import backends, column_mass, span_lse
from attnprobe_kernels.backends import MAX_SOFTCAP

pytestmark = [
    pytest.mark.usefixtures("triton_ready"),
    pytest.mark.skipif(DEVICE == "cuda", reason="the device has its own"),
]

POWER, RECIPROCAL = 2.0**-22, 2.0**-23
"""Largest relative errors of PTX's ex2.approx and rcp.approx, as its manual gives them."""


@pytest.fixture
def approximate(monkeypatch):
    """Every power and every quotient is off by as much as it may be, up or down by chance."""
    from triton.runtime.interpreter import InterpreterBuilder

    chance = np.random.default_rng(0)

    def off(values, error):
        return (values * (1.0 + chance.choice([-error, error], values.shape))).astype(np.float32)

    with monkeypatch.context() as patch:
        patch.setattr(InterpreterBuilder, "create_exp2", lambda b, x: b.unary_op(x, lambda v: off(np.exp2(v), POWER)))
        patch.setattr(
            InterpreterBuilder, "create_fdiv", lambda b, x, y: b.binary_op(x, y, lambda v, w: off(v / w, RECIPROCAL))
        )
        patch.setattr(backends, "MAX_SOFTCAP", float("inf"))
        yield


def largest_error(softcap):
    """Of masses of single keys and spans, over logits that the softcap hardly bends to ones that it flattens."""
    errors = []
    for seed, spread in enumerate((0.5, 5.0, 50.0)):
        q, k = spread * draw((1, 2, 64, 16), seed), draw((1, 1, 64, 16), seed + 100)
        spans, features = cut_evenly(64, 16), {"softcap": softcap, "q_start": 0}
        lse = span_lse(q, k, spans, backend="naive", **features)
        wanted = torch.softmax(lse, -1)
        found = torch.softmax(span_lse(q, k, spans, backend="triton", **features).double(), -1)
        errors.append(float((found - wanted).abs().max()))
        total = torch.logsumexp(lse, -1).float()
        found, wanted = (column_mass(q, k, total, backend=name, **features) for name in ("triton", "naive"))
        errors.append(float((found - wanted).abs().max()))
    return max(errors)


@pytest.mark.usefixtures("approximate")
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_softcaps_up_to_the_limit_are_within_the_contract():
    assert largest_error(30.0) <= 1e-5
    assert largest_error(MAX_SOFTCAP) <= 1e-5


@pytest.mark.usefixtures("approximate")
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_the_limit_on_softcaps_is_needed():
    assert largest_error(3 * MAX_SOFTCAP) > 1e-5
