"""attnprobe: how much attention each document of a prompt gets while the model writes its answer."""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_HOME = {
    "CaptureError": "errors",
    "InputError": "errors",
    "RunFileError": "errors",
    "Span": "spans",
    "Document": "prompt",
    "Prompt": "prompt",
    "LanguageModel": "models",
    "load": "models",
    "PrefixCache": "prefix_cache",
    "measure": "measuring",
    "measure_many": "measuring",
    "CheckReport": "selfcheck",
    "check": "selfcheck",
    "PromptRecord": "readers",
    "read_prompts": "readers",
    "read_records": "readers",
    "rotate": "rotating",
    "Study": "study",
    "Run": "run",
    "SecondarySink": "secondary_sinks",
    "find_secondary_sinks": "secondary_sinks",
    "sink_positions": "secondary_sinks",
    "Curve": "curve",
    "effective_attention": "curve",
    "DocumentEffects": "causal",
    "answer_logprob": "causal",
    "effects": "causal",
    "HeadScores": "heads",
    "head_scores": "heads",
    "RankCorrelation": "ranks",
    "rank_correlation": "ranks",
}
__all__ = ["__version__", *sorted(_HOME)]


def __getattr__(name: str) -> Any:
    """Import a public name from its home module at first use, so that ``import attnprobe`` stays light."""
    if name not in _HOME:
        raise AttributeError(f"module 'attnprobe' has no attribute {name!r}")
    value = getattr(import_module(f"attnprobe.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
