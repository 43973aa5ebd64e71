from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import transformers
from browser import Watched, chromium, chromium_path
from tiny_models import FAMILIES, tiny_model
from toy_tokenizers import BUILDERS

import attnprobe as ap

transformers.logging.set_verbosity_error()


def pytest_report_header() -> str:
    floor = " (oldest supported)" if os.environ.get("ATTNPROBE_FLOOR") else ""
    return f"torch {torch.__version__}, transformers {transformers.__version__}{floor}"


@pytest.fixture
def make_lm() -> Any:
    """Build a tiny language model: a family's random weights and a toy tokenizer."""

    def make(
        family: str = "llama", tokenizer: str = "bytelevel", attn_implementation: str | None = None, **changes: Any
    ) -> Any:
        built = BUILDERS[tokenizer]()
        sizes = {"vocab_size": len(built)}
        if "vocab_size_per_layer_input" in FAMILIES[family].options:
            sizes["vocab_size_per_layer_input"] = len(built)
        model = tiny_model(family, attn_implementation, **(sizes | changes))
        model.generation_config.eos_token_id = None
        return ap.LanguageModel(model, built)

    return make


@pytest.fixture
def prompts() -> list[ap.Prompt]:
    """Three prompts of different lengths and numbers of documents."""
    return [
        ap.Prompt(["Refunds take 30 days.", "Members wait less."], "How long do refunds take?", id="first"),
        ap.Prompt(["The policy."], "What is it?", id="second"),
        ap.Prompt(
            ["A lazy dog. " * 6, "A quick fox.", "It is 47 days."], "Which document holds it?", system="Be brief."
        ),
    ]


@pytest.fixture(scope="module")
def _browser() -> Iterator[Any]:
    if chromium_path() is None:
        message = "no Chromium or Chrome is installed, so pages are not looked at"
        if os.environ.get("ATTNPROBE_BROWSER") == "required":
            pytest.fail(message)
        pytest.skip(message)
    with chromium() as browser:
        yield browser


@pytest.fixture
def browser_page(_browser: Any) -> Iterator[Watched]:
    """A fresh page of a real browser, 1280 by 900, whose errors and requests are kept."""
    context = _browser.new_context(viewport={"width": 1280, "height": 900})
    yield Watched(context.new_page())
    context.close()
