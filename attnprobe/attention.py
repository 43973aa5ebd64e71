"""The one global that is ever touched: the attention function that a model already uses, wrapped in place.

transformers looks its attention function up by name at every call. While a capture is running, that name leads to a
dispatcher that shows the call to whoever observes the calling module in the calling thread, and then runs the original
function. No new name is registered: masks, and branches inside models, depend on the name.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from attnprobe.errors import CaptureError

Observer = Callable[[nn.Module, torch.Tensor, torch.Tensor, torch.Tensor, Any, dict[str, Any]], Any]
"""Called as ``observer(module, query, key, value, attention_mask, keyword_arguments)`` before the attention itself.

Returns the mask that the attention is to use: the one it was given, unless it is there to change it.
"""

_lock = threading.RLock()
_dispatchers: dict[str, _Dispatcher] = {}
_observers: dict[tuple[int, int], Observer] = {}
_families: dict[int, list[frozenset[int]]] = {}
"""By thread: the modules of the models under observation, among which no attention call may go unseen."""


def _registry() -> Any:
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    return ALL_ATTENTION_FUNCTIONS


def _forwards(module: nn.Module) -> Iterator[Any]:
    """The forward functions of a module's class and of those it is derived from, undecorated."""
    for kind in type(module).__mro__:
        forward = inspect.unwrap(kind.__dict__["forward"]) if "forward" in kind.__dict__ else None
        if hasattr(forward, "__code__"):
            yield forward


def uses_attention_interface(module: nn.Module) -> bool:
    """Whether the module's class, or one it is derived from, looks its attention function up in the shared registry."""
    return any(
        "ALL_ATTENTION_FUNCTIONS" in forward.__code__.co_names
        and forward.__globals__.get("ALL_ATTENTION_FUNCTIONS") is _registry()
        for forward in _forwards(module)
    )


def eager_function(module: nn.Module) -> Callable[..., Any]:
    """The eager attention function that the module's own forward falls back to (it is in no registry)."""
    for forward in _forwards(module):
        for name in forward.__code__.co_names:
            if name.endswith("eager_attention_forward") and name in forward.__globals__:
                function: Callable[..., Any] = forward.__globals__[name]
                return function
    raise CaptureError(
        f"{type(module).__name__} names no eager attention function; load the model with "
        'attn_implementation="sdpa" to measure it'
    )


class _Dispatcher:
    """Stands under one implementation's name; shows each call to its observer, then runs the original."""

    def __init__(self, original: Callable[..., Any] | None, local: Callable[..., Any] | None) -> None:
        self.original = original  # None for "eager", which each model brings along
        self.local = local  # another tool's local override of this name, to be put back
        self.users = 0

    def __call__(
        self,
        module: nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: Any,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        thread = threading.get_ident()
        observer = _observers.get((id(module), thread))
        if observer is not None:
            attention_mask = observer(module, query, key, value, attention_mask, kwargs)
        elif any(id(module) in family for family in _families.get(thread, ())):
            raise CaptureError(
                f"{type(module).__name__} is part of the model and attends, but was not recognised as an attention "
                "layer; the model cannot be measured"
            )
        original = self.original or eager_function(module)
        return original(module, query, key, value, attention_mask, *args, **kwargs)


def _install(implementation: str) -> None:
    with _lock:
        dispatcher = _dispatchers.get(implementation)
        if dispatcher is None:
            registry = _registry()
            dispatcher = _Dispatcher(
                original=registry.get(implementation), local=registry._local_mapping.get(implementation)
            )
            if dispatcher.original is None and implementation != "eager":
                raise CaptureError(f"transformers has no attention implementation {implementation!r}")
            registry[implementation] = dispatcher
            _dispatchers[implementation] = dispatcher
        dispatcher.users += 1


def _uninstall(implementation: str) -> None:
    with _lock:
        dispatcher = _dispatchers[implementation]
        dispatcher.users -= 1
        if dispatcher.users == 0:
            del _dispatchers[implementation]
            if dispatcher.local is not None:
                _registry()[implementation] = dispatcher.local
            else:
                # Assigning the original back would leave a local entry that hides later registrations.
                del _registry()[implementation]


@contextmanager
def observed(model: nn.Module, modules: Iterable[nn.Module], observer: Observer, implementation: str) -> Iterator[None]:
    """Show every attention call of ``modules`` in this thread to ``observer`` until the context ends.

    Contexts may nest and may run in several threads, on one model or on several; the last one out restores the
    registry. An outer context's observer does not see the calls of an inner one on the same module.

    Parameters
    ----------
    model
        Whatever contains the modules; an attention call of any other module of it is an error.
    modules
        Attention modules.
    observer
        Sees their calls.
    implementation
        Name of the attention function that they use.

    Raises
    ------
    CaptureError
        transformers has no attention implementation of this name.
    """
    thread = threading.get_ident()
    keys = [(id(module), thread) for module in modules]
    family = frozenset(id(module) for module in model.modules())
    outer = {key: _observers[key] for key in keys if key in _observers}
    _install(implementation)
    try:
        _observers.update(dict.fromkeys(keys, observer))
        _families.setdefault(thread, []).append(family)
        yield
    finally:
        for key in keys:
            if key in outer:
                _observers[key] = outer[key]
            else:
                _observers.pop(key, None)
        _families[thread].remove(family)
        if not _families[thread]:
            del _families[thread]
        _uninstall(implementation)


def observer_of(module: nn.Module) -> Observer | None:
    """Who sees this module's attention calls in this thread."""
    return _observers.get((id(module), threading.get_ident()))
