"""Which process of a launch this one is, and which cells fall to it.

No process waits for, or asks, another: each works out the same deal by itself. So one that dies leaves no other one
hanging, and what it leaves undone is done by the next launch, with any number of processes.
"""

from __future__ import annotations

import heapq
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from attnprobe.errors import InputError

# What `accelerate launch` and torchrun, Open MPI, and other MPIs set: number of this process, and how many there are.
_LAUNCHERS = (
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
)
_ON_THIS_MACHINE = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")


@dataclass(frozen=True)
class Cell:
    """One piece of work of a grid.

    Parameters
    ----------
    key
        Names the cell; no two cells of a grid share one, and it is the same in every sitting.
    cost
        Predicted work in any unit, at least 0: what the deal over processes and the time left go by.
    work
        Whatever the work needs; not stored.
    group
        Cells of a lower group are done first, e.g. those of one model before those of the next.
    chain
        Cells of one chain have one group, and stay on one process in the order in which they are given, e.g. as each
        goes on from what the one before it left. A chain that is too long for that is cut. None: a cell by itself.
    """

    key: str
    cost: float
    work: Any = field(compare=False)
    group: int = 0
    chain: str | None = None


def this_process(environment: Mapping[str, str] | None = None) -> tuple[int, int]:
    """Number of this process, from 0, and how many processes the launch has; (0, 1) without a launcher.

    Raises
    ------
    InputError
        When the launcher's variables make no sense.
    """
    environment = os.environ if environment is None else environment
    for names in _LAUNCHERS:
        number, count = (environment.get(name) for name in names)
        if number is None or count is None:
            continue
        if not (number.isdecimal() and count.isdecimal() and int(number) < int(count)):
            raise InputError(
                f'the environment has {names[0]}="{number}" and {names[1]}="{count}"; start the processes with '
                "accelerate launch, or unset both"
            )
        return int(number), int(count)
    return 0, 1


def own_device(environment: Mapping[str, str] | None = None) -> str | None:
    """The CUDA device of this process when a launch has several processes, e.g. ``cuda:1``; else None.

    Processes take the devices of their machine in turn. None means: the default device, as without a launcher.
    """
    environment = os.environ if environment is None else environment
    local = next((environment[name] for name in _ON_THIS_MACHINE if environment.get(name, "").isdecimal()), None)
    if this_process(environment)[1] == 1 or local is None:
        return None
    import torch

    n_devices = torch.cuda.device_count()
    return f"cuda:{int(local) % n_devices}" if n_devices else None


def deal(cells: Sequence[Cell], n_processes: int) -> list[list[Cell]]:
    """Each process's cells, in the order in which it does them.

    The longest chain goes first, always to the process that has the least to do so far (of several, to the one with
    the fewest cells, then the lowest number); a cell without a chain is one by itself. Cells that are done already are
    dealt, too: processes read at different times what is done, and must still agree. A process does its cells by
    group, and the longest chain of a group first.

    Parameters
    ----------
    cells
        Every cell of the grid, in the same order in every process.
    n_processes
        How many processes there are.
    """
    chains = _chains(cells, n_processes)
    costs = [sum(cells[place].cost for place in chain) for chain in chains]
    groups = [cells[chain[0]].group for chain in chains]
    hands: list[list[int]] = [[] for _ in range(n_processes)]
    heap = [(0.0, 0, number) for number in range(n_processes)]
    for i in sorted(range(len(chains)), key=lambda i: (-costs[i], groups[i], chains[i][0])):
        load, n_cells, number = heap[0]
        hands[number].append(i)
        heapq.heapreplace(heap, (load + costs[i], n_cells + len(chains[i]), number))
    return [
        [cells[place] for i in sorted(hand, key=lambda i: (groups[i], -costs[i], chains[i][0])) for place in chains[i]]
        for hand in hands
    ]


def _chains(cells: Sequence[Cell], n_processes: int) -> list[list[int]]:
    """Places of the cells by chain; no part of a chain costs more than the even share of a process, or is one cell."""
    places: dict[str | int, list[int]] = {}
    for place, cell in enumerate(cells):
        places.setdefault(place if cell.chain is None else cell.chain, []).append(place)
    most = sum(cell.cost for cell in cells) / n_processes
    parts = []
    for chain in places.values():
        parts.append([chain[0]])
        spent = cells[chain[0]].cost
        for place in chain[1:]:
            if n_processes > 1 and spent + cells[place].cost > most:
                parts.append([])
                spent = 0.0
            parts[-1].append(place)
            spent += cells[place].cost
    return parts


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that there is no memory: torch's on any device, or Python's own."""
    # Comparing names spares an import of torch, whose CPU allocator raises a plain RuntimeError.
    return (
        isinstance(error, MemoryError)
        or any(kind.__name__ == "OutOfMemoryError" for kind in type(error).__mro__)
        or (isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error))
    )


def release_memory() -> None:
    """Give back what torch holds for later use on a CUDA device."""
    import gc

    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
