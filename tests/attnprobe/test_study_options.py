"""Choices of a study that would change nothing."""

from __future__ import annotations

import pytest
from tiny_models import tiny_model
from toy_tokenizers import CHATML, bytelevel, with_template

import attnprobe as ap
from attnprobe.errors import InputError
from attnprobe.rotating import fitted_questions, questions_of
from attnprobe.study_options import StudyOptions, variant_prompt


@pytest.mark.parametrize("variant", ["markers=xml", "layout=question_last", "template=auto"])
def test_a_variant_must_change_the_prompt(variant: str) -> None:
    prompt = ap.Prompt(["One.", "Two."], "Which?")
    with pytest.raises(InputError, match=f"variant '{variant}' changes nothing: the prompts have"):
        variant_prompt(prompt, variant, StudyOptions())


def test_a_variant_changes_one_thing() -> None:
    prompt = ap.Prompt(["One.", "Two."], "Which?", markers="numbered")
    assert variant_prompt(prompt, "markers=xml", StudyOptions()) == ap.Prompt(["One.", "Two."], "Which?")


@pytest.mark.parametrize(("template", "changes"), [("chat", False), ("plain", True)])
def test_whether_a_template_changes_anything_shows_with_the_tokenizer(template: str, changes: bool) -> None:
    tokenizer = with_template(bytelevel, CHATML)
    lm = ap.LanguageModel(tiny_model("llama", vocab_size=len(tokenizer)), tokenizer)
    asked = [ap.Prompt(["One.", "Two."], "Which?", answer="One")]
    options = StudyOptions(variants=("null", f"template={template}"))
    questions = questions_of(asked, ["One"])
    if changes:
        assert fitted_questions(lm, questions, options) == questions
        return
    with pytest.raises(InputError, match="variant 'template=chat' changes nothing for LlamaForCausalLM"):
        fitted_questions(lm, questions, options)
    tokenizer.chat_template = None  # there, plain is what auto means
    with pytest.raises(InputError, match="variant 'template=plain' changes nothing"):
        fitted_questions(lm, questions, StudyOptions(variants=("template=plain",)))
