"""What a measurement costs beside the plain run of the same tokens, in seconds and in memory.

    python benchmarks/overhead.py                      # SmolLM2, 4096 tokens, 32 answer rows, with eager for comparison
    python benchmarks/overhead.py --generate           # a generated answer: prefill and 32 decoding steps
    python benchmarks/overhead.py --tokens 8192 --no-eager
    python benchmarks/overhead.py --model tiny --tokens 131072 --no-eager --pairs 0
    python benchmarks/overhead.py --model llama-8b --device cuda --tokens 32768 131072 --rows 64    # generation

Times come from one process in which plain and instrumented runs alternate, after a warm-up of each. Peak memory comes
from a fresh process for each variant, as the operating system counts it. `eager` is what a user would do instead:
`output_attentions=True`, which keeps every layer's whole matrix.

`llama-1b` and `llama-8b` have random weights and no tokenizer: for them, generation is compared (see generation.py),
in one process, with the peak of the device's allocator for memory.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

WORDS = tuple("the of and to in a is that for it as was with be by on not he his but at are this".split())  # noqa: SIM905


def load(name: str, n_tokens: int) -> Any:
    """A language model: an alias or path, or ``tiny``, a random two-layer one for any length."""
    import attnprobe as ap

    if name != "tiny":
        return ap.load(name, progress=False)
    from transformers import AutoModelForCausalLM, LlamaConfig

    tokenizer = ap.load("smollm2", progress=False).tokenizer
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=n_tokens + 64,
    )
    return ap.LanguageModel(AutoModelForCausalLM.from_config(config), tokenizer)


def make_prompt(lm: Any, n_tokens: int, n_documents: int = 10) -> Any:
    """A prompt of at most ``n_tokens`` tokens: ten documents of common words and a question."""
    import random

    import attnprobe as ap

    draw = random.Random(0)
    overhead = ap.Prompt(["x"] * n_documents, "What is it?").encode(lm.tokenizer).n_tokens
    words = [" ".join(draw.choices(WORDS, k=(n_tokens - overhead) // n_documents)) for _ in range(n_documents)]
    prompt = ap.Prompt(words, "What is it?")
    assert prompt.encode(lm.tokenizer).n_tokens <= n_tokens
    return prompt


def runs(lm: Any, prompt: Any, answer: list[int], generate: bool) -> dict[str, Any]:
    """The three variants as functions that return seconds spent in capture."""
    import attnprobe as ap

    prompt_ids = prompt.encode(lm.tokenizer).token_ids
    ids = torch.tensor([[*prompt_ids, *answer[:-1]]])
    length = {"max_new_tokens": len(answer), "min_new_tokens": len(answer)}

    def plain_generation() -> float:
        lm.model.generate(
            torch.tensor([prompt_ids]),
            attention_mask=torch.ones(1, len(prompt_ids), dtype=torch.long),
            do_sample=False,
            pad_token_id=lm.pad_id,
            **length,
        )
        return 0.0

    def instrumented_generation() -> float:
        return ap.measure(lm, prompt, beyond_window=True, **length).manifest["capture"]["seconds"]

    def plain() -> float:
        with torch.no_grad():
            lm.model(ids, use_cache=False, logits_to_keep=len(answer))
        return 0.0

    def instrumented() -> float:
        return ap.measure(lm, prompt, answer=answer, beyond_window=True).manifest["capture"]["seconds"]

    def eager() -> float:
        lm.model.set_attn_implementation("eager")
        with torch.no_grad():
            output = lm.model(ids, use_cache=False, logits_to_keep=len(answer), output_attentions=True)
        begin = time.perf_counter()
        bounds = [span.segments for span in prompt.encode(lm.tokenizer).spans]
        for layer in output.attentions:
            rows = layer[0, :, -len(answer) :]
            [sum(rows[..., a:b].sum(-1) for a, b in segments) for segments in bounds if segments]
        return time.perf_counter() - begin

    if generate:
        return {"plain": plain_generation, "instrumented": instrumented_generation}
    return {"plain": plain, "instrumented": instrumented, "eager": eager}


def child(args: argparse.Namespace) -> None:
    """Run in a fresh process: time variants in turn, or run one once for its peak memory; print JSON."""
    lm = load(args.model, args.tokens)
    prompt = make_prompt(lm, args.tokens)
    answer = list(range(100, 100 + args.rows))
    variants = runs(lm, prompt, answer, args.generate)
    loaded = peak_bytes()
    result: dict[str, Any] = {"tokens": prompt.encode(lm.tokenizer).n_tokens + args.rows - 1, "loaded_bytes": loaded}
    if args.child == "pairs":
        for name in ("plain", "instrumented"):
            variants[name]()
        times: dict[str, list[float]] = {"plain": [], "instrumented": [], "capture": []}
        for _ in range(args.pairs):
            for name in ("plain", "instrumented"):
                begin = time.perf_counter()
                inside = variants[name]()
                times[name].append(time.perf_counter() - begin)
                if name == "instrumented":
                    times["capture"].append(inside)
        result["seconds"] = times
    else:
        begin = time.perf_counter()
        variants[args.child]()
        result["seconds"] = time.perf_counter() - begin
    result["peak_bytes"] = peak_bytes()
    print(json.dumps(result))


def generation(args: argparse.Namespace) -> None:
    """Compare plain and instrumented generation of a random Llama at each length; as many as the budget allows."""
    begin = time.monotonic()
    from generation import compare, line, random_llama

    device = torch.device(args.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise SystemExit("no CUDA or ROCm device here; `--device cpu --model llama-tiny` is a dry run")
    on_gpu = device.type == "cuda"
    model = random_llama(args.model, device, torch.bfloat16 if on_gpu else torch.float32)
    backend = "auto" if args.backend is None else args.backend
    compare(model, 256, 4, 1, prefill_chunk=args.prefill_chunk, backend=backend)  # warm-up: compiles the kernels
    record: dict[str, Any] = {
        "model": args.model,
        "device": torch.cuda.get_device_name(device) if on_gpu else platform.machine(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "backend": backend,
        "runs": [],
    }
    for n_tokens in args.tokens:
        if time.monotonic() - begin > args.budget:
            print(f"{args.model}, {n_tokens} tokens: left out, time limit")
            record["runs"].append({"tokens": n_tokens, "left_out": "time limit"})
        else:
            run = compare(
                model,
                n_tokens,
                args.rows,
                args.pairs,
                prefill_chunk=args.prefill_chunk,
                backend=backend,
                deadline=begin + args.budget,
            )
            print(line(args.model, run), flush=True)
            record["runs"].append(run)
        write(args.json, record)
    if not all(run.get("same_tokens", True) for run in record["runs"]):
        raise SystemExit("an instrumented run wrote other tokens than the plain one")


def write(path: Path | None, record: dict[str, Any]) -> None:
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        part.write_text(json.dumps(record, indent=1) + "\n")
        part.replace(path)


def peak_bytes() -> int:
    """Largest resident size of this process so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def in_fresh_process(args: argparse.Namespace, what: str) -> dict[str, Any]:
    command = [sys.executable, __file__, "--child", what, "--model", args.model]
    command += ["--tokens", str(args.tokens), "--rows", str(args.rows), "--pairs", str(args.pairs)]
    command += ["--generate"] * args.generate
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "HF_HUB_OFFLINE": "1"})
    if done.returncode:
        raise SystemExit(f"{what}: exit {done.returncode}\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def print_times(seconds: dict[str, list[float]]) -> None:
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    ratios = [b / a for a, b in zip(seconds["plain"], seconds["instrumented"], strict=True)]
    print(f"  plain                    {medians['plain']:8.2f} s   (median of {len(ratios)})")
    print(f"  instrumented             {medians['instrumented']:8.2f} s")
    print(f"  ratio, pair by pair      {statistics.median(ratios):8.3f}     ({min(ratios):.3f} to {max(ratios):.3f})")
    share = medians["capture"] / medians["plain"]
    print(f"  spent in capture         {medians['capture']:8.3f} s   ({share:.2%} of the plain run)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2", help="alias, folder, .gguf, `tiny`, `llama-1b`, `llama-8b`")
    parser.add_argument("--tokens", type=int, nargs="+", default=[4096], help="prompt length, tokens")
    parser.add_argument("--rows", type=int, default=32, help="answer tokens")
    parser.add_argument(
        "--pairs", type=int, default=5, help="timed pairs of plain and instrumented runs; 0: memory only"
    )
    parser.add_argument("--generate", action="store_true", help="generate the answer instead of forcing it; no eager")
    parser.add_argument(
        "--eager", action=argparse.BooleanOptionalAction, default=True, help="compare with eager weights"
    )
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="of the random Llamas")
    parser.add_argument("--backend", help="of the kernels, for the random Llamas; default: auto")
    parser.add_argument("--prefill-chunk", type=int, help="tokens fed at a time, for the random Llamas")
    parser.add_argument("--budget", type=float, default=600.0, help="seconds after which no new length is started")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.model.startswith("llama-"):
        generation(args)
        return
    if args.device != "cpu" or len(args.tokens) > 1:
        parser.error("--device and several --tokens are for llama-1b and llama-8b")
    args.tokens = args.tokens[0]
    if args.child:
        child(args)
        return
    pairs = in_fresh_process(args, "pairs") if args.pairs else None
    memory = {name: in_fresh_process(args, name) for name in ("plain", "instrumented")}
    if args.eager and not args.generate:
        memory["eager"] = in_fresh_process(args, "eager")
    n_tokens = memory["plain"]["tokens"]
    how = "generated" if args.generate else "forced"
    print(f"{args.model}, {n_tokens} tokens, {args.rows} rows, {how}, {torch.get_num_threads()} threads")
    if pairs is not None:
        print_times(pairs["seconds"])
    for name, figures in memory.items():
        extra = (figures["peak_bytes"] - memory["plain"]["peak_bytes"]) / 2**20
        line = f"  peak memory, {name:<12}{figures['peak_bytes'] / 2**30:8.2f} GiB ({extra:+.0f} MiB)"
        print(line + (f", {figures['seconds']:.1f} s cold" if name == "eager" else ""))
    if args.json:
        record = {
            "model": args.model,
            "tokens": n_tokens,
            "rows": args.rows,
            "answer": how,
            "threads": torch.get_num_threads(),
            "machine": platform.machine(),
            "python": platform.python_version(),
            "torch": torch.__version__,
            "seconds": None if pairs is None else pairs["seconds"],
            "peak_bytes": {name: figures["peak_bytes"] for name, figures in memory.items()},
            "eager_seconds": memory.get("eager", {}).get("seconds"),
        }
        write(args.json, record)


if __name__ == "__main__":
    main()
