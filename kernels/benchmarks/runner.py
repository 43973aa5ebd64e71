"""Run cases: inputs, the check, times of the operation and of its rivals; a failure is a record, not an exception."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch

from benchmarks.registry import HEADLINES, QUICK_CASES, Case, Inputs, bind, make_inputs
from benchmarks.rivals import RIVALS, SLOW, SLOW_LOGITS, Rival
from benchmarks.roofline import Floor, Peaks, floor_of, output_elements, work_of
from benchmarks.timing import time_call
from benchmarks.verify import Expected, Verdict, check_own, check_rival, reference

TIME_LIMIT = "time limit"
MEMORY_SHARE = 0.8
"""Of the device's free memory, that a rival may be estimated to need."""


class DeviceLost(RuntimeError):
    """The device no longer answers as it should; nothing measured after this would mean anything."""


@dataclass(frozen=True)
class Settings:
    """How cases are run.

    Parameters
    ----------
    backends
        Backends of this package to time; the first is the one that rivals are compared with.
    seconds
        Time for the repeats of one measurement.
    deadline
        ``time.monotonic()`` after which nothing new is started.
    compile_every_shape
        Run rivals that compile for each shape on every case instead of on the headlines alone.
    """

    device: torch.device
    dtype: torch.dtype
    backends: tuple[str, ...]
    peaks: Peaks
    seconds: float = 0.3
    deadline: float = float("inf")
    rivals: bool = True
    compile_every_shape: bool = False


def free_bytes(device: torch.device) -> int:
    """Memory that a measurement may use."""
    if device.type != "cuda":
        return 2 * 2**30
    gc.collect()
    torch.cuda.empty_cache()
    return torch.cuda.mem_get_info(device)[0]


def input_bytes(case: Case, element: int) -> int:
    """q, k and the result, and as much again for the reference in float64."""
    vectors = case.n_kv_heads * case.n_keys + case.n_q_heads * case.n_rows
    reference = 8 * (2 * case.head_dim + 2 * 128) * case.n_keys
    return element * case.head_dim * vectors + 4 * output_elements(case) + reference


def run(cases: Iterable[Case], settings: Settings) -> Iterator[dict[str, Any]]:
    """One record a case: ``{"case", "floor", "work", "results": [...]}``, each result a time or a reason.

    Raises
    ------
    DeviceLost
        A kernel left the device unusable.
    """
    for case in cases:
        element = settings.dtype.itemsize
        floor = floor_of(case, settings.peaks, element)
        record: dict[str, Any] = {
            "case": {"name": case.name, **asdict(case), "segments": len(case.segments.starts)},
            "floor": floor.record(),
            "work": asdict(work_of(case, element)),
            "results": [],
        }
        if time.monotonic() > settings.deadline:
            record["left_out"] = TIME_LIMIT
        elif input_bytes(case, element) > MEMORY_SHARE * free_bytes(settings.device):
            record["left_out"] = f"needs {input_bytes(case, element) / 2**30:.1f} GiB"
        else:
            record["results"] = list(_results(case, floor, settings))
        yield record


def _results(case: Case, floor: Floor, settings: Settings) -> Iterator[dict[str, Any]]:
    try:
        inputs = make_inputs(case, settings.device, settings.dtype, backend="chunked")
        expected = reference(case, inputs)
    except Exception as error:
        yield {"name": "inputs", "left_out": _reason(error, settings.device)}
        return
    for backend in settings.backends:
        if backend == "chunked" and settings.device.type == "cuda" and case.n_logits > SLOW_LOGITS:
            yield {"name": backend, "left_out": SLOW}
        else:
            yield _own(backend, case, inputs, expected, floor, settings)
    for rival in RIVALS if settings.rivals else ():
        if case.operation in rival.operations:
            yield _rival(rival, case, inputs, expected, floor, settings)


def _own(
    backend: str, case: Case, inputs: Inputs, expected: Expected, floor: Floor, settings: Settings
) -> dict[str, Any]:
    return _measured(
        backend,
        case,
        floor,
        settings,
        lambda: bind(case, inputs, backend),
        lambda call: check_own(case, inputs, expected, call),
    )


def _rival(
    rival: Rival, case: Case, inputs: Inputs, expected: Expected, floor: Floor, settings: Settings
) -> dict[str, Any]:
    needed, free = rival.memory(case, settings.dtype.itemsize), free_bytes(settings.device)
    if needed > MEMORY_SHARE * free:
        reason: str | None = f"needs {needed / 2**30:.1f} GiB of {free / 2**30:.1f} GiB free"
    elif rival.compiles and case not in (*HEADLINES, *QUICK_CASES) and not settings.compile_every_shape:
        reason = "compiles anew for every shape: headlines alone (--compile-every-shape)"
    else:
        reason = rival.refuses(case)
    if reason is not None:
        return {"name": rival.name, "left_out": reason, "estimated_bytes": needed}
    judge = (lambda call: check_rival(expected, call)) if rival.gives_masses else None
    found = _measured(rival.name, case, floor, settings, lambda: rival.build(case, inputs), judge)
    return {**found, "estimated_bytes": needed}


def _measured(
    name: str,
    case: Case,
    floor: Floor,
    settings: Settings,
    build: Callable[[], Callable[[], Any]],
    judge: Callable[[Callable[[], Any]], Verdict] | None,
) -> dict[str, Any]:
    """Check, then time. What is wrong gets no time."""
    if time.monotonic() > settings.deadline:
        return {"name": name, "left_out": TIME_LIMIT}
    try:
        call = build()
        verdict = None if judge is None else judge(call)
        if verdict is not None and not verdict.ok:
            return {"name": name, "wrong": verdict.reason}
        timing = time_call(call, settings.device, settings.seconds)
    except Exception as error:
        return {"name": name, "left_out": _reason(error, settings.device)}
    work = work_of(case, settings.dtype.itemsize)
    return {
        "name": name,
        "seconds": timing.median,
        "fastest": timing.fastest,
        "slowest": timing.slowest,
        "repeats": timing.repeats,
        "first_call": timing.first,
        "peak_bytes": timing.peak_bytes,
        # Rates of the work that the case cannot do without, whatever was done instead.
        "flops_per_second": work.flops / timing.median,
        "bytes_per_second": work.bytes / timing.median,
        "floor_share": None if floor.seconds is None else floor.seconds / timing.median,
        "error": None if verdict is None else {"absolute": verdict.absolute, "relative": verdict.relative},
    }


def _reason(error: Exception, device: torch.device) -> str:
    """The first line of an error; raises if the device is lost."""
    lines = str(error).strip().splitlines() or [""]
    text = f"{type(error).__name__}: {lines[0][:200]}"
    if device.type == "cuda":
        try:
            torch.cuda.synchronize(device)
        except Exception as lost:
            raise DeviceLost(text) from lost
    return text


def failures(records: Iterable[dict[str, Any]], backends: tuple[str, ...]) -> list[str]:
    """What this package got wrong, or could not do at all for a reason other than time."""
    found = []
    for record in records:
        for result in record["results"]:
            if result["name"] not in (*backends, "inputs"):
                continue
            reason = result.get("wrong") or result.get("left_out")
            if reason and reason not in (TIME_LIMIT, SLOW):
                found.append(f"{record['case']['name']}, {result['name']}: {reason}")
    return found
