"""RoPE frequencies in use: read from a model's modules, brought back to their start, and proof of an override."""

from __future__ import annotations

import copy
import hashlib
import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from attnprobe.errors import InputError
from attnprobe.rope import AT_RUN_TIME, of_layers, parameters_of
from attnprobe.rope_parse import LENGTH


def rope_in_use(model: nn.Module) -> dict[str, dict[str, Any]]:
    """Read the RoPE frequencies that the live modules hold, whatever the config says.

    Returns
    -------
    dict
        One entry a rotary module, or a module and layer type (``"model.rotary_emb:full_attention"``), with
        ``rope_type``, ``attention_scaling``, ``inv_freq`` (list of float, radians per position) and
        ``sha256`` (of the float64 little-endian bytes). Empty for a model without rotary positions.
        Frequencies of types ``dynamic`` and ``longrope`` are those of the last forward pass.
    """
    found = {}
    for name, module, layer_type in rotary_modules(model):
        frequencies, scaling = frequencies_of(module, layer_type)
        found[f"{name}:{layer_type}" if layer_type else name] = {
            "rope_type": _rope_type(module, layer_type),
            "attention_scaling": scaling,
            "inv_freq": frequencies.tolist(),
            "sha256": hashlib.sha256(frequencies.numpy().astype("<f8").tobytes()).hexdigest(),
        }
    return found


def reset_frequencies(model: nn.Module) -> None:
    """Bring ``dynamic`` frequencies back to those of the original length, as in a model that has just been loaded.

    transformers keeps those of the longest prompt since the last one within the original length, so that a prompt's
    output would depend on the prompts before it.
    """
    for _, module, layer_type in rotary_modules(model):
        prefix = f"{layer_type}_" if layer_type else ""
        original = getattr(module, f"{prefix}original_inv_freq", None)
        if _rope_type(module, layer_type) == "dynamic" and original is not None:
            device = getattr(module, f"{prefix}inv_freq").device
            module.register_buffer(f"{prefix}inv_freq", original.to(device), persistent=False)
            setattr(module, f"{prefix}max_seq_len_cached", module.original_max_seq_len)


def assert_rope_applied(before: Any, model: nn.Module, expected: Any = None) -> None:
    """Raise unless the model's live rotary modules do what its overridden config asks for.

    Parameters
    ----------
    before
        The config without the override.
    model
        The loaded model.
    expected
        The config with the override; by default the model's own. It may ask for nothing new only if given.

    Raises
    ------
    InputError
        When the model has no rotary modules that follow its config, or any of them uses other frequencies,
        another attention scaling or another type than the override asks for, or turns by other angles than its
        frequencies say; for ``dynamic`` and ``longrope`` also past the original length.
    """
    name = type(model).__name__
    own: Any = model.config
    after = (own if expected is None else expected).get_text_config(decoder=True)
    old = before.get_text_config(decoder=True)
    if expected is None and after.rope_parameters == old.rope_parameters:
        raise InputError(f"{name} was loaded without the RoPE override: its config is the original one")
    checked = 0
    for path, module, layer_type in rotary_modules(model):
        if not isinstance(getattr(module, "config", None), type(after)):
            continue  # the rotary module of a vision or audio tower
        check_rotary(name, path, module, layer_type, after)
        checked += 1
    if not checked:
        raise InputError(
            f"{name} ignores the RoPE override: it has no rotary module whose frequencies could be checked; "
            "leave rope=None, or use a model with rotary positions"
        )


def check_rotary(name: str, path: str, module: nn.Module, layer_type: str | None, config: Any) -> None:
    """Raise unless one rotary module does what ``config`` asks for; ``name`` and ``path`` are for the message.

    Raises
    ------
    InputError
        As :func:`assert_rope_applied`.
    """
    wanted = parameters_of(config, layer_type)
    kind, live_kind = wanted["rope_type"], _rope_type(module, layer_type)
    where = f"{path} ({layer_type} layers)" if layer_type else path
    problem = f'rope type "{live_kind}" where "{kind}" is asked for' if live_kind != kind else None
    if problem is None and not _same(frequencies_of(module, layer_type), _computed(module, layer_type, config, None)):
        problem = "other frequencies or attention scaling than the override asks for"
    if problem is None and _turns_otherwise(module, layer_type):
        problem = "other angles than those of the frequencies that it holds"
    if problem is None and kind in AT_RUN_TIME:
        original = wanted.get(LENGTH) or config.max_position_embeddings
        try:
            past = frequencies_at(module, layer_type, 2 * original)
        except Exception as error:  # the module's own code, in whatever way it fails
            raise InputError(
                f'{name} cannot run the RoPE type "{kind}" at {2 * original} positions: {where} fails with '
                f"{type(error).__name__}: {error}; try another type, or another version of transformers"
            ) from error
        if not _same(past, _computed(module, layer_type, config, 2 * original)):
            problem = f"other frequencies at {2 * original} positions than the override asks for"
    if problem:
        raise InputError(
            f"{name} ignores the RoPE override: {where} uses {problem}. A loaded model cannot be changed: "
            "load it anew with rope=..., or leave rope=None if its class computes RoPE in its own way"
        )


def rotary_modules(model: nn.Module) -> Iterator[tuple[str, nn.Module, str | None]]:
    """Every module with inverse frequencies, once a layer type (None: not kept by layer type)."""
    for name, module in model.named_modules():
        for buffer, _ in module.named_buffers(recurse=False):
            if buffer == "inv_freq":
                yield name, module, None
            elif buffer.endswith("_inv_freq") and not buffer.endswith(("original_inv_freq", "long_inv_freq")):
                yield name, module, buffer.removesuffix("_inv_freq")


def frequencies_of(module: nn.Module, layer_type: str | None) -> tuple[torch.Tensor, float]:
    """Inverse frequencies that a module holds, float64 on the CPU, radians a position, and its attention scaling."""
    prefix = f"{layer_type}_" if layer_type else ""
    frequencies = getattr(module, f"{prefix}inv_freq").detach().to("cpu", torch.float64)
    return frequencies, float(getattr(module, f"{prefix}attention_scaling", 1.0))


def _rope_type(module: nn.Module, layer_type: str | None) -> str:
    kind: Any = getattr(module, "rope_type", "default")
    return str(kind.get(layer_type, "default") if isinstance(kind, Mapping) else kind)


def frequencies_at(module: nn.Module, layer_type: str | None, length: int) -> tuple[torch.Tensor, float]:
    """As :func:`frequencies_of`, as a copy of the module uses them for a prompt of ``length`` tokens."""
    probe = copy.deepcopy(module)
    for _ in range(2):  # as in generation: transformers 5.17 fails in the second call of nested longrope
        _forward(probe, layer_type, length - 1)
    return frequencies_of(probe, layer_type)


def _forward(probe: nn.Module, layer_type: str | None, position: int) -> Any:
    device = next(probe.buffers()).device
    kwargs = {"layer_type": layer_type} if layer_type else {}
    positions = torch.tensor([[position]], device=device)
    # the class's own forward: one that accelerate put on the instance would run the original module
    with torch.no_grad():
        return type(probe).forward(probe, torch.zeros(1, 1, 1, device=device), positions, **kwargs)


def _turns_otherwise(module: nn.Module, layer_type: str | None) -> bool:
    """Whether what the module returns for position 1 has other sines than its frequencies; False where none show."""
    frequencies, scaling = frequencies_of(module, layer_type)
    try:
        given = _forward(copy.deepcopy(module), layer_type, 1)
    except Exception:  # a class of its own way to be called; its frequencies are all that can be checked
        return False
    pair = given if isinstance(given, tuple) and len(given) == 2 else None
    sines = given.imag if isinstance(given, torch.Tensor) and given.is_complex() else pair and pair[1]
    if not isinstance(sines, torch.Tensor) or not len(frequencies) or sines.numel() % len(frequencies):
        return False
    # not cosines, which float32 cannot tell from 1 for slow frequencies; some classes give each twice
    wanted = (scaling * frequencies.sin()).repeat(sines.numel() // len(frequencies))
    found = sines.flatten().to("cpu", torch.float64)
    return not torch.allclose(found.sort().values, wanted.sort().values, rtol=1e-4, atol=1e-30)


def _computed(
    module: nn.Module, layer_type: str | None, config: Any, length: int | None
) -> tuple[torch.Tensor, float] | None:
    """Frequencies that transformers' definition of the rope type gives; None where it has no definition."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    config = copy.deepcopy(config)  # these functions normalise the config they are given
    kind = parameters_of(config, layer_type)["rope_type"]
    kwargs: dict[str, Any] = {"layer_type": layer_type} if layer_type else {}
    config = of_layers(config, layer_type)
    if kind in ROPE_INIT_FUNCTIONS:
        frequencies, scaling = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"), seq_len=length, **kwargs)
    elif hasattr(module, f"compute_{kind}_rope_parameters"):
        frequencies, scaling = getattr(module, f"compute_{kind}_rope_parameters")(config, **kwargs)
    else:
        return None
    return frequencies.to("cpu", torch.float64), float(scaling)


def _same(live: tuple[torch.Tensor, float], computed: tuple[torch.Tensor, float] | None) -> bool:
    if computed is None or live[0].shape != computed[0].shape:
        return False
    # float32 powers differ by a few units in the last place between devices
    return torch.allclose(live[0], computed[0], rtol=1e-5, atol=0) and math.isclose(live[1], computed[1], rel_tol=1e-6)
