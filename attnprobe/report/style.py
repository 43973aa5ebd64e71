"""One style for every picture: widths of print, colours, fonts, and files that come out the same each time."""

from __future__ import annotations

import functools
import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, ParamSpec, TypeVar

from attnprobe.errors import InputError
from attnprobe.report.figure_text import families, wrapped
from attnprobe.report.own_files import PICTURE_MARKS, check_own, make_folder

Width = Literal["column", "page"]
WIDTHS: dict[str, float] = {"column": 3.3, "page": 6.9}
"""Inches: one column of a two-column page, and the whole page."""

SUFFIXES = (".png", ".svg", ".pdf")

# Okabe and Ito's colours, which people of every colour vision can tell apart; shapes differ too.
BLUE, ORANGE, GREEN, PINK, SKY, AMBER, BLACK = (
    *("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000"),
)
LINES = (BLUE, ORANGE, GREEN, PINK, SKY, AMBER, BLACK)
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
GREY, LIGHT, TEXT = "#8A8A8A", "#E5E5E5", "#444444"
SEQUENTIAL, DIVERGING = "viridis", "PuOr_r"

PERCENT = (-3, 103)
"""Limits of an axis of percentages: all of them, with room for the marks at both ends."""

TITLE, BODY, SMALL = 8.5, 8.0, 7.0
"""Points at print size: titles, labels of axes, and everything else; nothing is smaller."""

_EDGE = 0.04  # inches that stay empty around a figure
_STYLE: dict[str, Any] = {
    "font.size": SMALL,
    "figure.titlesize": TITLE,
    "figure.titleweight": "bold",
    "axes.titlesize": BODY,
    "axes.labelsize": BODY,
    "xtick.labelsize": SMALL,
    "ytick.labelsize": SMALL,
    "legend.fontsize": SMALL,
    "legend.frameon": False,
    "legend.handlelength": 1.6,
    "legend.borderaxespad": 0.2,
    "axes.linewidth": 0.6,
    "axes.edgecolor": TEXT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "xtick.color": TEXT,
    "ytick.color": TEXT,
    "xtick.labelcolor": "black",
    "ytick.labelcolor": "black",
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "lines.linewidth": 1.5,
    "lines.markersize": 4.0,
    "grid.color": LIGHT,
    "grid.linewidth": 0.6,
    "hatch.linewidth": 0.5,
    "image.interpolation": "nearest",
    "image.cmap": SEQUENTIAL,
    "figure.constrained_layout.h_pad": _EDGE,
    "figure.constrained_layout.w_pad": _EDGE,
    "text.parse_math": False,  # a name may hold dollar signs
    "savefig.dpi": 300,
    "svg.fonttype": "none",  # text stays text, in the reader's sans-serif where there is no such font
    "svg.hashsalt": "attnprobe",
    "pdf.fonttype": 42,  # TrueType, which publishers take
}
_METADATA: dict[str, dict[str, Any]] = {
    ".png": {"Software": "attnprobe"},
    ".svg": {"Date": None, "Creator": "attnprobe"},
    ".pdf": {"CreationDate": None, "Creator": "attnprobe", "Producer": "attnprobe"},
}

P = ParamSpec("P")
T = TypeVar("T")


@contextmanager
def _style() -> Iterator[None]:
    import matplotlib

    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # whatever the user's own settings are
        settings: Any = _STYLE | {"font.family": [*families(), "sans-serif"]}  # matplotlib's own type lists every key
        matplotlib.rcParams.update(settings)
        yield


def styled(draw: Callable[P, T]) -> Callable[P, T]:
    """Draw in the project's style, which is taken when a figure's parts are made; the caller's settings stay."""

    @functools.wraps(draw)
    def drawn(*arguments: P.args, **options: P.kwargs) -> T:
        with _style():
            return draw(*arguments, **options)

    return drawn


def new_figure(width: Width = "page", height: float = 4.0) -> Any:
    """An empty figure that needs no screen; ``height`` in inches, without title and note.

    Raises
    ------
    InputError
        For an unknown width.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    if width not in WIDTHS:
        raise InputError(f"width is {width!r}; give {' or '.join(repr(name) for name in WIDTHS)}")
    figure = Figure(figsize=(WIDTHS[width], height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def say_around(figure: Any, title: str, note: str) -> None:
    """Write a title above a figure and what it was made from below, in lines that fit; the figure grows by them.

    A line of the note that is longer becomes several.
    """
    room = figure.get_figwidth() - 2 * _EDGE
    left = _EDGE / figure.get_figwidth()
    titles = wrapped(title, room, TITLE, bold=True)
    notes = [line for paragraph in note.split("\n") for line in wrapped(paragraph, room, SMALL)]
    figure.set_figheight(figure.get_figheight() + 1.25 * (TITLE * len(titles) + SMALL * len(notes)) / 72)
    figure.suptitle("\n".join(titles), x=left, ha="left")
    if notes:
        figure.supxlabel("\n".join(notes), fontsize=SMALL, color=TEXT, x=left, ha="left")


def check_suffix(path: str | os.PathLike[str]) -> str:
    """The suffix of a picture's file, in lower case.

    Raises
    ------
    InputError
        When pictures cannot be written so.
    """
    suffix = Path(path).suffix.lower()
    if suffix not in SUFFIXES:
        named = f'ends in "{suffix}"' if suffix else "has no suffix"
        raise InputError(f"{os.fspath(path)} {named}; a picture is written as {', '.join(SUFFIXES)}")
    return suffix


def check_picture(path: str | os.PathLike[str], force: bool = False) -> None:
    """Refuse a picture's file that cannot be one, or, without ``force``, that attnprobe did not make.

    Raises
    ------
    InputError
        Naming the file, what is wrong, and the way out.
    """
    mark = "" if force else PICTURE_MARKS[check_suffix(path)]
    check_own(Path(path), "picture", mark, "give another --out, or --force to write over it")


@styled
def picture(figure: Any, suffix: str, dpi: int | None = None) -> bytes:
    """A figure as PNG, SVG or PDF, as the suffix says; the same figure gives the same bytes. ``dpi`` None: 300."""
    content = io.BytesIO()
    figure.savefig(content, format=suffix[1:], dpi=dpi, metadata=_METADATA[suffix])
    return content.getvalue()


def save_figure(figure: Any, path: str | os.PathLike[str]) -> None:
    """Write a figure as PNG (300 dpi), SVG or PDF, as the suffix says; the same figure gives the same bytes.

    Raises
    ------
    InputError
        Another suffix, or a file that cannot be written.
    """
    content = picture(figure, check_suffix(path))
    make_folder(Path(path).parent)
    try:
        Path(path).write_bytes(content)
    except OSError as error:
        raise InputError(f"{os.fspath(path)} cannot be written: {error.strerror}; give another file") from error
