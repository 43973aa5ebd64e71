"""Curve: attention against document position, with its head/middle and tail/middle ratios."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from attnprobe.errors import InputError
from attnprobe.estimates import defined, json_number
from attnprobe.norms import document_values

if TYPE_CHECKING:
    from attnprobe.fit import Fit
    from attnprobe.run import Run

Layers = int | slice | Sequence[int] | None
Heads = int | slice | Sequence[int] | Sequence[tuple[int, int]] | None


@dataclass(frozen=True, eq=False)
class Curve:
    """One value a document, in document order.

    Parameters
    ----------
    values
        float64 [document], read-only; NaN where undefined (no row sees the document). In nats for
        ``advantage``.
    norm
        How the values were made; see ``attnprobe.norms``.
    documents
        Names of the documents.
    middle
        Positions that count as the middle; empty for two documents or fewer.
    layers
        The model's numbers of the layers averaged over.
    heads
        The query heads averaged over, in each of ``layers``; or ``(layer, head)`` pairs if pairs were chosen.
    secondary_sinks
        Whether the documents' secondary sinks are ``"apart"`` or ``"counted"`` to their documents; None where the run
        sets none of any document apart.
    """

    values: np.ndarray
    norm: str
    documents: tuple[str, ...]
    middle: tuple[int, ...]
    layers: tuple[int, ...]
    heads: tuple[int, ...] | tuple[tuple[int, int], ...]
    secondary_sinks: Literal["apart", "counted"] | None = None

    def __post_init__(self) -> None:
        values = np.array(self.values, dtype=np.float64)
        if values.shape != (len(self.documents),):
            raise InputError(f"values has shape {values.shape}, but there are {len(self.documents)} documents")
        values.flags.writeable = False
        object.__setattr__(self, "values", values)

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={value:.4g}" for name, value in zip(self.documents, self.values, strict=True))
        sinks = f", secondary sinks {self.secondary_sinks}" if self.secondary_sinks else ""
        return f"Curve({self.norm}{sinks}: {values})"

    @property
    def middle_mass(self) -> float | None:
        """Mean value of the middle documents; None when there is no middle or one of them is undefined."""
        if not self.middle:
            return None
        return defined(sum(float(self.values[position]) for position in self.middle) / len(self.middle))

    @property
    def head_middle(self) -> float | None:
        """First document's value over the middle's mean.

        ``inf`` when the middle is 0 and the head is not; None with two documents or fewer, when a value is
        undefined, for 0/0, and for ``advantage``, whose values are logarithms: see ``head_minus_middle``.
        """
        return self._ratio(0)

    @property
    def tail_middle(self) -> float | None:
        """Last document's value over the middle's mean, with the same exceptions as ``head_middle``."""
        return self._ratio(-1)

    @property
    def head_minus_middle(self) -> float | None:
        """First document's value less the middle's mean, in nats, for ``advantage``; None for other norms."""
        return self._difference(0)

    @property
    def tail_minus_middle(self) -> float | None:
        """Last document's value less the middle's mean, in nats, for ``advantage``; None for other norms."""
        return self._difference(-1)

    def _ratio(self, end: int) -> float | None:
        middle = self.middle_mass
        if middle is None or self.norm == "advantage":
            return None
        value = float(self.values[end])
        if middle == 0:
            return math.inf if value > 0 else None
        return defined(value / middle)

    def _difference(self, end: int) -> float | None:
        middle = self.middle_mass
        if middle is None or self.norm != "advantage":
            return None
        return defined(float(self.values[end]) - middle)

    def fit(self, model: str = "symmetric") -> Fit:
        """Least-squares fit of a model to the curve's values over their sum.

        Parameters
        ----------
        model
            ``"symmetric"`` (the context-rot article's curve), ``"two_sided"`` (a decay from either end, and a
            floor) or ``"flat"``.

        Returns
        -------
        Fit

        Raises
        ------
        InputError
            As ``attnprobe.fit.fit_curve``, and for ``advantage``, whose values are logarithms.
        """
        from attnprobe.fit import fit_curve

        if self.norm == "advantage":
            raise InputError(
                "a curve of advantage holds differences of logs, which the models do not describe; "
                'fit one of "share", "mass" or "density"'
            )
        return fit_curve(self.values, model)

    def table(self) -> list[dict[str, Any]]:
        """One row a document: ``position``, ``document``, ``value`` (None: undefined), ``middle`` (bool)."""
        return [
            {
                "position": position,
                "document": name,
                "value": defined(self.values[position]),
                "middle": position in self.middle,
            }
            for position, name in enumerate(self.documents)
        ]

    def to_dict(self) -> dict[str, Any]:
        """Everything in JSON's terms: None where undefined, ``"inf"`` or ``"-inf"`` where infinite."""
        return {
            "norm": self.norm,
            "documents": list(self.documents),
            "values": [json_number(defined(value)) for value in self.values],
            "middle": list(self.middle),
            "middle_mass": json_number(self.middle_mass),
            "head_middle": json_number(self.head_middle),
            "tail_middle": json_number(self.tail_middle),
            "head_minus_middle": json_number(self.head_minus_middle),
            "tail_minus_middle": json_number(self.tail_minus_middle),
            "layers": list(self.layers),
            "heads": [list(head) if isinstance(head, tuple) else head for head in self.heads],
            "secondary_sinks": self.secondary_sinks,
        }


def curve_of(
    run: Run,
    norm: str = "share",
    layers: Layers = None,
    heads: Heads = None,
    middle: str = "default",
    *,
    trimmed: bool = False,
    rows: slice | None = None,
    with_sinks: bool = False,
) -> Curve:
    """Curve of a run's documents; the arguments are those of ``Run.curve``, which says what is raised."""
    documents = run.documents
    if not documents:
        raise InputError(
            "this run has no document spans, so it has no curve; name spans or split the text by paragraph"
        )
    chosen, used_layers, used_heads = choose_heads(run.layers, run.mass.shape[1], layers, heads)
    has_sinks = any(span.kind == "sink" and span.document is not None for span in run.spans)
    return Curve(
        values=document_values(run, norm, chosen, trimmed=trimmed, rows=rows, with_sinks=with_sinks),
        norm=norm,
        documents=documents,
        middle=middle_positions(len(documents), middle),
        layers=used_layers,
        heads=used_heads,
        secondary_sinks=("counted" if with_sinks else "apart") if has_sinks else None,
    )


def middle_positions(K: int, middle: str = "default") -> tuple[int, ...]:
    """Positions of the middle documents.

    Parameters
    ----------
    K
        Number of documents, at least 1.
    middle
        ``"default"``: K = 3 gives {1}, an even K the two central ones, an odd K >= 5 the three central ones.
        ``"source"``: range(K // 2 - 1, K // 2 + 2) as printed in the context-rot article, clipped to the
        documents: off-centre for an even K, and with both ends in it for K = 3. For comparison with numbers
        made that way.

    Returns
    -------
    tuple of int
        Empty for K <= 2, where no middle exists, under either rule.

    Raises
    ------
    InputError
        For K < 1 or an unknown rule.
    """
    K = _count("K", K)
    if middle not in ("default", "source"):
        raise InputError(f'middle {middle!r} is unknown; expected "default" or "source"')
    if K <= 2:
        return ()
    centre = K // 2
    if middle == "source":
        return tuple(range(centre - 1, min(centre + 2, K)))
    if K == 3:
        return (1,)
    return (centre - 1, centre) if K % 2 == 0 else (centre - 1, centre, centre + 1)


def effective_attention(K: int, alpha: float = 0.45) -> np.ndarray:
    """The analytic U of the context-rot article: exponential decay from both ends.

    Parameters
    ----------
    K
        Number of documents, at least 1.
    alpha
        Decay a position, finite and >= 0.

    Returns
    -------
    numpy.ndarray
        float64 [K]: exp(-alpha i) + exp(-alpha (K - 1 - i)), divided by its sum.

    Raises
    ------
    InputError
        When an argument is out of range.
    """
    K = _count("K", K)
    try:
        decay = float(alpha)
    except (TypeError, ValueError):
        decay = math.nan
    if not (math.isfinite(decay) and decay >= 0):
        raise InputError(f"alpha must be a finite number >= 0, not {alpha!r}")
    position = np.arange(K, dtype=np.float64)
    raw = np.exp(-decay * position) + np.exp(-decay * position[::-1])
    return raw / raw.sum()


def _count(name: str, value: Any) -> int:
    number = _integer(name, value)
    if number < 1:
        raise InputError(f"{name} must be at least 1, not {number}")
    return number


def _integer(name: str, value: Any) -> int:
    try:
        if isinstance(value, bool | np.bool_):
            raise TypeError
        return operator.index(value)
    except TypeError:
        raise InputError(f"{name} must be an int, not {value!r}") from None


def choose_heads(
    run_layers: tuple[int, ...], n_heads: int, layers: Layers, heads: Heads
) -> tuple[np.ndarray, tuple[int, ...], tuple[int, ...] | tuple[tuple[int, int], ...]]:
    """Chosen entries as bool [layer, head], and their numbers for the record."""
    chosen = np.zeros((len(run_layers), n_heads), dtype=bool)
    all_heads = tuple(range(n_heads))
    if _are_pairs(heads):
        if layers is not None:
            raise InputError("heads lists (layer, head) pairs, which name the layers already; leave layers out")
        pairs: list[tuple[int, int]] = []
        for layer, head in heads:  # type: ignore[union-attr, misc]
            pair = (_number("layer", layer, run_layers), _number("head", head, all_heads))
            if pair in pairs:
                raise InputError(f"heads lists the pair {pair} twice")
            pairs.append(pair)
            chosen[run_layers.index(pair[0]), pair[1]] = True
        return chosen, tuple(sorted({layer for layer, _ in pairs})), tuple(pairs)
    used_layers = _numbers("layer", layers, run_layers)
    used_heads = _numbers("head", heads, all_heads)
    chosen[np.ix_([run_layers.index(layer) for layer in used_layers], used_heads)] = True
    return chosen, used_layers, used_heads


def _are_pairs(heads: Any) -> bool:
    if heads is None or isinstance(heads, slice | str) or not hasattr(heads, "__len__"):
        return False
    if not len(heads) or not any(hasattr(entry, "__len__") for entry in heads):
        return False
    if not all(hasattr(entry, "__len__") and len(entry) == 2 for entry in heads):
        raise InputError(f"heads must be head numbers or (layer, head) pairs, not {heads!r}")
    return True


def _number(what: str, wanted: Any, available: tuple[int, ...]) -> int:
    number = _integer(what, wanted)
    if number not in available:
        raise InputError(f"{what} {number} is not in this run; {_range_text(what, available)}")
    return number


def _numbers(what: str, wanted: Any, available: tuple[int, ...]) -> tuple[int, ...]:
    """Layer or head numbers that a choice means; a slice is over the numbers, not over list places."""
    if wanted is None:
        return available
    if isinstance(wanted, slice):
        try:
            sliced = set(range(*wanted.indices(available[-1] + 1)))
        except (TypeError, ValueError) as error:
            raise InputError(f"{what}s={wanted!r} is not a slice of {what} numbers: {error}") from error
        numbers = tuple(number for number in available if number in sliced)
    elif hasattr(wanted, "__len__") and not isinstance(wanted, str):
        numbers = tuple(_number(what, entry, available) for entry in wanted)
    else:
        numbers = (_number(what, wanted, available),)
    if not numbers:
        raise InputError(f"{what}s={wanted!r} selects nothing; {_range_text(what, available)}")
    if len(set(numbers)) < len(numbers):
        raise InputError(f"{what}s={list(numbers)} names a {what} twice")
    return numbers


def _range_text(what: str, available: tuple[int, ...]) -> str:
    first, last = available[0], available[-1]
    if len(available) == last - first + 1:
        return f"available {what}s: {first} to {last}"
    return f"available {what}s: {', '.join(map(str, available))}"
