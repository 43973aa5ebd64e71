"""A tiny random model with a tokenizer in a folder, and prompt files for it: what the command line takes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tiny_models import tiny_model
from toy_tokenizers import CHATML, bytelevel, with_template

TEXTS = ("Refunds take 30 days.", "Members wait less.", "The policy is 47 days.", "A lazy dog sleeps.", "See it.")


def save_tiny_model(folder: Path, family: str = "llama", **changes: Any) -> Path:
    """A three-layer, four-head model with random weights and a chat template."""
    tokenizer = with_template(bytelevel, CHATML)
    model = tiny_model(family, **({"vocab_size": len(tokenizer)} | changes))
    model.generation_config.eos_token_id = None
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def prompt_records(n_prompts: int, n_documents: int = 4, prefix: str = "q") -> list[dict[str, Any]]:
    """Prompt records that differ in their texts."""
    return [
        {
            "id": f"{prefix}{number}",
            "documents": [f"{TEXTS[i % len(TEXTS)]} Note {number} of {i}." for i in range(n_documents)],
            "question": f"What is it, {number}?",
            "answer": f"It is {number} days.",
        }
        for number in range(n_prompts)
    ]


def write_prompts(path: Path, records: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path
