"""Shape annotations: jaxtyping's where it is installed (the tests check them), plain tensors elsewhere.

Letters: B samples, Hq query heads, Hkv key heads, A query rows, N keys, D head dimension, S spans, R blocks of
rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxtyping import Float, Shaped
else:
    try:
        from jaxtyping import Float, Shaped
    except ImportError:

        class _Untyped:
            def __class_getitem__(cls, item: Any) -> Any:
                return item[0]

        Float = Shaped = _Untyped

__all__ = ["Float", "Shaped"]
