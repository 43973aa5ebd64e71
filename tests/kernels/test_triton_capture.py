"""Whole measurements through the Triton kernels: the same masses as in plain torch."""

from __future__ import annotations

import pytest
import torch
from tiny_models import tiny_model

from attnprobe.capture import Capture
from attnprobe.decoding import generate, left_pad
from attnprobe.row_block import SampleSpans

PROMPTS = ([5, 9, 31, 7, 2, 60, 44, 8, 13, 70, 21, 33], [17, 3, 88, 41, 6, 52])
SPANS = (((0, 1),), ((1, 3), (5, 6)), ((3, 5),), ())


@pytest.mark.usefixtures("triton_ready")
@pytest.mark.parametrize("name", ["llama", "mistral", "gemma2", "gpt_oss", "llama4", "deepseek_v3"])
@pytest.mark.parametrize("mode", ["deferred", "live"])
def test_triton_gives_what_torch_gives(name, mode):
    model = tiny_model(name)
    batch = left_pad(PROMPTS, 0, torch.device("cpu"))
    samples = [
        SampleSpans(pad, len(prompt), (*SPANS, ((6, len(prompt)),)))
        for pad, prompt in zip(batch.pads, PROMPTS, strict=True)
    ]
    found = {}
    for backend in ("triton", "chunked"):
        with Capture(model, samples, batch.ids.shape[1] - 1, mode, backend) as capture:
            tokens = generate(model, batch, max_new_tokens=3, pad_id=0).tokens
            found[backend] = capture.finish(3), tokens
    assert torch.equal(found["triton"][1], found["chunked"][1])
    for a, b in zip(found["triton"][0], found["chunked"][0], strict=True):
        torch.testing.assert_close(torch.softmax(a.lse, -1), torch.softmax(b.lse, -1), atol=1e-5, rtol=0)
        assert (a.visible == b.visible).all()
        assert max(a.residual.max(), b.residual.max()) < 1e-5
