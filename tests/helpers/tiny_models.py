"""Tiny random models of many families: one table that drives every parametrised architecture test."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
import transformers

VOCABULARY = 96
COMMON = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
}
WINDOW = 7


@dataclass(frozen=True)
class Family:
    """One architecture: its config class, what differs from ``COMMON``, and how it is captured."""

    config: str
    options: dict[str, Any] = field(default_factory=dict)
    drop: tuple[str, ...] = ()
    captured_layers: int = 3
    note: str = ""
    eager_only: bool = False
    fallback: bool = False


FAMILIES: dict[str, Family] = {
    "llama": Family("LlamaConfig"),
    "qwen2": Family("Qwen2Config"),
    "qwen2_window": Family(
        "Qwen2Config",
        {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1},
        note="sliding window in the upper layers",
    ),
    "qwen3": Family("Qwen3Config", {"head_dim": 8}, note="QK-norm"),
    "qwen3_moe": Family(
        "Qwen3MoeConfig",
        {"head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
        note="mixture of experts",
    ),
    "mistral": Family("MistralConfig", {"sliding_window": WINDOW}, note="sliding window in every layer"),
    "mixtral": Family("MixtralConfig", {"num_local_experts": 4, "num_experts_per_tok": 2}, note="mixture of experts"),
    "gemma": Family("GemmaConfig", {"head_dim": 16}),
    "gemma2": Family(
        "Gemma2Config",
        {"head_dim": 16, "sliding_window": WINDOW, "attn_logit_softcapping": 5.0, "query_pre_attn_scalar": 16},
        eager_only=True,
        note="softcap, window in every other layer",
    ),
    "gemma3": Family(
        "Gemma3TextConfig",
        {
            "head_dim": 16,
            "sliding_window": WINDOW,
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
        },
        note="window pattern, QK-norm",
    ),
    "gemma3n": Family(
        "Gemma3nTextConfig",
        {
            "head_dim": 16,
            "num_hidden_layers": 5,
            "intermediate_size": [48] * 5,
            "sliding_window": WINDOW,
            "layer_types": ["sliding_attention"] * 2 + ["full_attention", "sliding_attention", "full_attention"],
            "num_kv_shared_layers": 2,
            "vocab_size_per_layer_input": VOCABULARY,
            "hidden_size_per_layer_input": 8,
            "laurel_rank": 4,
            "altup_num_inputs": 2,
            "activation_sparsity_pattern": [0.0] * 5,
        },
        captured_layers=5,
        note="keys shared between layers",
    ),
    "gemma4": Family(
        "Gemma4TextConfig",
        {
            "head_dim": 16,
            "global_head_dim": 32,
            "num_hidden_layers": 5,
            "sliding_window": WINDOW,
            "layer_types": ["sliding_attention"] * 2 + ["full_attention", "sliding_attention", "full_attention"],
            "num_kv_shared_layers": 2,
            "vocab_size_per_layer_input": VOCABULARY,
            "hidden_size_per_layer_input": 8,
        },
        captured_layers=5,
        note="keys shared between layers, two head sizes",
    ),
    "phi3": Family("Phi3Config", {"sliding_window": WINDOW}, note="window"),
    "gpt2": Family(
        "GPT2Config",
        {"n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 512},
        drop=(
            "hidden_size",
            "num_hidden_layers",
            "num_attention_heads",
            "num_key_value_heads",
            "intermediate_size",
            "max_position_embeddings",
        ),
        note="learned positions",
    ),
    "gpt_neox": Family("GPTNeoXConfig", {"rotary_pct": 0.5}, drop=("num_key_value_heads",), note="partial rotary"),
    "opt": Family(
        "OPTConfig",
        {"ffn_dim": 48, "word_embed_proj_dim": 32},
        drop=("num_key_value_heads", "intermediate_size"),
        note="learned positions",
    ),
    "cohere2": Family(
        "Cohere2Config",
        {"sliding_window": WINDOW, "layer_types": ["sliding_attention", "sliding_attention", "full_attention"]},
        note="window pattern, no positions in full layers",
    ),
    "olmo2": Family("Olmo2Config", note="QK-norm"),
    "granite": Family("GraniteConfig", {"attention_multiplier": 0.3}, note="its own scale"),
    "smollm3": Family("SmolLM3Config", {"no_rope_layer_interval": 2}, note="layers without positions"),
    "starcoder2": Family("Starcoder2Config", {"sliding_window": WINDOW}, note="window"),
    "llama4": Family(
        "Llama4TextConfig",
        {
            "head_dim": 8,
            "attention_chunk_size": WINDOW,
            "intermediate_size_mlp": 48,
            "num_local_experts": 2,
            "num_experts_per_tok": 1,
            "no_rope_layers": [1, 1, 0],
            "layer_types": ["chunked_attention", "chunked_attention", "full_attention"],
        },
        note="chunked attention, temperature tuning",
    ),
    "gpt_oss": Family(
        "GptOssConfig",
        {
            "head_dim": 8,
            "sliding_window": WINDOW,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
        },
        eager_only=True,
        note="learned sinks, window in every other layer",
    ),
    "deepseek_v3": Family(
        "DeepseekV3Config",
        {
            "num_key_value_heads": 4,
            "q_lora_rank": 16,
            "kv_lora_rank": 12,
            "qk_rope_head_dim": 8,
            "qk_nope_head_dim": 16,
            "v_head_dim": 12,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "n_group": 2,
            "topk_group": 1,
            "first_k_dense_replace": 1,
            "moe_intermediate_size": 16,
        },
        note="latent keys (MLA): captured live",
    ),
    "qwen3_next": Family(
        "Qwen3NextConfig",
        {
            "head_dim": 8,
            "num_hidden_layers": 4,
            "layer_types": ["linear_attention", "full_attention", "linear_attention", "full_attention"],
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 16,
            "shared_expert_intermediate_size": 16,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 8,
            "linear_value_head_dim": 8,
        },
        captured_layers=2,
        note="hybrid: full-attention layers only",
    ),
    "bloom": Family(
        "BloomConfig",
        {"n_layer": 3, "n_head": 4},
        drop=(
            "num_hidden_layers",
            "num_attention_heads",
            "num_key_value_heads",
            "intermediate_size",
            "max_position_embeddings",
        ),
        fallback=True,
        note="ALiBi",
    ),
    "falcon": Family(
        "FalconConfig",
        {"alibi": False, "multi_query": True},
        drop=("num_key_value_heads", "intermediate_size"),
        fallback=True,
        note="rotary",
    ),
    "falcon_alibi": Family(
        "FalconConfig",
        {"alibi": True, "multi_query": True},
        drop=("num_key_value_heads", "intermediate_size"),
        fallback=True,
        note="ALiBi",
    ),
    "mpt": Family(
        "MptConfig",
        {"d_model": 32, "n_heads": 4, "n_layers": 3, "max_seq_len": 512},
        drop=(
            "hidden_size",
            "num_hidden_layers",
            "num_attention_heads",
            "num_key_value_heads",
            "intermediate_size",
            "max_position_embeddings",
        ),
        fallback=True,
        note="ALiBi",
    ),
    "gpt_neo": Family(
        "GPTNeoConfig",
        {
            "num_layers": 2,
            "num_heads": 4,
            "attention_types": [[["global", "local"], 1]],
            "window_size": WINDOW,
            "intermediate_size": 48,
        },
        drop=("num_hidden_layers", "num_attention_heads", "num_key_value_heads"),
        captured_layers=2,
        fallback=True,
        note="local layers",
    ),
}
NO_SIZES = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
# Each is odd in a way of its own: what it is here for is in the note. Not all of them can be measured.
ODD: dict[str, Family] = {
    "bamba": Family(
        "BambaConfig",
        {"attn_layer_indices": [1], "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 8, "mamba_n_groups": 1},
        captured_layers=1,
        note="hybrid; counts positions from the start of each call unless told",
    ),
    "jamba": Family(
        "JambaConfig",
        {"attn_layer_period": 2, "attn_layer_offset": 1, "num_experts": 2, "mamba_d_state": 8, "mamba_dt_rank": 4},
        captured_layers=1,
        note="hybrid; its state starts anew with every call of several tokens",
    ),
    "zamba": Family(
        "ZambaConfig",
        {
            "num_hidden_layers": 6,
            "num_key_value_heads": 4,
            "layers_block_type": ["linear_attention", "linear_attention", "hybrid"] * 2,
            "attention_hidden_size": 64,
            "attention_head_dim": 16,
            "mamba_d_state": 8,
            "mamba_dt_rank": 4,
        },
        captured_layers=2,
        note="hybrid; attention modules do not know their layer; its state starts anew",
    ),
    "zamba2": Family(
        "Zamba2Config",
        {
            "num_hidden_layers": 4,
            "num_key_value_heads": 4,
            "layers_block_type": ["linear_attention", "hybrid"] * 2,
            "mamba_d_state": 8,
            "n_mamba_heads": 2,
        },
        captured_layers=2,
        note="hybrid; attention modules say layer -1",
    ),
    "minimax": Family(
        "MiniMaxConfig",
        {
            "head_dim": 8,
            "layer_types": ["linear_attention", "full_attention", "linear_attention"],
            "num_local_experts": 2,
            "num_experts_per_tok": 1,
            "block_size": 32,
        },
        captured_layers=1,
        note="hybrid; cannot be fed its prompt in chunks",
    ),
    "recurrent_gemma": Family(
        "RecurrentGemmaConfig",
        {"head_dim": 8, "lru_width": 32, "attention_window_size": 64},
        captured_layers=1,
        note="hybrid; gives no cache back",
    ),
    "bart": Family(
        "BartConfig",
        {
            "d_model": 32,
            "decoder_layers": 3,
            "decoder_attention_heads": 4,
            "decoder_ffn_dim": 48,
            "is_decoder": True,
            "is_encoder_decoder": False,
            "forced_eos_token_id": None,
        },
        drop=NO_SIZES,
        note="takes no position_ids",
    ),
    "roformer": Family(
        "RoFormerConfig", {"is_decoder": True}, drop=("num_key_value_heads",), note="takes no position_ids"
    ),
    "modernbert_decoder": Family(
        "ModernBertDecoderConfig", drop=("num_key_value_heads",), note="get_decoder() gives its output head"
    ),
    "deepseek_v4": Family(
        "DeepseekV4Config",
        {"head_dim": 8, "compress_rates": {"compressed_sparse_attention": 4, "heavily_compressed_attention": 4}},
        note="keys beside those of the tokens, each of several tokens",
    ),
    "diffllama": Family("DiffLlamaConfig", note="two softmaxes a layer"),
    "phimoe": Family(
        "PhimoeConfig",
        {"sliding_window": WINDOW, "num_local_experts": 2, "num_experts_per_tok": 1},
        note="keeps a window of keys that its attention does not name",
    ),
    "granite_swa": Family("GraniteSWAConfig", {"sliding_window": WINDOW}, note="learned sinks"),
    "lfm2": Family(
        "Lfm2Config",
        {"layer_types": ["conv", "full_attention", "conv"], "block_multiple_of": 8},
        captured_layers=1,
        note="hybrid with convolutions",
    ),
}
INTERFACE = [name for name, family in FAMILIES.items() if not family.fallback]
FALLBACK = [name for name, family in FAMILIES.items() if family.fallback]


def _family(name: str) -> Family:
    return FAMILIES.get(name) or ODD[name]


def tiny_config(name: str, **changes: Any) -> Any:
    family = _family(name)
    options = {key: value for key, value in COMMON.items() if key not in family.drop} | family.options | changes
    return getattr(transformers, family.config)(**options)


def tiny_model(name: str, attn_implementation: str | None = None, seed: int = 0, **changes: Any) -> Any:
    """A random float32 model in evaluation mode, with weights large enough that attention is far from uniform."""
    config = tiny_config(name, **changes)
    implementation = attn_implementation or ("eager" if _family(name).eager_only else "sdpa")
    torch.manual_seed(seed)
    if _family(name).fallback:
        implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=implementation)
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for label, parameter in model.named_parameters():
            if parameter.ndim >= 2:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 1.5 * parameter.shape[-1] ** -0.5)
            elif label.endswith("sinks"):
                parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return model.float().eval()


def eager_masses(name: str, ids: list[int], spans: list[list[tuple[int, int]]], n_rows: int, **changes: Any) -> Any:
    """Span masses of the last rows from eager attention weights: float64 ``[layer, head, row, span]``.

    Independent of the package: one pass over the whole sequence, transformers' own weights, summed column by column.
    """
    model = tiny_model(name, "eager", **changes)
    with torch.no_grad():
        weights = model(torch.tensor([ids]), output_attentions=True, use_cache=False).attentions
    layers = [w for w in weights if w is not None]
    out = torch.zeros(len(layers), layers[0].shape[1], n_rows, len(spans), dtype=torch.float64)
    for number, layer in enumerate(layers):
        for span, ranges in enumerate(spans):
            for start, stop in ranges:
                out[number, :, :, span] += layer[0, :, -n_rows:, start:stop].double().sum(-1)
    return out
