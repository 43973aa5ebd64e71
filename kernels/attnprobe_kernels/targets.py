"""Compile the kernels for devices that are not there, and check the machine code.

``python -m attnprobe_kernels.targets`` compiles the common shapes and a cover of all pairs of options in one to three
minutes, prints a table and leaves with status 1 if a variant uses the stack, spills registers, needs more shared
memory than its target has, or multiplies bf16 or fp16 without tensor cores. ``--all`` covers all triples;
``--target`` covers all pairs of the other options on that target.
It needs the package (installed, or ``PYTHONPATH=kernels``) and no GPU, and must not run inside Triton's interpreter
(``TRITON_INTERPRET``), which replaces the compiler.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from attnprobe_kernels.backends import interpreted
from attnprobe_kernels.tiles import compiler_options
from attnprobe_kernels.variants import FEATURES, KERNELS, TARGETS, Variant, variants


@dataclass(frozen=True)
class Finding:
    """One compiled variant."""

    variant: Variant
    registers: int
    stack: int
    spills: int
    shared: int
    matrix: str
    per_logit: float | None  # instructions of the inner loop a logit
    occupancy: int  # warps a processor
    faults: tuple[str, ...]


def _kernel(name: str) -> Any:
    from attnprobe_kernels import triton_column_mass, triton_prefill_map, triton_span_lse

    return {
        "span_lse": triton_span_lse.unit_lse_kernel,
        "span_top": triton_span_lse.unit_lse_kernel,
        "merge_units": triton_span_lse.merge_units_kernel,
        "merge_tops": triton_span_lse.merge_units_kernel,
        "column_mass": triton_column_mass.column_mass_kernel,
        "row_bounds": triton_column_mass.row_bounds_kernel,
        "prefill_map": triton_prefill_map.prefill_map_kernel,
        "wide_map": triton_prefill_map.prefill_map_kernel,
        "add_pieces": triton_prefill_map.add_pieces_kernel,
    }[name]


_INPUTS = {"q", "k"}
_TABLES = {"visible", "units", "unit_edges", "bounds", "key", "key_units", "pieces", "tile_edges", "block_edges"}
_FLOATS = {
    "out",
    "total",
    "total2",
    "bias",
    "slopes",
    "sinks",
    "lse_units",
    "top",
    "top_units",
    "scratch",
    "pieces_out",
}
_NUMBERS = {"scale", "softcap"}


def compile_variant(variant: Variant) -> Any:
    """The compiled kernel of one variant, as a launch with 16-byte aligned arrays compiles it.

    In the contiguous layout strides are multiples of 16 as well, but for those that a kernel is never specialized on.
    """
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    kernel = _kernel(variant.kernel)
    constants = {name: value for name, value in variant.constants().items() if name in kernel.arg_names}
    signature, attributes = {}, {}
    for index, name in enumerate(kernel.arg_names):
        if name in constants:
            signature[name] = "constexpr"
            continue
        if name in _INPUTS:
            signature[name] = "*fp32" if variant.dtype == "tf32" else f"*{variant.dtype}"
        elif name in _TABLES:
            signature[name] = "*i32"
        elif name in _FLOATS:
            signature[name] = "*fp32"
        else:
            signature[name] = "fp32" if name in _NUMBERS else "i32"
        strided = name.startswith("stride") and not kernel.params[index].do_not_specialize
        if signature[name].startswith("*") or (strided and variant.layout == "contiguous"):
            attributes[(index,)] = [["tt.divisibility", 16]]
    target = TARGETS[variant.target]
    machine = (
        GPUTarget("cuda", int(target.name.removeprefix("sm_")), target.warp)
        if target.device.generation
        else GPUTarget("hip", target.name, target.warp)
    )
    return triton.compile(
        ASTSource(kernel, signature, constexprs=constants, attrs=attributes),
        target=machine,
        options=compiler_options(
            nvidia=target.device.generation > 0, tiles=variant.tiles if variant.kernel in KERNELS else None
        ),
    )


def _warps(variant: Variant) -> int:
    return variant.tiles.warps if variant.kernel in KERNELS else 4


def _occupancy(variant: Variant, registers: int, shared: int) -> int:
    """Warps that one processor holds at a time, by registers, shared memory and threads."""
    target, warps = TARGETS[variant.target], _warps(variant)
    if target.device.generation:
        by_registers = target.registers // (max(-(-registers // 8) * 8, 24) * target.warp * warps)
        by_shared = target.device.shared_total // (shared + 1024)
        return min(by_registers, by_shared, target.max_threads // (target.warp * warps)) * warps
    # Four vector units a processor; the waves of a program are spread over them.
    by_registers = min(target.registers // (-(-registers // 8) * 8), 8) * 4 // warps
    by_shared = target.device.shared_total // max(shared, 1)
    return min(by_registers, by_shared) * warps


def check(variant: Variant) -> Finding:
    """Compile one variant and judge it."""
    from attnprobe_kernels.disassembly import read_amdgcn, read_cubin

    target, tiles = TARGETS[variant.target], variant.tiles
    compiled = compile_variant(variant)
    code = read_cubin(compiled.asm["cubin"]) if target.device.generation else read_amdgcn(compiled.asm["amdgcn"])
    shared = int(compiled.metadata.shared)
    streams = variant.kernel in KERNELS
    faults = []
    if code.stack:
        faults.append(f"{code.stack} bytes of stack")
    if code.spills:
        faults.append(f"{code.spills} spills")
    if shared > target.device.shared:
        faults.append(f"{shared} bytes of shared memory, {target.device.shared} at most")
    if streams and not code.matrix and variant.dtype != "fp32":
        faults.append("no matrix instruction")
    per_logit = None
    if streams:
        logits = tiles.rows * tiles.keys / (target.warp * tiles.warps)  # a thread
        loop = code.inner_loop(int(logits * (2 if "softcap" in FEATURES[variant.features] else 1)))
        per_logit = round(len(loop) / logits, 1) if loop else None
    return Finding(
        variant=variant,
        registers=code.registers,
        stack=code.stack,
        spills=code.spills,
        shared=shared,
        matrix=" ".join(sorted({name.split("_f32")[0].split(".F32")[0] for name in code.matrix})) or "-",
        per_logit=per_logit,
        occupancy=_occupancy(variant, code.registers, shared),
        faults=tuple(faults),
    )


def check_all(chosen: Sequence[Variant], processes: int) -> Iterator[Finding]:
    """Findings in the order of the variants."""
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        yield from pool.imap(check, chosen, chunksize=2)


def _row(finding: Finding) -> str:
    v, t = finding.variant, finding.variant.tiles
    per_logit = "-" if finding.per_logit is None else f"{finding.per_logit:.1f}"
    return (
        f"{v.target:7}{v.kernel:12}{v.dtype:5}{v.head_dim:4} {v.rows:7}{v.features:10}{v.layout:11}"
        f"{t.rows:4}x{t.keys:<4}{_warps(v):2}w{t.stages}s {finding.registers:4}{finding.stack:6}{finding.spills:7}"
        f"{finding.shared:8}{per_logit:>8}{finding.occupancy:6}  {finding.matrix}"
        + "".join(f"  FAULT: {fault}" for fault in finding.faults)
    )


HEADER = (
    "target kernel      type  dim rows   features  layout        tile      regs stack spills  shared i/logit warps  "
    "matrix instructions"
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m attnprobe_kernels.targets", description=__doc__.splitlines()[0])
    parser.add_argument("--all", action="store_true", help="all triples of options instead of all pairs")
    parser.add_argument("--json", action="store_true", help="one JSON line a variant on standard output")
    parser.add_argument("--target", action="append", choices=list(TARGETS), help="this target only (repeatable)")
    parser.add_argument("--kernel", action="append", help="this kernel only (repeatable)")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args(arguments)
    if interpreted():
        print("TRITON_INTERPRET is set: the interpreter replaces the compiler; unset it", file=sys.stderr)
        return 2
    known = dict.fromkeys(variant.kernel for variant in variants())
    unknown = [kernel for kernel in options.kernel or () if kernel not in known]
    if unknown:
        parser.error(f"--kernel {unknown[0]}: no such kernel; choose from {', '.join(known)}")
    chosen = [
        variant
        for variant in variants(options.target or tuple(TARGETS), exhaustive=options.all)
        if variant.kernel in (options.kernel or [variant.kernel])
    ]
    faulty = 0
    if not options.json:
        print(HEADER)
    for finding in check_all(chosen, options.processes):
        faulty += bool(finding.faults)
        print(json.dumps(asdict(finding)) if options.json else _row(finding), flush=True)
    print(f"{len(chosen)} variants, {faulty} with faults", file=sys.stderr)
    return 1 if faulty else 0


if __name__ == "__main__":
    sys.exit(main())
