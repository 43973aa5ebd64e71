"""Choices of a study that would change nothing."""

from __future__ import annotations

import pytest

import attnprobe as ap
from attnprobe.errors import InputError
from attnprobe.study_options import StudyOptions, variant_prompt


@pytest.mark.parametrize("variant", ["markers=xml", "layout=question_last", "template=auto"])
def test_a_variant_must_change_the_prompt(variant: str) -> None:
    prompt = ap.Prompt(["One.", "Two."], "Which?")
    with pytest.raises(InputError, match=f"variant '{variant}' changes nothing: the prompts have"):
        variant_prompt(prompt, variant, StudyOptions())


def test_a_variant_changes_one_thing() -> None:
    prompt = ap.Prompt(["One.", "Two."], "Which?", markers="numbered")
    assert variant_prompt(prompt, "markers=xml", StudyOptions()) == ap.Prompt(["One.", "Two."], "Which?")
