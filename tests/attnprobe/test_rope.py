"""RoPE overrides: reading, applying to a config, and proof that a model uses them."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from packaging.version import Version
from tiny_models import tiny_config
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
)

from attnprobe.errors import InputError
from attnprobe.rope import apply_rope, trained_positions
from attnprobe.rope_frequencies import assert_rope_applied, rope_in_use
from attnprobe.rope_parse import RopeOverride, parse_rope

# 5.17 fails in the second forward pass of a nested longrope; when it was mended is not known
OLD_TRANSFORMERS = Version(transformers.__version__) < Version("5.18")
HEAD_DIM, LENGTH, THETA = 16, 64, 10_000.0
LONG = [1.0 + i for i in range(HEAD_DIM // 2)]
COMMON_KEYS = {
    *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
    *("num_key_value_heads", "max_position_embeddings", "rope_parameters"),
}
LONGROPE = f"longrope:short_factor={[1.0] * 8},long_factor={LONG},factor=4".replace(" ", "")
SPECS = [
    "linear:2",
    "linear:factor=4,rope_theta=5000",
    "dynamic:factor=4",
    "ntk:factor=4",
    "yarn:factor=4",
    "yarn:factor=4,original_max_position_embeddings=32,beta_fast=16,beta_slow=2,attention_factor=1.5",
    "yarn:factor=8,mscale=1,mscale_all_dim=0.5",
    "llama3:factor=8,low_freq_factor=1,high_freq_factor=4,original_max_position_embeddings=32",
    LONGROPE,
    "theta=500000",
]


def llama_config(**changes: Any) -> LlamaConfig:
    values = {
        "vocab_size": 50,
        "hidden_size": 64,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": HEAD_DIM,
        "max_position_embeddings": LENGTH,
        "rope_parameters": {"rope_type": "default", "rope_theta": THETA},
    }
    return LlamaConfig(**{**values, **changes})


def gemma_config() -> Gemma3TextConfig:
    return Gemma3TextConfig(
        vocab_size=50,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=HEAD_DIM,
        max_position_embeddings=LENGTH,
        sliding_window=8,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
    )


def build(cls: type, config: Any) -> Any:
    torch.manual_seed(0)
    return cls(config).eval()


def logits(model: Any, n_tokens: int) -> torch.Tensor:
    ids = torch.arange(n_tokens)[None] % 50
    with torch.no_grad():
        return model(ids).logits.double()


def base_frequencies(theta: float = THETA) -> list[float]:
    return [theta ** (-2 * i / HEAD_DIM) for i in range(HEAD_DIM // 2)]


def yarn_frequencies(factor: float, original: int, beta_fast: float, beta_slow: float) -> list[float]:
    """Formula of the YaRN paper, with its rounded correction range, in float64."""

    def dimension(rotations: float) -> float:
        return HEAD_DIM * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(THETA))

    low = max(math.floor(dimension(beta_fast)), 0)
    high = min(math.ceil(dimension(beta_slow)), HEAD_DIM - 1)
    out = []
    for i, f in enumerate(base_frequencies()):
        ramp = min(max((i - low) / (high - low), 0.0), 1.0)
        out.append(f / factor * ramp + f * (1 - ramp))
    return out


def test_bare_number_is_the_factor() -> None:
    assert parse_rope("linear:2") == parse_rope("linear:factor=2.0") == RopeOverride("linear", (("factor", 2.0),))


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("theta=500000", "theta:5e5"),
        ("theta=500000", "rope_theta=500000"),
        ("ntk-aware:4", "ntk:factor=4"),
        ("none", "default"),
        (" YaRN : factor = 4 , beta_fast=16 ", "yarn:beta_fast=16,factor=4"),
    ],
)
def test_spellings_of_one_override(left: str, right: str) -> None:
    assert parse_rope(left) == parse_rope(right)


def test_mapping_as_in_config_json() -> None:
    pasted = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768, "attention_factor": None}
    assert parse_rope(pasted) == parse_rope("yarn:factor=4,original_max_position_embeddings=32768")


@pytest.mark.parametrize("spec", [*SPECS, "none"])
def test_text_form_reads_back(spec: str) -> None:
    override = parse_rope(spec)
    assert parse_rope(str(override)) == override
    assert parse_rope(override) is override


@settings(deadline=None, derandomize=True, max_examples=200)
@given(
    factor=st.floats(1, 1e6),
    original=st.one_of(st.none(), st.integers(2, 10**12)),
    truncate=st.one_of(st.none(), st.booleans()),
)
def test_numbers_survive_the_text_form(factor: float, original: int | None, truncate: bool | None) -> None:
    spec = {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original}
    override = parse_rope({**spec, "truncate": truncate})
    assert parse_rope(str(override)) == override
    assert override.get("factor") == factor
    assert override.get("truncate") == truncate


@settings(deadline=None, derandomize=True, max_examples=300)
@given(st.text(max_size=40))
def test_any_text_is_read_or_refused_with_an_input_error(text: str) -> None:
    for spec in (text, f"yarn:{text}", f"yarn:factor={text}", f"theta={text}"):
        try:
            override = parse_rope(spec)
        except InputError:
            continue
        assert parse_rope(str(override)) == override


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("yarm:factor=4", "valid kinds: linear, dynamic, ntk, yarn, llama3, longrope, proportional, theta, none"),
        ("", "unknown kind"),
        ("yarn:factor=4,beta=3", 'unknown key "beta"; "yarn" takes: factor, original_max_position_embeddings'),
        ("linear:factor=2,beta_fast=3", 'unknown key "beta_fast"'),
        ("yarn", 'lacks "factor"'),
        ("llama3:factor=8", 'lacks "low_freq_factor"'),
        ("longrope:factor=4", 'lacks "short_factor"'),
        ("yarn:factor=0.5", "factor must be at least 1"),
        ("yarn:factor=-4", "positive number (1e-12 to 1e12), got -4"),
        ("yarn:factor=NaN", "positive number"),
        ("yarn:factor=1e999", "positive number"),
        ("linear:1e13", "factor must be a positive number (1e-12 to 1e12), got 10000000000000.0"),
        ("ntk:1e300", "positive number (1e-12 to 1e12)"),
        ("yarn:factor=4,attention_factor=1e200", "positive number (1e-12 to 1e12)"),
        pytest.param("yarn:" + 100_000 * "[", "give a number, true, false, or a list", id="deep"),
        ("yarn:factor=true", "positive number"),
        ("yarn:factor=four", 'factor is "four"'),
        ("yarn:factor=4,factor=5", "twice"),
        ("yarn:factor=4,beta_fast", "not key=value"),
        ("yarn:factor=4,truncate=1", "true or false"),
        ("yarn:factor=4,beta_fast=1,beta_slow=2", "must exceed beta_slow"),
        ("llama3:factor=8,low_freq_factor=4,high_freq_factor=1", "must exceed low_freq_factor"),
        ("longrope:short_factor=[1],long_factor=[1,2]", "same length"),
        ("longrope:short_factor=1,long_factor=[1,2]", "list of positive numbers"),
        ("yarn:factor=4,original_max_position_embeddings=10.5", "whole number"),
        ("yarn:factor=4,original_max_position_embeddings=1", "whole number of positions, 2 or more"),
        ("theta=0", "positive number"),
        ("theta=1", "rope_theta must be above 1"),
        ("yarn:factor=4,rope_theta=0.5", "rope_theta must be above 1"),
        ("factor=4", "unknown kind"),
    ],
)
def test_wrong_overrides_are_named(spec: str, says: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_rope(spec)
    assert says in str(caught.value)


def test_a_mapping_of_two_kinds_is_refused() -> None:
    with pytest.raises(InputError, match='"rope_type" and "type" differ; give one'):
        parse_rope({"rope_type": "yarn", "type": "linear", "factor": 4})
    assert parse_rope({"rope_type": "yarn", "type": "yarn", "factor": 4}) == parse_rope("yarn:4")


@pytest.mark.parametrize("spec", [4, {"factor": 4.0}, {"rope_type": "yarn", "factor": "4"}])
def test_wrong_types_are_refused(spec: Any) -> None:
    with pytest.raises(InputError):
        parse_rope(spec)


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize(("cls", "make"), [(LlamaForCausalLM, llama_config), (Gemma3ForCausalLM, gemma_config)])
def test_logits_are_those_of_a_model_built_with_the_parameters(cls: type, make: Any, spec: str) -> None:
    plain = make()
    before = copy.deepcopy(plain.to_dict())
    changed = apply_rope(plain, parse_rope(spec))
    assert plain.to_dict() == before
    # transformers' own path: the parameters given to the constructor, in a config of their own
    own = make()
    nested = "full_attention" in own.rope_parameters
    parameters = copy.deepcopy(changed.rope_parameters)
    own = type(own)(
        **{
            **own.to_dict(),
            "rope_parameters": parameters,
            "max_position_embeddings": changed.max_position_embeddings,
        }
    )
    model, reference = build(cls, changed), build(cls, own)
    n_tokens = 3 * LENGTH // 2  # past the original length, where dynamic and longrope differ
    found = logits(model, n_tokens)
    torch.testing.assert_close(found, logits(reference, n_tokens), rtol=0, atol=1e-6)
    assert (found - logits(build(cls, plain), n_tokens)).abs().max() > 1e-5
    if nested and spec == LONGROPE and OLD_TRANSFORMERS:
        with pytest.raises(InputError, match='cannot run the RoPE type "longrope" at 128 positions'):
            assert_rope_applied(plain, build(cls, changed))
        return
    assert_rope_applied(plain, build(cls, changed))
    if nested:
        assert changed.rope_parameters["sliding_attention"] == plain.rope_parameters["sliding_attention"]


@pytest.mark.parametrize(
    ("spec", "wanted"),
    [
        ("linear:4", [f / 4 for f in base_frequencies()]),
        ("theta=500000", base_frequencies(500_000.0)),
        ("ntk:4", base_frequencies(THETA * 4 ** (HEAD_DIM / (HEAD_DIM - 2)))),
        ("yarn:4", yarn_frequencies(4, LENGTH, 32, 1)),
        ("yarn:factor=4,beta_fast=8,beta_slow=2", yarn_frequencies(4, LENGTH, 8, 2)),
        (LONGROPE, base_frequencies()),
        ("dynamic:4", base_frequencies()),
    ],
)
def test_frequencies_in_use_follow_the_published_formulas(spec: str, wanted: list[float]) -> None:
    model = build(LlamaForCausalLM, apply_rope(llama_config(), parse_rope(spec)))
    (name, found), *others = rope_in_use(model).items()
    assert (name, others) == ("model.rotary_emb", [])
    assert found["inv_freq"] == pytest.approx(wanted, rel=1e-5)
    scaling = {"yarn": 0.1 * math.log(4) + 1, "long": math.sqrt(1 + math.log(4) / math.log(LENGTH))}
    assert found["attention_scaling"] == pytest.approx(scaling.get(spec[:4], 1.0), rel=1e-6)


def test_frequencies_by_layer_type_are_reported_apart() -> None:
    model = build(Gemma3ForCausalLM, apply_rope(gemma_config(), parse_rope("linear:8")))
    found = rope_in_use(model)
    assert set(found) == {"model.rotary_emb:full_attention", "model.rotary_emb:sliding_attention"}
    assert found["model.rotary_emb:full_attention"]["rope_type"] == "linear"
    assert found["model.rotary_emb:sliding_attention"]["inv_freq"] == pytest.approx(base_frequencies(), rel=1e-6)
    assert len({entry["sha256"] for entry in found.values()}) == 2


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize(("cls", "make"), [(LlamaForCausalLM, llama_config), (Gemma3ForCausalLM, gemma_config)])
def test_an_override_set_on_a_loaded_model_is_caught(cls: type, make: Any, spec: str) -> None:
    model = build(cls, make())
    before = copy.deepcopy(model.config)
    changed = apply_rope(before, parse_rope(spec))
    model.config.rope_parameters = changed.rope_parameters
    model.config.max_position_embeddings = changed.max_position_embeddings
    with pytest.raises(InputError, match="ignores the RoPE override"):
        assert_rope_applied(before, model)


def test_a_model_that_dropped_the_override_is_caught() -> None:
    config = llama_config()
    model = build(LlamaForCausalLM, config)
    with pytest.raises(InputError, match="without the RoPE override"):
        assert_rope_applied(config, model)
    with pytest.raises(InputError, match="ignores the RoPE override"):
        assert_rope_applied(config, model, apply_rope(config, parse_rope("yarn:4")))


def test_a_longrope_model_with_its_own_long_frequencies_is_caught() -> None:
    config = llama_config()
    changed = apply_rope(config, parse_rope(LONGROPE))
    model = build(LlamaForCausalLM, changed)
    model.model.rotary_emb.config = copy.deepcopy(changed)
    model.model.rotary_emb.config.rope_parameters["long_factor"] = [2.0] * (HEAD_DIM // 2)
    with pytest.raises(InputError, match="at 128 positions"):
        assert_rope_applied(config, model)


@pytest.mark.parametrize("spec", ["dynamic:4", LONGROPE])
def test_the_check_leaves_run_time_frequencies_alone(spec: str) -> None:
    config = llama_config()
    model = build(LlamaForCausalLM, apply_rope(config, parse_rope(spec)))
    before = logits(model, 8)
    assert_rope_applied(config, model)
    assert torch.equal(logits(model, 8), before)


def test_a_factor_of_one_asks_for_nothing_and_passes() -> None:
    config = llama_config()
    changed = apply_rope(config, parse_rope("linear:1"))
    assert_rope_applied(config, build(LlamaForCausalLM, changed), changed)


def test_models_without_rope_refuse_an_override() -> None:
    config = GPT2Config(n_embd=16, n_layer=1, n_head=2, vocab_size=50, n_positions=32)
    with pytest.raises(InputError, match='"gpt2" has no rope_parameters'):
        apply_rope(config, parse_rope("yarn:4"))
    model = build(GPT2LMHeadModel, config)
    assert rope_in_use(model) == {}
    with pytest.raises(InputError, match="GPT2LMHeadModel ignores the RoPE override: it has no rotary module"):
        assert_rope_applied(llama_config(), model, apply_rope(llama_config(), parse_rope("yarn:4")))


def test_a_model_with_alibi_positions_refuses_an_override() -> None:
    """Falcon builds a rotary module whose frequencies follow the config, and does not use it."""
    config = tiny_config("falcon_alibi")
    with pytest.raises(InputError, match='"falcon" has ALiBi positions, not rotary ones'):
        apply_rope(config, parse_rope("yarn:4"))
    assert apply_rope(tiny_config("falcon"), parse_rope("yarn:4")).rope_parameters["rope_type"] == "yarn"


def test_none_removes_the_scaling_of_the_config() -> None:
    scaled = apply_rope(llama_config(), parse_rope("yarn:4"))
    assert trained_positions(scaled) == 4 * LENGTH
    plain = apply_rope(scaled, parse_rope("none"))
    assert plain.rope_parameters == {"rope_type": "default", "rope_theta": THETA}
    assert trained_positions(plain) == LENGTH
    model = build(LlamaForCausalLM, plain)
    assert_rope_applied(scaled, model)
    assert rope_in_use(model)["model.rotary_emb"]["inv_freq"] == pytest.approx(base_frequencies(), rel=1e-6)


def test_a_new_base_keeps_the_scaling_of_the_config() -> None:
    scaled = apply_rope(llama_config(), parse_rope("yarn:4"))
    changed = apply_rope(scaled, parse_rope("theta=5000"))
    assert changed.rope_parameters == {**scaled.rope_parameters, "rope_theta": 5000.0}
    assert_rope_applied(scaled, build(LlamaForCausalLM, changed))


@pytest.mark.parametrize(
    ("spec", "positions"),
    [
        *((spec, 4 * LENGTH) for spec in ("linear:4", "dynamic:4", "ntk:4", "yarn:4", LONGROPE)),
        ("yarn:factor=4,original_max_position_embeddings=32", 128),
        ("dynamic:factor=4,original_max_position_embeddings=32", 128),
        ("llama3:factor=8,low_freq_factor=1,high_freq_factor=4", 8 * LENGTH),
        ("theta=500000", LENGTH),
        ("none", LENGTH),
    ],
)
@pytest.mark.parametrize("make", [llama_config, gemma_config])
def test_positions_after_the_override(make: Any, spec: str, positions: int) -> None:
    assert trained_positions(apply_rope(make(), parse_rope(spec))) == positions


def test_the_original_length_must_be_known() -> None:
    scaled = llama_config(rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": THETA})
    for spec in ("yarn:4", "linear:4", "dynamic:4"):
        with pytest.raises(InputError, match=r"add original_max_position_embeddings=\.\.\."):
            apply_rope(scaled, parse_rope(spec))
    stated = apply_rope(scaled, parse_rope("linear:factor=4,original_max_position_embeddings=32"))
    assert trained_positions(stated) == 128
    assert stated.rope_parameters == {"rope_type": "linear", "factor": 4.0, "rope_theta": THETA}


def test_the_original_length_of_scaled_configs_is_taken_from_them() -> None:
    scaled = apply_rope(llama_config(), parse_rope("yarn:4"))
    assert trained_positions(apply_rope(scaled, parse_rope("yarn:8"))) == 8 * LENGTH
    assert trained_positions(apply_rope(scaled, parse_rope("linear:2"))) == 2 * LENGTH


def test_partial_rotary_and_a_length_beside_the_parameters() -> None:
    config = Phi3Config(
        vocab_size=50,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=256,
        original_max_position_embeddings=64,
        pad_token_id=0,
        eos_token_id=1,
        rope_parameters={"rope_type": "default", "rope_theta": THETA, "partial_rotary_factor": 0.5},
    )
    for spec in ("ntk:4", LONGROPE):
        changed = apply_rope(config, parse_rope(spec))
        assert changed.rope_parameters["partial_rotary_factor"] == 0.5
        model = build(Phi3ForCausalLM, changed)
        assert_rope_applied(config, model)
        assert len(rope_in_use(model)["model.rotary_emb"]["inv_freq"]) == HEAD_DIM // 2
    shorter = apply_rope(config, parse_rope(f"{LONGROPE},original_max_position_embeddings=32"))
    assert (trained_positions(shorter), shorter.rope_parameters["original_max_position_embeddings"]) == (128, 32)
    with pytest.raises(InputError, match='refused by the config of "phi3"'):
        apply_rope(config, parse_rope("yarn:4"))


def test_longrope_lists_must_fit_the_model() -> None:
    with pytest.raises(InputError, match="this model needs 8"):
        apply_rope(llama_config(), parse_rope("longrope:short_factor=[1,1],long_factor=[2,2],factor=4"))


def test_truncate_is_refused_where_transformers_ignores_it() -> None:
    spec = parse_rope("yarn:factor=4,truncate=false")
    assert apply_rope(llama_config(), spec).rope_parameters["truncate"] is False
    with pytest.raises(InputError, match='ignores "truncate"'):
        apply_rope(gemma_config(), spec)


@pytest.mark.parametrize(
    ("spec", "wanted"),
    [
        ("yarn:4", yarn_frequencies(4, LENGTH, 32, 1)),
        ("dynamic:4", base_frequencies()),
        (LONGROPE, base_frequencies()),
    ],
)
def test_a_head_size_that_the_config_leaves_out(spec: str, wanted: list[float]) -> None:
    """As of Mixtral: the class takes hidden_size // num_attention_heads, transformers' formulas fail on null."""
    config = MixtralConfig(
        **{key: value for key, value in llama_config().to_dict().items() if key in COMMON_KEYS},
        num_local_experts=2,
        num_experts_per_tok=1,
    )
    assert config.head_dim is None
    changed = apply_rope(config, parse_rope(spec))
    model = build(MixtralForCausalLM, changed)
    assert_rope_applied(config, model, changed)
    assert rope_in_use(model)["model.rotary_emb"]["inv_freq"] == pytest.approx(wanted, rel=1e-5)


@pytest.mark.parametrize("factor", [math.inf, math.nan, "four", 1e308])
def test_a_factor_that_is_none_leaves_the_stated_positions(factor: Any) -> None:
    config = llama_config()
    config.rope_parameters = {"rope_type": "dynamic", "factor": factor, "rope_theta": THETA}
    assert trained_positions(config) == LENGTH
