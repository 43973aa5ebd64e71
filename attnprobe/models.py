"""Loading a causal language model: alias, hub id, folder or GGUF file; dtype, device and RoPE override."""

from __future__ import annotations

import contextlib
import copy
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from attnprobe.errors import InputError
from attnprobe.grid_processes import own_device
from attnprobe.rope import apply_rope, trained_positions
from attnprobe.rope_frequencies import assert_rope_applied
from attnprobe.rope_parse import RopeOverride, parse_rope
from attnprobe.sources import (
    ACCEPTED,
    ModelSource,
    check_causal,
    check_loads,
    checked_dtype,
    explained,
    is_on_cpu,
    load_tokenizer,
    quiet_transformers,
    resolve,
)
from attnprobe.terminal import plain, say


@dataclass(frozen=True, eq=False)
class LanguageModel:
    """A causal language model and its tokenizer, the user's own or from ``load``.

    The model is put into evaluation mode; the tokenizer is never changed.

    Parameters
    ----------
    model
        A transformers model that generates text from the left (``...ForCausalLM`` or alike). Of a wrapper around one
        (PEFT), the model inside is kept, with its adapters.
    tokenizer
        Its tokenizer.
    source
        Where the model came from; by default what its config tells.

    Raises
    ------
    InputError
        When the model is an encoder-decoder, does not generate text, or attends in both directions, or the
        tokenizer is missing.
    """

    model: Any
    tokenizer: Any
    source: ModelSource = field(default=ModelSource(name=""))

    def __post_init__(self) -> None:
        if not isinstance(self.model, nn.Module) or not hasattr(self.model, "config"):
            raise InputError(
                f"model is {type(self.model).__name__}, not a transformers model; "
                "to load one by name use attnprobe.load(name)"
            )
        if not callable(self.tokenizer):
            raise InputError(
                f"tokenizer is {type(self.tokenizer).__name__}, not a transformers tokenizer; "
                "pass AutoTokenizer.from_pretrained(...)"
            )
        object.__setattr__(self, "model", _inner_model(self.model))
        check_causal(type(self.model).__name__, self.model.config)
        if not (hasattr(self.model, "generate") and getattr(self.model, "can_generate", lambda: True)()):
            raise InputError(
                f"{type(self.model).__name__} does not generate text; load the model with AutoModelForCausalLM"
            )
        self.model.eval()
        if not self.source.name:
            name = getattr(self.model.config, "_name_or_path", "") or type(self.model).__name__
            source = ModelSource(str(name), revision=getattr(self.model.config, "_commit_hash", None))
            object.__setattr__(self, "source", source)
        if self.source.dtype is None:
            source = replace(self.source, dtype=str(self.model.dtype).removeprefix("torch."))
            object.__setattr__(self, "source", source)

    def __repr__(self) -> str:
        return f"LanguageModel({self.source.name!r}: {type(self.model).__name__}, {self.source.dtype})"

    @property
    def config(self) -> Any:
        """The config of the text model, also where it is one part of a composite model."""
        return self.model.config.get_text_config(decoder=True)

    @property
    def max_positions(self) -> int | None:
        """Positions the model is trained for, or extended to by RoPE scaling; None when it has no limit."""
        return trained_positions(self.model.config)

    @property
    def positions_are_hard(self) -> bool:
        """Whether the model cannot run past ``max_positions`` at all: its positions are looked up in a table."""
        limit = self.max_positions
        if limit is None:
            return False
        tables = [*self.model.named_parameters(), *self.model.named_buffers()]
        # some tables keep a few rows in front, for padding
        return any(
            re.search(r"pos|wpe", name) and tensor.dim() == 2 and 0 <= tensor.shape[0] - limit <= 8
            for name, tensor in tables
        )

    @property
    def input_device(self) -> torch.device:
        """Where token ids have to be."""
        return input_device(self.model)

    @property
    def pad_id(self) -> int:
        """Token id to pad with: the tokenizer's pad token, else its end-of-sequence token, else 0."""
        for token_id in (self.tokenizer.pad_token_id, self.tokenizer.eos_token_id):
            if token_id is not None:
                return int(token_id)
        return 0


def load(
    name: str | os.PathLike[str],
    dtype: str | torch.dtype | None = None,
    device_map: Any = None,
    attn_implementation: str | None = None,
    rope: str | Mapping[str, Any] | RopeOverride | None = None,
    revision: str | None = None,
    trust_remote_code: bool = False,
    progress: bool = True,
) -> LanguageModel:
    """Load a causal language model with its tokenizer, ready to be measured.

    Parameters
    ----------
    name
        Tried in this order: an alias (``smollm2``), an existing folder or ``.gguf`` file, a hub id. A GGUF file is
        converted once into the cache folder (``$ATTNPROBE_CACHE``, else ``~/.cache/attnprobe``), as float32.
    dtype
        ``"float32"``, ``"bfloat16"``, ``"float16"``, a torch dtype, or ``"auto"`` for the checkpoint's own.
        None: float32 on a CPU, the checkpoint's own on an accelerator.
    device_map
        As for ``from_pretrained``. None: the first CUDA device, or the CPU where there is none; under a launch of
        several processes, each process's own CUDA device.
    attn_implementation
        As for ``from_pretrained``. None: transformers' choice for this model.
    rope
        RoPE override, e.g. ``"yarn:factor=4"``; see ``attnprobe.rope_parse.parse_rope``. With RoPE parameters by layer
        type (gemma3), it changes the full-attention layers only. Verified on the loaded model.
    revision
        Branch, tag or commit of a hub id.
    trust_remote_code
        Whether code that comes with the model may run.
    progress
        Whether to tell on standard error what is going on, once the load has taken 2 seconds.

    Raises
    ------
    InputError
        When the model is not found or cannot be reached, is damaged, incomplete, no causal language model, has no
        tokenizer, needs its own code to run, ignores the RoPE override, or an argument is wrong.
    """
    if not isinstance(name, (str, os.PathLike)):
        raise InputError(f"the model's name is {name!r}; give {ACCEPTED}")
    name = os.fspath(name)
    override = None if rope is None else parse_rope(rope)
    on_cpu = is_on_cpu(device_map)
    options: dict[str, Any] = {"dtype": checked_dtype(dtype, on_cpu)}
    if attn_implementation is not None:
        options["attn_implementation"] = attn_implementation
    if device_map is not None or not on_cpu:
        options["device_map"] = {"": own_device() or "cuda:0"} if device_map is None else device_map
    with _notice(f'loading "{name}"', progress) as notice, quiet_transformers(progress):
        source = resolve(name, revision, notice)
        notice(f'loading "{name}"')
        common: dict[str, Any] = {"trust_remote_code": trust_remote_code}
        if source.revision is not None:
            common["revision"] = source.revision
        model = _load_model(source, override, common, options)
        tokenizer = load_tokenizer(source, common)
    source = replace(
        source,
        revision=getattr(model.config, "_commit_hash", None) or source.revision,
        rope=None if override is None else str(override),
    )
    return LanguageModel(model, tokenizer, source)


def input_device(model: Any) -> torch.device:
    """Where token ids have to be: the embedding's device, or the one that offloaded weights are brought to."""
    embeddings = model.get_input_embeddings()
    device = next(embeddings.parameters()).device
    if device.type != "meta":
        return device
    return torch.device(getattr(getattr(embeddings, "_hf_hook", None), "execution_device", None) or "cpu")


def _inner_model(model: nn.Module) -> nn.Module:
    """The transformers model inside a wrapper such as PEFT's, whose adapters are part of that model's layers."""
    from transformers import PreTrainedModel

    if isinstance(model, PreTrainedModel):
        return model
    if getattr(getattr(model, "active_peft_config", None), "is_prompt_learning", False):
        raise InputError(
            f"{type(model).__name__} puts learned tokens in front of the prompt, which belong to no span; "
            "measure the base model, or an adapter of another kind"
        )
    inner = next((m for m in model.modules() if isinstance(m, PreTrainedModel) and m.can_generate()), None)
    return model if inner is None else inner


def _load_model(
    source: ModelSource, override: RopeOverride | None, common: dict[str, Any], options: dict[str, Any]
) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM

    with explained(source):
        config = AutoConfig.from_pretrained(source.resolved, **common)
    check_loads(source, config)
    wanted = config if override is None else apply_rope(config, override)
    before = copy.deepcopy(config)
    with explained(source):
        model, info = AutoModelForCausalLM.from_pretrained(
            source.resolved, config=wanted, output_loading_info=True, **common, **options
        )
    if info["missing_keys"]:
        missing = sorted(info["missing_keys"])
        raise InputError(
            f'the weights of "{source.name}" lack {len(missing)} tensors of {type(model).__name__}, e.g. '
            f"{missing[0]}, which would be random; give a complete checkpoint of a causal language model"
        )
    if override is not None:
        assert_rope_applied(before, model, apply_rope(before, override))
    return model


@contextlib.contextmanager
def _notice(text: str, progress: bool, after: float = 2.0) -> Iterator[Callable[[str], None]]:
    """Show a line of text on standard error once ``after`` seconds have passed; yields a function to change it."""
    if not progress:
        yield lambda _: None
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(stderr=True)
    status = console.status(Text(plain(text)))
    shown = threading.Event()
    latest = text

    def show() -> None:
        shown.set()
        # a spinner where someone watches; a line where standard error is a log
        status.start() if console.is_terminal else say(latest)

    def change(line: str) -> None:
        nonlocal latest
        if line == latest:
            return
        latest = line
        status.update(Text(plain(line)))
        if shown.is_set() and not console.is_terminal:
            say(line)

    timer = threading.Timer(after, show)
    timer.daemon = True
    timer.start()
    try:
        yield change
    finally:
        timer.cancel()
        timer.join()
        status.stop()
