"""What a terminal shows: aligned tables, bars and progress; readable at 80 columns, without colour and in a pipe.

Tables and bars are plain strings, so that a file or a pipe gets what a screen does. Only progress needs a terminal;
it goes to standard error, as every message does, and results go to standard output. Whatever is shown has passed
:func:`plain`, as names and texts of users may hold characters that a terminal obeys.
"""

from __future__ import annotations

import math
import re
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

WIDTH = 80
PROGRESS_AFTER = 2.0  # seconds; shorter work shows no bar

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069]+")
_UNBROKEN = re.compile(r"(?<=\d) (?=%|(?:[kMGT]?B|GFLOP/s|GB/s|s|min|h|nats)\b)|(?<=\bp) (?=[=<] )|(?<=\bp [=<]) ")
_EIGHTHS = " ▏▎▍▌▋▊▉"

Advance = Callable[[float, str], None]
"""Called as ``advance(done, note)``: work done so far, in the unit of the bar's total, and what is being done."""


def plain(text: str) -> str:
    """``text`` on one line that a terminal shows as it is.

    Characters that move the cursor, colour the screen or turn the text around become spaces: control characters, line
    ends, escape sequences' first characters, and those that set a direction.
    """
    return _CONTROL.sub(" ", text)


def say(text: str, quiet: bool = False) -> None:
    """Print a message on standard error, on one line, unless quiet."""
    if not quiet:
        print(plain(text), file=sys.stderr, flush=True)


def speaks_unicode() -> bool:
    """Whether standard output can show block characters."""
    return "utf" in (getattr(sys.stdout, "encoding", None) or "").lower()


def fit(text: str, width: int, right: bool = False) -> str:
    """``text`` on one line of exactly ``width`` terminal cells: padded, or cut with an ellipsis.

    What :func:`plain` takes out becomes spaces. Characters that standard output
    cannot show are written as it will write them (``\\u00e9``), so that they count with their true width.
    """
    from rich.cells import cell_len, set_cell_size

    line, cut = plain(text), "…"
    if not speaks_unicode():
        encoding = getattr(sys.stdout, "encoding", None) or "ascii"
        line, cut = line.encode(encoding, "backslashreplace").decode(encoding), "..."
    if cell_len(line) > width:
        return set_cell_size(line, width - len(cut)) + cut if width >= len(cut) else cut[: max(width, 0)]
    padding = " " * (width - cell_len(line))
    return padding + line if right else line + padding


def say_unfinished(quiet: bool) -> None:
    """Say that other processes have cells left, and who writes the results."""
    say("other processes are still measuring; the last one writes the results", quiet)


def percent(value: float | None, digits: int = 1) -> str:
    """A share as a percentage, ``-`` where undefined."""
    return decimal(None if value is None else 100 * value, digits) + (" %" if _is_number(value) else "")


def decimal(value: float | None, digits: int = 2) -> str:
    """A number with fixed decimals, without the minus of a zero; ``-`` where undefined, ``inf`` where infinite."""
    if value is None or math.isnan(value):
        return "-"
    return f"{round(value, digits) + 0.0:.{digits}f}" if math.isfinite(value) else str(value)


def p_text(p: float | None) -> str:
    """A p value with three decimals; ``-`` without one."""
    return "<0.001" if p is not None and p < 0.001 else decimal(p, 3)


def _is_number(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def count(number: int, what: str, plural: str | None = None) -> str:
    """``1 prompt``, ``3 prompts``, ``12,000 tokens``."""
    return f"{number:,} {what if number == 1 else plural or what + 's'}"


def sentence(text: str) -> str:
    """``text`` with a capital at its beginning and a full stop."""
    return f"{text[0].upper()}{text[1:]}."


def named(names: Sequence[str], most: int = 5) -> str:
    """``q1, q2``; of many the first few, and how many more: ``q1, q2 and 3 more``."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(fit(name, 40).rstrip() for name in names[:most]) + more


def size(n_bytes: float) -> str:
    """Bytes in decimal units, three digits."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if n_bytes < 999.5 or unit == "TB":
            return f"{n_bytes:.0f} {unit}" if unit == "B" or n_bytes >= 99.95 else f"{n_bytes:.3g} {unit}"
        n_bytes /= 1000
    raise AssertionError("the last unit returns")


def bytes_of(text: str) -> int:
    """A size such as ``2 GB``, ``500 MB`` or ``0`` in bytes; decimal units, as :func:`size` writes them, or ``KB``.

    Raises
    ------
    ValueError
        When it is none.
    """
    if text.strip() == "0":
        return 0
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kKMGT]?B)\s*", text)
    if match is None:
        raise ValueError('must be a size in B, kB, MB, GB or TB, like "2 GB" or "500 MB"')
    return round(float(match[1]) * 1000 ** ("B", "KB", "MB", "GB", "TB").index(match[2].upper()))


def duration(seconds: float) -> str:
    """Seconds in words: ``0.4 s``, ``12 s``, ``3 min 05 s``, ``2 h 10 min``."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def table(header: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[bool], width: int = WIDTH) -> list[str]:
    """Lines of a table with a header; the last column is cut where a line would pass ``width`` cells.

    Parameters
    ----------
    header, rows
        Cells as text; every row has one for each column of the header.
    right
        Whether a column is aligned to the right, as numbers are.
    """
    from rich.cells import cell_len

    lines = [list(header), *(list(row) for row in rows)]
    widths = [max(cell_len(plain(line[column])) for line in lines) for column in range(len(header))]
    room = width - sum(widths[:-1]) - 2 * (len(widths) - 1)
    widths[-1] = max(min(widths[-1], room), 1)
    return [
        "  ".join(fit(cell, w, r) for cell, w, r in zip(line, widths, right, strict=True)).rstrip() for line in lines
    ]


def wrapped(text: str, width: int = WIDTH, indent: str = "") -> list[str]:
    """A paragraph in lines of at most ``width`` characters, the second and later ones indented.

    Long words are not broken, and a unit stays with its number, a p value in one piece.
    """
    joined = _UNBROKEN.sub("\u00a0", text)
    wrapper = textwrap.TextWrapper(width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return [line.replace("\u00a0", " ") for line in wrapper.wrap(joined)] or [""]


def bars(values: Sequence[float | None], width: int, mark: float | None = None, unicode: bool = True) -> list[str]:
    """One horizontal bar a value on a common scale, from zero, with a vertical line at ``mark``.

    Parameters
    ----------
    values
        May be negative (bars to the left of zero), undefined or infinite (no bar).
    width
        Cells of the longest bar.
    mark
        Where the line is; None for none.
    unicode
        Eighths of a cell, or whole ``#``.

    Returns
    -------
    list of str
        Each ``width`` cells, trailing spaces taken off.
    """
    known = [value for value in values if value is not None and math.isfinite(value)]
    points = [0.0, *known, *([mark] if mark is not None else [])]
    low, high = min(points), max(points)
    scale = width / (high - low) if high > low else 0.0
    zero = -low * scale
    at = None if mark is None else min(int((mark - low) * scale), width - 1)
    full, line = ("█", "│") if unicode else ("#", "|")
    lines = []
    for value in values:
        cells = [" "] * width
        if value is not None and math.isfinite(value):
            start, stop = sorted((zero, zero + value * scale))
            for cell in range(width):
                cells[cell] = _cell(min(stop, cell + 1) - max(start, cell), value > 0, full, unicode)
        if at is not None:
            cells[at] = line
        lines.append("".join(cells).rstrip())
    return lines


def _cell(covered: float, grows_right: bool, full: str, unicode: bool) -> str:
    """The character of a cell of which ``covered`` (0 to 1) is inside the bar."""
    if unicode and grows_right:
        eighths = round(8 * max(covered, 0.0))
        return full if eighths == 8 else _EIGHTHS[eighths]
    return full if covered >= 0.5 else " "


def time_left(done: float, total: float, elapsed: float) -> str:
    """``about 12 s left``, by the mean pace since the start; empty before there is one.

    Prompts are few and long: a pace over the last seconds would know nothing.
    """
    return f"about {duration(elapsed * max(total - done, 0) / done)} left" if done > 0 else ""


@contextmanager
def work_bar(text: str, total: float | None, quiet: bool = False, spent: float = 0.0) -> Iterator[Advance]:
    """Show a progress bar with the time left on standard error once the work has taken two seconds.

    Nothing is shown where standard error is no terminal, or when quiet.

    Parameters
    ----------
    text
        What is being done.
    total
        Work in any unit; None where it is unknown (then there is no time left either).
    quiet
        Show nothing.
    spent
        Seconds that the work took which is done already in the first call of ``advance``.

    Yields
    ------
    ``advance(done, note)``.
    """
    from rich.console import Console

    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield lambda done, note: None
        return
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = ("{task.description}", "{task.fields[note]}", "{task.fields[left]}")
    said, note_column, left_column = (TextColumn(column, markup=False) for column in columns)
    progress = Progress(
        *(SpinnerColumn(), said, BarColumn(bar_width=16), TimeElapsedColumn(), left_column, note_column),
        console=console,
        transient=True,
    )
    task = progress.add_task(plain(text), total=total, note="", left="")
    start = time.monotonic()

    def advance(done: float, note: str) -> None:
        left = "" if total is None else time_left(done, total, spent + time.monotonic() - start)
        progress.update(task, completed=None if total is None else done, note=plain(note), left=left)

    timer = threading.Timer(PROGRESS_AFTER, progress.start)
    timer.daemon = True
    timer.start()
    try:
        yield advance
    finally:
        timer.cancel()
        timer.join()
        progress.stop()
