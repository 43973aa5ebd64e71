"""Rotary frequencies of live models: equal to transformers' own, those that depend on the length, planted faults."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_folder import save_tiny_model
from tiny_models import FAMILIES, tiny_config, tiny_model
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

import attnprobe as ap
from attnprobe import rotating, study_cells
from attnprobe.rope import apply_rope, changes_with_length, original_positions
from attnprobe.rope_frequencies import assert_rope_applied, frequencies_at, rope_in_use, rotary_modules
from attnprobe.rope_parse import parse_rope

POSITIONS = 64  # of the tiny model; prompts below are longer
LONGROPE = "longrope:short_factor=[1,1,1,1],long_factor=[1,2,3,4],factor=4"
# The same scalings in attnprobe's words and in those of a config.json, written down apart.
SCALINGS: dict[str, dict[str, Any]] = {
    "none": {"rope_type": "default"},
    "linear:4": {"rope_type": "linear", "factor": 4.0},
    "dynamic:4": {"rope_type": "dynamic", "factor": 4.0},
    "ntk:4": {"rope_type": "default", "rope_theta": 10_000.0 * 4 ** (8 / 6)},
    "yarn:4": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": POSITIONS},
    "yarn:factor=4,mscale=1,mscale_all_dim=0.5": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": POSITIONS,
        "mscale": 1.0,
        "mscale_all_dim": 0.5,
    },
    "llama3:factor=8,low_freq_factor=1,high_freq_factor=4": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": POSITIONS,
    },
    LONGROPE: {
        "rope_type": "longrope",
        "short_factor": [1.0] * 4,
        "long_factor": [1.0, 2.0, 3.0, 4.0],
        "factor": 4.0,
        "original_max_position_embeddings": POSITIONS,
    },
}
PROMPT = ap.Prompt([f"Note {i}: refunds take {30 + i} days in this case." for i in range(6)], question="How long?")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("model"), max_position_embeddings=POSITIONS)


def measured(lm: ap.LanguageModel, prompt: ap.Prompt = PROMPT, **options: Any) -> ap.Run:
    run = ap.measure(lm, prompt, answer="30 days", beyond_window=True, **options)
    assert run.n_prompt > POSITIONS
    return run


def dynamic_base(length: int) -> float:
    """Of factor 4 past the trained length: the NTK-aware base for 4 * length / trained - 3."""
    return 10_000.0 * max(4 * length / POSITIONS - 3, 1) ** (8 / 6)


@pytest.mark.parametrize("spec", SCALINGS)
def test_logits_and_masses_are_those_of_transformers_own_model(folder: Path, spec: str) -> None:
    run = measured(ap.load(folder, rope=spec))
    values = json.loads((folder / "config.json").read_text())
    values.pop("rope_scaling", None)
    values["rope_parameters"] = {"rope_theta": 10_000.0, **SCALINGS[spec]}
    own = AutoModelForCausalLM.from_pretrained(folder, config=LlamaConfig(**values), attn_implementation="eager")
    with torch.no_grad():
        output = own.eval()(torch.tensor([run.token_ids[:-1]]), output_attentions=True)
    first, n_rows = run.n_prompt - 1, len(run.answer_ids)
    wanted = output.logits[0, first:].double().log_softmax(-1)[range(n_rows), list(run.answer_ids)]
    np.testing.assert_allclose(run.answer_logprob, wanted.numpy(), atol=1e-5)
    assert run.row_mass is not None
    for layer, weights in enumerate(output.attentions):
        rows = weights[0, :, first:].double().numpy()
        for number, span in enumerate(run.spans):
            mass = sum(rows[..., start:stop].sum(-1) for start, stop in span.segments)
            np.testing.assert_allclose(run.row_mass[layer, :, :, number], mass, atol=1e-5)
    if spec != "none":
        assert np.abs(run.mass - measured(ap.load(folder, rope="none")).mass).max() > 1e-3


def test_a_dynamic_model_forgets_the_prompts_before(folder: Path) -> None:
    """transformers goes on with the frequencies of the longest prompt so far."""
    lm = ap.load(folder, rope="dynamic:4")
    longer = ap.Prompt([*PROMPT.documents, *PROMPT.documents], question="How long?")
    for options in ({"answer": "30 days"}, {"max_new_tokens": 3}):
        first = ap.measure(lm, PROMPT, beyond_window=True, **options)
        ap.measure(lm, longer, beyond_window=True, **options)
        again = ap.measure(lm, PROMPT, beyond_window=True, **options)
        np.testing.assert_array_equal(again.mass, first.mass)
        np.testing.assert_array_equal(again.answer_logprob, first.answer_logprob)


def test_the_manifest_has_the_frequencies_of_its_own_pass(folder: Path) -> None:
    lm = ap.load(folder, rope="dynamic:4")
    short = ap.measure(lm, ap.Prompt.from_text("Hi."), answer="30")
    run = measured(lm)
    for one, fed in ((short, 1), (run, len(run.token_ids) - 1), (measured(lm, rows="answer"), len(run.token_ids))):
        wanted = [dynamic_base(fed) ** (-2 * i / 8) for i in range(4)]
        assert one.manifest["rope"]["model.rotary_emb"]["inv_freq"] == pytest.approx(wanted, rel=1e-5)
        assert one.manifest["model"]["max_positions"] == 4 * POSITIONS
        assert one.manifest["model"]["original_positions"] == POSITIONS
    run = measured(ap.load(folder, rope=LONGROPE))
    wanted = [10_000.0 ** (-2 * i / 8) / (1 + i) for i in range(4)]
    assert run.manifest["rope"]["model.rotary_emb"]["inv_freq"] == pytest.approx(wanted, rel=1e-5)


@pytest.mark.parametrize("spec", ["dynamic:4", LONGROPE])
def test_frequencies_of_the_length_are_never_those_of_a_chunk_or_of_a_neighbour(folder: Path, spec: str) -> None:
    lm = ap.load(folder, rope=spec)
    with pytest.raises(ap.InputError, match=r"prefill_chunk=50: .* LlamaForCausalLM depend on the length"):
        measured(lm, prefill_chunk=50)
    whole = measured(lm, prefill_chunk=1000)
    assert whole.manifest["capture"]["prefill_chunk"] is None
    longer = ap.Prompt([*PROMPT.documents, *PROMPT.documents], question="How long?")
    both = ap.measure_many(lm, [longer, PROMPT], answers=["30 days"] * 2, batch_size=2, beyond_window=True)
    np.testing.assert_allclose(list(both)[1].mass, whole.mass, atol=1e-6)
    eager = ap.load(folder, rope=spec, attn_implementation="eager")
    from attnprobe.batch import AUTO_CHUNK, prefill_chunk_of

    assert prefill_chunk_of(eager, 2 * AUTO_CHUNK, False, "auto") is None
    assert prefill_chunk_of(ap.load(folder, attn_implementation="eager"), 2 * AUTO_CHUNK, False, "auto") == AUTO_CHUNK


@pytest.mark.parametrize(("spec", "last"), [("dynamic:4", "auto"), (LONGROPE, "auto"), ("yarn:4", 512)])
def test_out_of_memory_feeds_such_a_model_whole_again(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spec: str, last: Any
) -> None:
    """The smallest chunk would be refused, and the cell fail with that."""
    chunks: list[Any] = []
    real = study_cells.measure

    def greedy(lm: Any, prompt: ap.Prompt, **options: Any) -> ap.Run:
        chunks.append(options["prefill_chunk"])
        if len(chunks) % 3:
            raise MemoryError("no room")
        run = real(lm, prompt, **options)
        assert run.n_prompt > 512
        return run

    for module in (rotating, study_cells):
        monkeypatch.setattr(module, "measure", greedy)
    prompt = ap.Prompt(["A lazy dog sleeps. " * 40, "See it. " * 60], question="What is it?", id="q0")
    lm = ap.load(folder, rope=spec)
    found = ap.rotate(lm, [prompt], out=tmp_path, variants=(), max_new_tokens=2, beyond_window=True)
    assert not found.of().incomplete
    assert set(chunks[2::3]) == {last}


@pytest.mark.parametrize("spec", ["none", "dynamic:4", "yarn:4", LONGROPE])
@pytest.mark.parametrize("prompt", [PROMPT, ap.Prompt.from_text("A lazy dog sleeps. " * 6)], ids=["long", "up to it"])
def test_a_warning_says_where_generated_and_forced_answers_differ(folder: Path, spec: str, prompt: ap.Prompt) -> None:
    lm = ap.load(folder, rope=spec)
    generated = ap.measure(lm, prompt, max_new_tokens=12, beyond_window=True)
    assert generated.n_prompt + 12 > POSITIONS + 2
    forced = ap.measure(lm, prompt, answer=generated.answer_ids, beyond_window=True)
    differ = bool(np.abs(generated.mass - forced.mass).max() > 1e-5)
    for run in (generated, forced):
        assert any("change with the length" in warning for warning in run.warnings) == differ


@pytest.mark.parametrize("spec", SCALINGS)
def test_which_scalings_change_with_the_length(spec: str) -> None:
    config = apply_rope(tiny_config("llama", max_position_embeddings=POSITIONS), parse_rope(spec))
    _, module, _ = next(rotary_modules(LlamaForCausalLM(config)))
    short, long = (frequencies_at(module, None, length)[0] for length in (POSITIONS, 4 * POSITIONS))
    assert changes_with_length(config) == (not torch.equal(short, long))
    assert original_positions(config) == POSITIONS


def _rotates(config: Any) -> bool:
    return bool(getattr(config, "rope_parameters", None)) and not getattr(config, "alibi", False)


def test_a_module_that_turns_by_a_table_of_its_own_is_caught() -> None:
    """As some models with code of their own: the frequencies follow the config, the cached sines do not."""
    config = tiny_config("llama")
    changed = apply_rope(config, parse_rope("linear:4"))
    model = LlamaForCausalLM(changed)
    assert_rope_applied(config, model, changed)
    rotary = type(model.model.rotary_emb)
    plain = rotary(config)

    class Cached(rotary):  # type: ignore[misc, valid-type]
        def forward(self, x: Any, position_ids: Any) -> Any:
            return plain(x, position_ids)

    model.model.rotary_emb = Cached(changed)
    assert rope_in_use(model)["model.rotary_emb"]["inv_freq"] == pytest.approx(
        [10_000.0 ** (-2 * i / 8) / 4 for i in range(4)], rel=1e-5
    )
    with pytest.raises(ap.InputError, match=r"ignores the RoPE override: .* other angles than those"):
        assert_rope_applied(config, model, changed)


@pytest.mark.parametrize("name", [n for n in FAMILIES if _rotates(tiny_config(n))])
def test_sines_are_read_right_in_every_family(name: str) -> None:
    """Halves, interleaved pairs, complex numbers: a sound override is never called ignored."""
    config = tiny_config(name)
    changed = apply_rope(config, parse_rope("theta=5000"))
    assert_rope_applied(config, AutoModelForCausalLM.from_config(changed), changed)


def test_heads_that_turn_in_part_take_a_proportional_override() -> None:
    """Gemma 4: the first quarter of each pair list turns, by exponents of the whole head."""
    config = tiny_config("gemma4")
    changed = apply_rope(config, parse_rope("proportional:4"))
    model = AutoModelForCausalLM.from_config(changed)
    assert_rope_applied(config, model, changed)
    found = rope_in_use(model)["model.rotary_emb:full_attention"]["inv_freq"]
    assert found == pytest.approx([1e6 ** (-2 * i / 32) / 4 for i in range(4)] + [0] * 12, rel=1e-5)
    removed = apply_rope(changed, parse_rope("none")).rope_parameters["full_attention"]
    assert (removed["rope_type"], "factor" in removed) == ("proportional", False)
    with pytest.raises(ap.InputError, match=r'calls "proportional", and has no yarn for that; use proportional:factor'):
        apply_rope(config, parse_rope("yarn:4"))
    with pytest.raises(ap.InputError, match='is not of this type but "default"; use linear:factor'):
        apply_rope(tiny_config("llama"), parse_rope("proportional:4"))


def test_partly_rotating_heads_keep_their_part_under_every_scaling() -> None:
    config = tiny_config("gpt_neox", max_position_embeddings=POSITIONS)
    for spec in ("linear:4", "dynamic:4", "ntk:4", "yarn:4"):
        changed = apply_rope(config, parse_rope(spec))
        assert changed.rope_parameters["partial_rotary_factor"] == 0.5
        model = tiny_model("gpt_neox", **{"rope_parameters": changed.rope_parameters})
        assert len(rope_in_use(model)["gpt_neox.rotary_emb"]["inv_freq"]) == 2
        assert_rope_applied(config, AutoModelForCausalLM.from_config(changed), changed)
