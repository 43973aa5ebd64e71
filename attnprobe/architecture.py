"""What a model is made of, as far as attention goes: its decoder, attention layers, and linear modules inside them."""

from __future__ import annotations

import re

import torch
from torch import Tensor, nn

from attnprobe.attention import uses_attention_interface
from attnprobe.errors import CaptureError


def decoder_of(model: nn.Module) -> nn.Module:
    """The text decoder of a model that may have vision or audio towers beside it; else the model itself."""
    get_decoder = getattr(model, "get_decoder", None)
    decoder = get_decoder() if callable(get_decoder) else None
    # Some models call another part of theirs "decoder": one without layers is not meant.
    return decoder if isinstance(decoder, nn.Module) and hasattr(decoder, "config") else model


def attention_layers(model: nn.Module) -> list[tuple[nn.Module, int]]:
    """The decoder's modules that look their attention function up in transformers' registry, with their layers."""
    named = [(name, module) for name, module in decoder_of(model).named_modules() if uses_attention_interface(module)]
    return [(module, layer_index(module, name, number)) for number, (name, module) in enumerate(named)]


def implementation_of(model: nn.Module) -> str:
    """Name of the attention implementation that the text decoder uses."""
    config = getattr(decoder_of(model), "config", None) or model.config
    return str(getattr(config, "_attn_implementation", None) or "eager")


def uses_interface(model: nn.Module) -> bool:
    """Whether the model's layers call an attention function that can be wrapped where it is.

    GPT-2's upcast option goes past the interface in eager attention.
    """
    layers = attention_layers(model)
    upcast = implementation_of(model) == "eager" and any(
        getattr(module, "reorder_and_upcast_attn", False) for module, _ in layers
    )
    return bool(layers) and not upcast


def refuse_unmeasurable(model: nn.Module) -> None:
    """Raise for models whose attention calls cannot be read where they run.

    Raises
    ------
    CaptureError
        The model is in training mode, compiled, or its heads are sharded over processes.
    """
    name = type(model).__name__
    if any(module.training for module in model.modules()):
        raise CaptureError(
            f"{name} is in training mode, or a part of it is, where attention has dropout; call model.eval()"
        )
    compiled = isinstance(model, torch._dynamo.eval_frame.OptimizedModule)
    if compiled or any(module._compiled_call_impl is not None for module in model.modules()):
        raise CaptureError(f"{name} is compiled, which hides its attention calls; measure the model before compiling")
    if (getattr(model, "_tp_size", None) or 1) > 1:
        raise CaptureError(
            f"{name} has its heads sharded over {model._tp_size} processes (tensor parallelism); "
            'load it with device_map="auto" instead'
        )


def layer_index(module: nn.Module, name: str, number: int) -> int:
    """The layer that an attention module belongs to: as it says, or as its name in the model says, or by its order."""
    index = getattr(module, "layer_idx", None)
    if isinstance(index, int) and index >= 0:
        return index
    in_name = re.search(r"(?:^|\.)(\d+)(?:\.|$)", name)
    return int(in_name[1]) if in_name else number


def linear_modules(module: nn.Module) -> list[nn.Module]:
    """The plain linear layers inside a module: torch's own, and GPT-2's, which has its weight the other way round."""
    from transformers.pytorch_utils import Conv1D

    return [inner for inner in module.modules() if type(inner) in (nn.Linear, Conv1D)]


def linear_weight(module: nn.Module) -> Tensor:
    """Weight ``[n_out, n_in]`` of one of :func:`linear_modules`."""
    weight: Tensor = module.weight  # type: ignore[assignment]
    return weight if type(module) is nn.Linear else weight.T
