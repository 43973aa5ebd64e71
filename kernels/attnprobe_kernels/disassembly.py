"""What a compiled kernel costs, read from its machine code: registers, spills, the inner loop."""

from __future__ import annotations

import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

MATRIX = re.compile(r"^(HGMMA|QGMMA|HMMA|IMMA|UTC\w*MMA|v_mfma|v_smfmac)")
EXPONENTIAL = re.compile(r"^(MUFU\.EX2|v_exp_f32)")


@dataclass(frozen=True)
class Code:
    """Resources of one kernel; ``loops`` hold the instructions of every loop, each without its operands."""

    registers: int
    stack: int  # bytes a thread
    spills: int
    loops: tuple[tuple[str, ...], ...]
    matrix: frozenset[str]  # matrix instructions anywhere in the kernel

    def inner_loop(self, exponentials: int) -> tuple[str, ...]:
        """The shortest loop with the given number of exponentials a thread or more: the mask-free one."""
        fitting = [loop for loop in self.loops if sum(bool(EXPONENTIAL.match(x)) for x in loop) >= exponentials]
        return min(fitting, key=len, default=())


def _nvidia_tool(name: str) -> str:
    import triton.backends.nvidia

    return str(Path(triton.backends.nvidia.__file__).parent / "bin" / name)


def read_cubin(cubin: bytes) -> Code:
    """Disassemble NVIDIA machine code with the cuobjdump that Triton carries."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        usage, listing = (
            subprocess.run(
                [_nvidia_tool("cuobjdump"), option, file.name], check=True, capture_output=True, text=True
            ).stdout
            for option in ("-res-usage", "-sass")
        )
    resources = {name: int(number) for name, number in re.findall(r"(REG|STACK|LOCAL):(\d+)", usage)}
    lines = [(int(address, 16), text) for address, text in re.findall(r"/\*([0-9a-f]{4,6})\*/\s+(\S.*?);", listing)]
    names = [(address, re.sub(r"^@!?U?P\w+\s+", "", text).split()[0]) for address, text in lines]
    loops = []
    for (address, text), (_, name) in zip(lines, names, strict=True):
        jump = re.search(r"0x([0-9a-f]+)", text) if name.startswith("BRA") else None
        if jump and int(jump.group(1), 16) < address:
            loops.append(tuple(n for a, n in names if int(jump.group(1), 16) <= a <= address))
    return Code(
        registers=resources["REG"],
        stack=resources["STACK"] + resources["LOCAL"],
        spills=sum(bool(re.match(r"LDL|STL", name)) for _, name in names),
        loops=tuple(loops),
        matrix=frozenset(name for _, name in names if MATRIX.match(name)),
    )


def read_amdgcn(text: str) -> Code:
    """Read AMD assembly and the metadata at its end."""
    lines: list[str] = []
    labels: dict[str, int] = {}
    loops = []
    for raw in text.splitlines():
        line = raw.split(";")[0].strip()
        if re.match(r"^\.?L?BB\w+:$", line):
            labels[line[:-1]] = len(lines)
        elif re.match(r"^[a-z]+_\w+", line):
            lines.append(line)
            jump = re.match(r"^s_c?branch\w*\s+(\S+)", line)
            if jump and jump.group(1) in labels:
                loops.append(tuple(x.split()[0] for x in lines[labels[jump.group(1)] :]))
    numbers = {name: int(number) for name, number in re.findall(r"\.(\w+):\s+(\d+)\s*$", text, flags=re.M)}
    return Code(
        registers=numbers["vgpr_count"],
        stack=numbers["private_segment_fixed_size"],
        # Scalar registers spill into lanes of vector registers, not into memory.
        spills=numbers["vgpr_spill_count"],
        loops=tuple(loops),
        matrix=frozenset(x.split()[0] for x in lines if MATRIX.match(x)),
    )
