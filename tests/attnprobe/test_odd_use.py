"""Odd ways of using the package: odd options, threads, interrupts. Each gives the plain result or a plain refusal."""

from __future__ import annotations

import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
import torch
from transformers import DynamicCache, GenerationConfig, StoppingCriteria
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

import attnprobe as ap
from attnprobe import attention, fallback
from attnprobe.interrupts import uninterrupted

IDS = torch.arange(4, 24)[None]


def assert_same_run(found: ap.Run, wanted: ap.Run) -> None:
    assert found.answer_ids == wanted.answer_ids
    np.testing.assert_allclose(found.row_mass, wanted.row_mass, atol=1e-5, rtol=0)
    np.testing.assert_allclose(found.answer_logprob, wanted.answer_logprob, atol=1e-4, rtol=0)


class StopAt(StoppingCriteria):
    """Stops a sample once it has written a token; leaves no mark in the tokens."""

    def __init__(self, token: int) -> None:
        self.token = token

    def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> torch.Tensor:
        return input_ids[:, -1] == self.token


ENDS: dict[str, Callable[[int], dict[str, Any]]] = {
    "int": lambda token: {"eos_token_id": token},
    "np.int64": lambda token: {"eos_token_id": np.int64(token)},
    "list": lambda token: {"eos_token_id": [token, 2]},
    "tensor": lambda token: {"eos_token_id": torch.tensor([token])},
    "generation_config": lambda token: {"generation_config": GenerationConfig(eos_token_id=token)},
    "generation_config, list": lambda token: {"generation_config": GenerationConfig(eos_token_id=[token])},
}


@pytest.mark.parametrize("kind", ENDS)
def test_the_end_of_sequence_is_found_however_it_is_given(make_lm: Any, prompts: list[ap.Prompt], kind: str) -> None:
    lm = make_lm()
    free = ap.measure(lm, prompts[0], max_new_tokens=6)
    options = ENDS[kind](free.answer_ids[3])
    cut = free.answer_ids[: free.answer_ids.index(free.answer_ids[3])]
    singles = [ap.measure(lm, prompt, max_new_tokens=6, **options) for prompt in prompts]
    assert singles[0].answer_ids == cut
    batched = ap.measure_many(lm, prompts, batch_size=3, max_new_tokens=6, **options)
    for run, single in zip(batched, singles, strict=True):
        assert_same_run(run, single)


@pytest.mark.parametrize("kind", ["int", "tensor", "list"])
def test_the_end_of_sequence_of_the_models_own_config(make_lm: Any, prompts: list[ap.Prompt], kind: str) -> None:
    lm = make_lm()
    free = ap.measure(lm, prompts[0], max_new_tokens=6)
    lm.model.generation_config.eos_token_id = ENDS[kind](free.answer_ids[3])["eos_token_id"]
    cut = free.answer_ids[: free.answer_ids.index(free.answer_ids[3])]
    assert ap.measure(lm, prompts[0], max_new_tokens=6).answer_ids == cut


def test_stopping_criteria_stop_each_prompt_of_a_batch_by_itself(make_lm: Any, prompts: list[ap.Prompt]) -> None:
    lm = make_lm()
    free = ap.measure(lm, prompts[0], max_new_tokens=6)
    token = free.answer_ids[2]
    for options in (
        {"stopping_criteria": [StopAt(token)]},
        {"stop_strings": [lm.tokenizer.decode([token])], "tokenizer": lm.tokenizer},
    ):
        singles = [ap.measure(lm, prompt, max_new_tokens=6, **options) for prompt in prompts]
        assert "stop_strings" in options or len(singles[0].answer_ids) <= 3
        batched = ap.measure_many(lm, prompts, batch_size=3, max_new_tokens=6, **options)
        for run, single in zip(batched, singles, strict=True):
            assert_same_run(run, single)


OWN_ROWS: dict[str, Callable[[ap.Run], dict[str, Any]]] = {
    "end of sequence at once": lambda free: {"eos_token_id": free.answer_ids[0]},
    "end of sequence": lambda free: {"eos_token_id": free.answer_ids[3]},
    "end of sequence counts": lambda free: {"eos_token_id": free.answer_ids[3], "include_eos": True},
    "stopping criterion": lambda free: {"stopping_criteria": [StopAt(free.answer_ids[2])]},
    "out of time": lambda free: {"max_time": 1e-9},
    "forced last token": lambda free: {"forced_eos_token_id": 7},
}


@pytest.mark.parametrize("kind", OWN_ROWS)
@pytest.mark.parametrize("family", ["llama", "mistral", "bloom"])
def test_own_rows_are_those_of_the_forced_run(make_lm: Any, prompts: list[ap.Prompt], kind: str, family: str) -> None:
    """The last token's own row needs one more step, whatever ended the answer."""
    lm = make_lm(family)
    free = ap.measure(lm, prompts[0], max_new_tokens=6)
    options = {"max_new_tokens": 6, **OWN_ROWS[kind](free)}
    run = ap.measure(lm, prompts[0], rows="answer", **options)
    assert run.answer_ids == ap.measure(lm, prompts[0], **options).answer_ids
    if kind == "forced last token":
        assert run.answer_ids == (*free.answer_ids[:5], 7)
    if kind == "end of sequence counts":
        assert run.answer_ids[-1] == free.answer_ids[3]
    assert_same_run(run, ap.measure(lm, prompts[0], answer=run.answer_ids, rows="answer"))


@pytest.mark.parametrize("include_eos", [False, True])
def test_own_rows_in_a_batch_that_ends_apart(make_lm: Any, prompts: list[ap.Prompt], include_eos: bool) -> None:
    lm = make_lm()
    token = ap.measure(lm, prompts[0], max_new_tokens=6).answer_ids[1]
    options = {"max_new_tokens": 6, "eos_token_id": token, "rows": "answer", "include_eos": include_eos}
    singles = [ap.measure(lm, prompt, **options) for prompt in prompts]
    assert len({len(run.answer_ids) for run in singles}) > 1
    for run, single in zip(ap.measure_many(lm, prompts, batch_size=3, **options), singles, strict=True):
        assert_same_run(run, single)


@pytest.mark.parametrize(
    "option",
    [
        {"pad_token_id": 0},
        {"attention_mask": torch.ones(1, 9)},
        {"position_ids": torch.ones(1, 9)},
        {"input_ids": torch.ones(1, 9)},
        {"past_key_values": DynamicCache()},
        {"return_dict_in_generate": True},
        {"disable_compile": True},
        {"max_length": 40},
        {"prefill_chunk_size": 3},
        {"num_beams": 2},
        {"num_return_sequences": 2},
        {"guidance_scale": 2.0},
        {"assistant_early_exit": 2},
        {"prompt_lookup_num_tokens": 2},
        {"use_cache": False},
    ],
    ids=lambda option: next(iter(option)),
)
@pytest.mark.parametrize("many", [False, True], ids=["measure", "measure_many"])
def test_options_that_the_measurement_owns_are_refused(
    make_lm: Any, prompts: list[ap.Prompt], option: dict[str, Any], many: bool
) -> None:
    lm = make_lm()
    with pytest.raises(ap.InputError, match=rf"^{next(iter(option))}=.* cannot be given to a measurement"):
        ap.measure_many(lm, prompts, **option) if many else ap.measure(lm, prompts[0], **option)


def test_a_generation_config_of_the_callers_own_is_held_to_the_same(make_lm: Any, prompts: list[ap.Prompt]) -> None:
    lm = make_lm()
    with pytest.raises(ap.InputError, match=r"^generation_config with num_beams=3 cannot be given"):
        ap.measure(lm, prompts[0], generation_config=GenerationConfig(num_beams=3))


@pytest.mark.parametrize("option", [{"num_beams": 1}, {"guidance_scale": 1.0}, {"use_cache": True}, {"inputs": None}])
def test_options_that_change_nothing_are_taken(make_lm: Any, prompts: list[ap.Prompt], option: dict[str, Any]) -> None:
    lm = make_lm()
    wanted = ap.measure(lm, prompts[0], max_new_tokens=3)
    assert_same_run(ap.measure(lm, prompts[0], max_new_tokens=3, **option), wanted)


@pytest.mark.parametrize(
    "setting",
    [
        {"num_beams": 3},
        {"guidance_scale": 2.0},
        {"prompt_lookup_num_tokens": 2},
        {"num_return_sequences": 2},
        {"use_cache": False},
        {"assistant_early_exit": 1},
        {"do_sample": True, "temperature": 5.0, "top_k": 3},
        {"max_length": 4},
        {"prefill_chunk_size": 3},
        {"return_dict_in_generate": False},
    ],
    ids=lambda setting: next(iter(setting)),
)
def test_settings_that_came_with_the_model_are_overridden(
    make_lm: Any, prompts: list[ap.Prompt], setting: dict[str, Any]
) -> None:
    lm = make_lm()
    wanted = ap.measure(lm, prompts[0], max_new_tokens=4)
    for name, value in setting.items():
        setattr(lm.model.generation_config, name, value)
    assert_same_run(ap.measure(lm, prompts[0], max_new_tokens=4), wanted)


def test_settings_that_came_with_the_model_and_count_are_recorded(make_lm: Any, prompts: list[ap.Prompt]) -> None:
    lm = make_lm()
    lm.model.generation_config.repetition_penalty = 3.0
    run = ap.measure(lm, prompts[0], max_new_tokens=4)
    assert run.manifest["generation"]["model_defaults"]["repetition_penalty"] == "3.0"


WRONG: dict[str, dict[str, Any]] = {
    "max_new_tokens": {"max_new_tokens": True},
    "prefill_chunk": {"prefill_chunk": True},
    "answer": {"answer": 5},
    "seed": {"seed": "a"},
    "backend": {"backend": "zz"},
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments_are_named(make_lm: Any, prompts: list[ap.Prompt], name: str) -> None:
    with pytest.raises(ap.InputError, match=f"^{name}"):
        ap.measure(make_lm(), prompts[0], **WRONG[name])


@pytest.mark.parametrize("size", [1.5, "2", 0, True, None])
def test_wrong_batch_sizes_are_named(make_lm: Any, prompts: list[ap.Prompt], size: Any) -> None:
    with pytest.raises(ap.InputError, match=r"^batch_size is .* must be a whole number of at least 1"):
        ap.measure_many(make_lm(), prompts, batch_size=size)


@pytest.mark.parametrize("name", [None, 5, ["gpt2"]])
def test_a_name_that_is_no_name(name: Any) -> None:
    with pytest.raises(ap.InputError, match="the model's name is"):
        ap.load(name)


def test_numpy_numbers_and_generators_are_taken(make_lm: Any, prompts: list[ap.Prompt]) -> None:
    lm = make_lm()
    wanted = [ap.measure(lm, prompt, max_new_tokens=3) for prompt in prompts]
    assert_same_run(ap.measure(lm, prompts[0], max_new_tokens=np.int64(3), prefill_chunk=np.int64(4)), wanted[0])
    runs = ap.measure_many(lm, (prompt for prompt in prompts), batch_size=np.int64(2), max_new_tokens=3)
    for run, single in zip(runs, wanted, strict=True):
        assert_same_run(run, single)
    ids = wanted[0].answer_ids
    for answer in (list(ids), np.array(ids), torch.tensor(ids)):
        assert_same_run(ap.measure(lm, prompts[0], answer=answer), wanted[0])


def test_ids_beyond_the_tokenizer_but_not_the_model(make_lm: Any, prompts: list[ap.Prompt]) -> None:
    """Embeddings are often padded; a model may write such an id, and its answer must be taken back."""
    n_words = len(make_lm().tokenizer)
    lm = make_lm(vocab_size=n_words + 8)
    run = ap.measure(lm, prompts[0], answer=[n_words + 7, 5])
    assert run.answer_ids == (n_words + 7, 5)
    with pytest.raises(ap.InputError, match=rf"token id {n_words + 8} is beyond the model's {n_words + 8} embeddings"):
        ap.measure(lm, prompts[0], answer=[n_words + 8])
    with pytest.raises(ap.InputError, match="not negative"):
        ap.measure(lm, prompts[0], answer=[-1])


@pytest.mark.parametrize("family", ["llama", "bloom"])
def test_a_part_in_training_mode_is_refused(make_lm: Any, prompts: list[ap.Prompt], family: str) -> None:
    lm = make_lm(family)
    next(m for m in lm.model.modules() if "Attention" in type(m).__name__).train()
    for answer in ("47", None):
        with pytest.raises(ap.CaptureError, match=r"training mode, or a part of it is"):
            ap.measure(lm, prompts[0], answer=answer, max_new_tokens=2)


def test_a_measurement_inside_another(make_lm: Any, prompts: list[ap.Prompt]) -> None:
    lm, other = make_lm(), make_lm("qwen2")
    wanted = ap.measure(other, prompts[1], answer="47")
    inner: list[ap.Run] = []

    def measure_inside(model: Any) -> Callable[[str, int, int], None]:
        def step(stage: str, done: int, total: int) -> None:
            inner.append(ap.measure(model, prompts[1], answer="47"))

        return step

    alone = ap.measure(lm, prompts[0], max_new_tokens=3)
    assert_same_run(ap.measure(lm, prompts[0], max_new_tokens=3, progress=measure_inside(other)), alone)
    assert inner
    for run in inner:
        assert_same_run(run, wanted)

    for options in ({"max_new_tokens": 3}, {"answer": "47", "prefill_chunk": 9}):
        with pytest.raises(
            ap.CaptureError, match="another measurement inside this one; measure a model once at a time"
        ):
            ap.measure(lm, prompts[0], progress=measure_inside(lm), **options)
        assert_clean(lm.model)


def test_offloaded_weights(make_lm: Any, prompts: list[ap.Prompt]) -> None:
    accelerate = pytest.importorskip("accelerate")
    lm = make_lm()
    wanted = [ap.measure(lm, prompt, max_new_tokens=3) for prompt in prompts[:2]]
    accelerate.cpu_offload(lm.model, execution_device="cpu")
    assert next(lm.model.parameters()).device.type == "meta"
    assert_same_run(ap.measure(lm, prompts[0], max_new_tokens=3), wanted[0])
    assert_same_run(ap.measure(lm, prompts[0], answer=wanted[0].answer_ids), wanted[0])
    for run, single in zip(ap.measure_many(lm, prompts[:2], batch_size=2, max_new_tokens=3), wanted, strict=True):
        assert_same_run(run, single)


def in_threads(work: Callable[[int], None], number: int) -> None:
    errors: list[BaseException] = []

    def run(index: int) -> None:
        try:
            work(index)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(index,)) for index in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


@pytest.mark.parametrize(("family", "n_threads"), [("llama", 4), ("falcon", 3)])
def test_threads_on_one_model(make_lm: Any, prompts: list[ap.Prompt], family: str, n_threads: int) -> None:
    """Log-probabilities included: each thread must read its own logits."""
    lm = make_lm(family)
    if family == "falcon":
        lm.model.config._attn_implementation = "sdpa"  # the fallback switches it to eager, and back at the very end
    before = lm.model.config._attn_implementation
    mine = [prompts[index % len(prompts)] for index in range(n_threads)]
    wanted = [ap.measure(lm, prompt, max_new_tokens=8) for prompt in mine]

    def work(index: int) -> None:
        for _ in range(4):
            assert_same_run(ap.measure(lm, mine[index], max_new_tokens=8), wanted[index])

    in_threads(work, n_threads)
    assert lm.model.config._attn_implementation == before
    assert_clean(lm.model)


def assert_clean(model: torch.nn.Module) -> None:
    assert ALL_ATTENTION_FUNCTIONS._local_mapping == {}
    assert not attention._observers
    assert not attention._dispatchers
    assert not attention._families
    assert not fallback._switched
    assert sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()) == 0


@pytest.fixture
def sigint() -> Iterator[None]:
    """Ctrl-C as in a plain interpreter, whatever the test runner made of it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def alarm_as_sigint() -> Iterator[None]:
    before = signal.signal(signal.SIGALRM, lambda number, frame: signal.raise_signal(signal.SIGINT))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.usefixtures("sigint")
@pytest.mark.parametrize("family", ["llama", "bloom"])
@pytest.mark.parametrize("forced", [True, False], ids=["forced", "generated"])
def test_interrupts_at_random_times(make_lm: Any, prompts: list[ap.Prompt], family: str, forced: bool) -> None:
    lm = make_lm(family)
    with torch.no_grad():
        before = lm.model(IDS).logits
    implementation = lm.model.config._attn_implementation
    options: dict[str, Any] = {"answer": "47"} if forced else {"max_new_tokens": 2}
    ap.measure(lm, prompts[1], **options)
    begin = time.perf_counter()
    ap.measure(lm, prompts[1], **options)
    duration = time.perf_counter() - begin
    random_time = random.Random(0)
    n_interrupted = 0
    with alarm_as_sigint():
        for _ in range(60):
            try:
                signal.setitimer(signal.ITIMER_REAL, random_time.uniform(1e-5, duration))
                ap.measure(lm, prompts[1], **options)
                signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt:
                n_interrupted += 1
            assert_clean(lm.model)
            assert lm.model.config._attn_implementation == implementation
            with torch.no_grad():
                assert torch.equal(lm.model(IDS).logits, before)
    assert n_interrupted > 5


# Where hooks and the wrapped function come and go.
FRAGILE = {
    *("_forced_batch", "_generated_batch", "__enter__", "__exit__", "close", "forward_hook", "remove"),
    *("observed", "_install", "_uninstall", "uninterrupted", "eager_attention"),
}


class InterruptAt:
    """Raises SIGINT in front of one line of the package: the n-th that runs inside the functions of ``FRAGILE``."""

    def __init__(self, number: int | None) -> None:
        self.left = number
        self.n_lines = 0

    def __call__(self, frame: FrameType, event: str, argument: Any) -> Any:
        inside = Path(frame.f_code.co_filename).parent == Path(ap.__file__).parent
        return self.line if inside and frame.f_code.co_name in FRAGILE else None

    def line(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            self.n_lines += 1
            if self.n_lines == self.left:
                signal.raise_signal(signal.SIGINT)
        return self.line


def traced(tracer: InterruptAt, run: Callable[[], Any]) -> bool:
    """Whether the run was interrupted."""
    outer = sys.gettrace()
    sys.settrace(tracer)
    try:
        run()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(outer)
    return False


@pytest.mark.usefixtures("sigint")
@pytest.mark.parametrize(
    ("family", "forced"),
    [("llama", True), ("llama", False), ("bloom", True)],
    ids=["llama forced", "llama generated", "bloom forced"],
)
def test_an_interrupt_at_every_line_that_matters(
    make_lm: Any, prompts: list[ap.Prompt], family: str, forced: bool
) -> None:
    lm = make_lm(family, **{"n_layer" if family == "bloom" else "num_hidden_layers": 1})
    options: dict[str, Any] = {"answer": "47"} if forced else {"max_new_tokens": 1}
    with torch.no_grad():
        before = lm.model(IDS).logits

    def run() -> None:
        ap.measure(lm, prompts[1], **options)

    counting = InterruptAt(None)
    assert not traced(counting, run)
    assert counting.n_lines > 30
    left = []
    for number in range(1, counting.n_lines + 1):
        traced(InterruptAt(number), run)
        try:
            assert_clean(lm.model)
        except AssertionError as error:
            left.append((number, str(error)[:60]))
    assert not left
    with torch.no_grad():
        assert torch.equal(lm.model(IDS).logits, before)


@pytest.mark.usefixtures("sigint")
def test_an_interrupt_is_held_back_and_then_delivered() -> None:
    steps = []

    def interrupted() -> None:
        with uninterrupted():
            with uninterrupted():
                signal.raise_signal(signal.SIGINT)
                steps.append("inner")
            steps.append("outer")
        steps.append("after")

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert steps == ["inner", "outer"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.usefixtures("sigint")
def test_the_handler_is_restored_after_an_error() -> None:
    def theirs(number: int, frame: Any) -> None:
        seen.append(number)

    def failing() -> None:
        with uninterrupted():
            signal.raise_signal(signal.SIGINT)
            assert not seen
            raise RuntimeError("mine")

    seen: list[int] = []
    signal.signal(signal.SIGINT, theirs)
    with pytest.raises(RuntimeError, match="mine"):
        failing()
    assert seen == [signal.SIGINT]
    assert signal.getsignal(signal.SIGINT) is theirs


@pytest.mark.usefixtures("sigint")
def test_nothing_is_held_in_a_thread_or_where_interrupts_are_ignored() -> None:
    def work(index: int) -> None:
        with uninterrupted():
            assert signal.getsignal(signal.SIGINT) is signal.default_int_handler

    in_threads(work, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with uninterrupted():
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        signal.raise_signal(signal.SIGINT)


def test_unknown_options_are_named_with_what_was_meant(make_lm: Any, prompts: list[ap.Prompt]) -> None:
    lm = make_lm()
    with pytest.raises(ap.InputError, match=r"no option 'max_tokens'.*did you mean"):
        ap.measure(lm, prompts[0], max_tokens=3)
    with pytest.raises(ap.InputError, match="no option 'answer'; did you mean 'answers'"):
        ap.measure_many(lm, prompts, answer="yes")
    with pytest.raises(ap.InputError, match=r"temperature=0\.5 changes nothing in greedy decoding"):
        ap.measure(lm, prompts[0], temperature=0.5)
    with pytest.raises(ap.InputError, match=r"give attnprobe\.load"):
        ap.measure("smollm2", prompts[0])


def test_reprs_fit_a_line(make_lm: Any, prompts: list[ap.Prompt]) -> None:
    lm = make_lm()
    run = ap.measure(lm, prompts[0], max_new_tokens=2)
    for value in (lm, run, run.curve()):
        assert len(repr(value)) < 200
        assert "\n" not in repr(value)
