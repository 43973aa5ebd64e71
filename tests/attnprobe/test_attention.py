"""One global is touched, and it is always restored."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import torch
from tiny_models import tiny_model
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, AttentionInterface

import attnprobe as ap
from attnprobe import attention
from attnprobe.architecture import attention_layers
from attnprobe.attention import eager_function, observed, uses_attention_interface
from attnprobe.capture import Capture
from attnprobe.row_block import SampleSpans

IDS = torch.arange(2, 22)[None]


def n_hooks(model: torch.nn.Module) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


def assert_untouched(model: torch.nn.Module) -> None:
    assert ALL_ATTENTION_FUNCTIONS._local_mapping == {}
    assert not attention._observers
    assert not attention._dispatchers
    assert n_hooks(model) == 0


def capture_of(model: Any) -> Capture:
    return Capture(model, [SampleSpans(0, 20, (((0, 20),),))], 18, "live")


def test_restored_after_a_measurement(make_lm: Any, prompts: list[ap.Prompt]) -> None:
    lm = make_lm()
    before = lm.model(IDS).logits
    ap.measure(lm, prompts[0], max_new_tokens=3)
    assert_untouched(lm.model)
    assert torch.equal(lm.model(IDS).logits, before)


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, MemoryError])
@pytest.mark.parametrize("family", ["llama", "bloom"])
@pytest.mark.parametrize("forced", [False, True], ids=["generated", "forced"])
def test_restored_after_an_exception_in_the_middle(
    make_lm: Any, prompts: list[ap.Prompt], error: type[BaseException], family: str, forced: bool
) -> None:
    lm = make_lm(family)
    before = lm.model(IDS).logits
    implementation = lm.model.config._attn_implementation

    def stop(module: Any, args: Any) -> None:
        raise error

    layers = [m for m in lm.model.modules() if type(m).__name__.endswith("MLP")]
    hook = layers[1].register_forward_pre_hook(stop)
    with pytest.raises(error):
        ap.measure(lm, prompts[0], max_new_tokens=3, answer="47" if forced else None)
    hook.remove()
    assert_untouched(lm.model)
    assert lm.model.config._attn_implementation == implementation
    assert torch.equal(lm.model(IDS).logits, before)


def test_interrupt_while_decoding(make_lm: Any, prompts: list[ap.Prompt]) -> None:
    lm = make_lm()

    def interrupt(stage: str, done: int, total: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ap.measure(lm, prompts[0], max_new_tokens=5, progress=interrupt)
    assert_untouched(lm.model)


def test_nested_captures_of_two_models() -> None:
    outer, inner = tiny_model("llama"), tiny_model("qwen2", seed=5)
    alone = []
    for model in (outer, inner):
        with capture_of(model) as capture, torch.no_grad():
            model(IDS)
            alone.append(capture.finish(2))
    with torch.no_grad(), capture_of(outer) as first:
        with capture_of(inner) as second:
            outer(IDS)
            inner(IDS)
            nested_inner = second.finish(2)
        assert "sdpa" in ALL_ATTENTION_FUNCTIONS._local_mapping
        nested_outer = first.finish(2)
    for wanted, found in zip(alone, (nested_outer, nested_inner), strict=True):
        for a, b in zip(wanted, found, strict=True):
            assert torch.equal(a.lse, b.lse)
    assert_untouched(outer)
    assert_untouched(inner)


def test_a_measurement_inside_another_of_the_same_model_is_named() -> None:
    model = tiny_model("llama")
    named = pytest.raises(ap.CaptureError, match="another measurement inside this one")
    with torch.no_grad(), capture_of(model), capture_of(model), named:
        model(IDS)
    assert_untouched(model)
    with torch.no_grad(), capture_of(model) as capture:
        model(IDS)
        assert len(capture.finish(2)) == 3


@pytest.mark.parametrize("same", [True, False], ids=["one model", "two models"])
def test_threads(make_lm: Any, prompts: list[ap.Prompt], same: bool) -> None:
    first = make_lm()
    lms = [first, first if same else make_lm("qwen2", seed=9)]
    alone = [ap.measure(lm, prompts[n], max_new_tokens=6).row_mass for n, lm in enumerate(lms)]
    results: dict[int, Any] = {}
    barrier = threading.Barrier(2)

    def work(number: int) -> None:
        barrier.wait()
        for repeat in range(5):
            results[number, repeat] = ap.measure(lms[number], prompts[number], max_new_tokens=6).row_mass

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 10
    for (number, _), mass in results.items():
        np.testing.assert_allclose(mass, alone[number], atol=1e-6, rtol=0)
    assert_untouched(first.model)


def test_other_model_is_untouched_while_one_is_measured(make_lm: Any) -> None:
    measured, other = tiny_model("llama"), tiny_model("gemma2")
    with torch.no_grad():
        before = other(IDS).logits
        with capture_of(measured) as capture:
            assert torch.equal(other(IDS).logits, before)
            assert set(ALL_ATTENTION_FUNCTIONS._local_mapping) == {"sdpa"}
            assert ALL_ATTENTION_FUNCTIONS.get("eager") is None
            measured(IDS)
            assert len(capture.finish(2)) == 3


def test_eager_dispatch_calls_each_modules_own_function() -> None:
    from transformers.models.llama4.modeling_llama4 import Llama4VisionAttention, vision_eager_attention_forward

    model = tiny_model("gemma2")
    module, _ = attention_layers(model)[0]
    assert eager_function(module).__module__ == type(module).__module__
    vision = Llama4VisionAttention.__new__(Llama4VisionAttention)
    assert uses_attention_interface(vision)
    assert eager_function(vision) is vision_eager_attention_forward


def test_a_local_override_of_another_tool_is_seen_and_put_back() -> None:
    model = tiny_model("llama")
    calls = []
    original = ALL_ATTENTION_FUNCTIONS["sdpa"]

    def theirs(module: Any, *args: Any, **kwargs: Any) -> Any:
        calls.append(module)
        return original(module, *args, **kwargs)

    ALL_ATTENTION_FUNCTIONS["sdpa"] = theirs
    try:
        with torch.no_grad(), capture_of(model) as capture:
            model(IDS)
            assert len(capture.finish(2)) == 3
        assert ALL_ATTENTION_FUNCTIONS._local_mapping == {"sdpa": theirs}
        assert len(calls) == 3
    finally:
        del ALL_ATTENTION_FUNCTIONS["sdpa"]


def test_later_registrations_are_not_hidden() -> None:
    model = tiny_model("llama")
    with observed(model, [m for m, _ in attention_layers(model)], lambda *call: call[4], "sdpa"):
        pass
    original = AttentionInterface._global_mapping["sdpa"]

    def later(*args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError

    AttentionInterface.register("sdpa", later)
    try:
        assert ALL_ATTENTION_FUNCTIONS["sdpa"] is later
    finally:
        AttentionInterface.register("sdpa", original)


def test_training_mode_is_refused() -> None:
    with pytest.raises(ap.CaptureError, match=r"training mode.*model.eval\(\)"):
        capture_of(tiny_model("llama").train())


def test_compiled_models_are_refused() -> None:
    model = tiny_model("llama")
    with pytest.raises(ap.CaptureError, match="compiled"):
        capture_of(torch.compile(model))
    model.model.layers[1].compile()
    with pytest.raises(ap.CaptureError, match="compiled"):
        capture_of(model)


def test_sharded_heads_are_refused() -> None:
    model = tiny_model("llama")
    model._tp_size = 2
    with pytest.raises(ap.CaptureError, match="tensor parallelism"):
        capture_of(model)


def test_a_layer_that_goes_past_the_interface_is_an_error_not_a_partial_result() -> None:
    model = tiny_model("gpt2", "eager", reorder_and_upcast_attn=True)
    with (
        torch.no_grad(),
        capture_of(model),
        pytest.raises(ap.CaptureError, match=r"GPT2Attention \(layer 0\) ran without"),
    ):
        model(IDS)
    assert_untouched(model)


def test_rows_that_never_ran_are_an_error() -> None:
    model = tiny_model("llama")
    with torch.no_grad(), capture_of(model) as capture:
        with pytest.raises(ap.CaptureError, match="no attention layer"):
            capture.finish(1)
        model(IDS)
        with pytest.raises(ap.CaptureError, match="gave 2 of 3 rows"):
            capture.finish(3)


def test_keys_that_no_span_owns_are_an_error() -> None:
    model = tiny_model("llama")
    gap = SampleSpans(0, 20, (((0, 5),), ((6, 20),)))
    with torch.no_grad(), Capture(model, [gap], 18, "live"), pytest.raises(ValueError, match="gap at key 5"):
        model(IDS)
