"""What scalings do to rotary frequencies, from configs alone, against the papers' formulas written down here."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers
from tiny_folder import save_tiny_model
from tiny_models import tiny_config
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner

from attnprobe import cli
from attnprobe.errors import InputError
from attnprobe.report.rope_figure import rope_figure
from attnprobe.rope_angles import RopeAt, decay, first_below_random, never_turning, octaves
from attnprobe.rope_inspect import LONGEST, inspect_rope
from attnprobe.rope_inspect_text import inspect_lines

LLAMA_3_1 = {  # config.json of Llama-3.1-8B, as far as positions go
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_hidden_layers": 32,
    "max_position_embeddings": 131072,
    "rope_theta": 500000.0,
    "rope_scaling": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "vocab_size": 128256,
}
YARN_LLAMA_2 = {  # of Yarn-Llama-2-7b-64k
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "max_position_embeddings": 65536,
    "rope_theta": 10000.0,
    "rope_scaling": {"factor": 16.0, "original_max_position_embeddings": 4096, "type": "yarn"},
    "vocab_size": 32000,
}
LLAMA_2 = {**YARN_LLAMA_2, "max_position_embeddings": 4096, "rope_scaling": None}


def write(folder: Path, config: dict[str, Any]) -> str:
    path = folder / "config.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    return str(path)


def plain(theta: float, dim: int) -> np.ndarray:
    return np.array([theta ** (-2 * i / dim) for i in range(dim // 2)])


def one_at(frequencies: Any, length: int, scaling: float = 1.0) -> RopeAt:
    return RopeAt("none", "default", None, length, scaling, tuple(frequencies))


def test_the_published_frequencies_of_llama_3_1(tmp_path: Path) -> None:
    """Piecewise by wavelength, as Meta's reference code states it: kept, divided by 8, and smoothed between."""
    found = inspect_rope(write(tmp_path, LLAMA_3_1))
    wanted = []
    for frequency in plain(500_000.0, 128):
        turns = 8192 * frequency / (2 * math.pi)  # in the original window
        if turns > 4:
            wanted.append(frequency)
        elif turns < 1:
            wanted.append(frequency / 8)
        else:
            smooth = (turns - 1) / (4 - 1)
            wanted.append((1 - smooth) * frequency / 8 + smooth * frequency)
    (at, longer) = found.scaled
    assert (at.scaling, at.rope_type, at.length, longer.length) == ("as configured", "llama3", 8192, 131072)
    assert (found.original, at.window, at.attention_scaling) == (8192, 131072, 1.0)
    np.testing.assert_allclose(at.inv_freq, wanted, rtol=1e-5)
    np.testing.assert_allclose(longer.inv_freq, wanted, rtol=1e-5)
    np.testing.assert_allclose(found.inv_freq, plain(500_000.0, 128), rtol=1e-5)


def test_the_published_frequencies_of_a_yarn_model(tmp_path: Path) -> None:
    """NTK-by-parts of the YaRN paper (section 3.2), the pairs of 32 and 1 turns rounded outwards as in its code."""
    found = inspect_rope(write(tmp_path, YARN_LLAMA_2), lengths=[65536])
    edges = [128 * math.log(4096 / (turns * 2 * math.pi)) / (2 * math.log(10_000.0)) for turns in (32, 1)]
    low, high = math.floor(edges[0]), math.ceil(edges[1])
    gamma = np.clip(1 - (np.arange(64) - low) / (high - low), 0, 1)  # 1: left alone
    frequencies = plain(10_000.0, 128)
    (at,) = found.scaled
    np.testing.assert_allclose(at.inv_freq, (1 - gamma) * frequencies / 16 + gamma * frequencies, rtol=1e-5)
    assert at.attention_scaling == pytest.approx(0.1 * math.log(16) + 1)
    kept = found.kept(at)
    assert kept is not None
    np.testing.assert_allclose(kept, gamma, atol=1e-4)
    slow = found.slowdown(at)
    assert (slow[:low] == pytest.approx(1.0), slow[high:] == pytest.approx(16.0)) == (True, True)


def test_the_critical_dimension_is_the_published_one(tmp_path: Path) -> None:
    """Liu et al. 2024 give 92 for Llama 2 (4096 tokens, 128 dimensions)."""
    assert inspect_rope(write(tmp_path, LLAMA_2)).critical_dimension == 92
    for config in (LLAMA_3_1, YARN_LLAMA_2):
        found = inspect_rope(write(tmp_path, config))
        turns = math.log(found.original / (2 * math.pi)) / math.log(found.theta)
        assert found.critical_dimension == 2 * math.ceil(64 * turns)


def test_decay_is_the_mean_of_cosines_over_all_distances() -> None:
    frequencies = plain(100.0, 16)
    at = one_at(frequencies, 100, 1.5)
    edges = octaves(100)
    assert edges == [1, 2, 4, 8, 16, 32, 64, 100]
    wanted = [
        1.5**2 * np.mean([np.cos(m * frequencies).mean() for m in range(low, high)]) for low, high in pairwise(edges)
    ]
    np.testing.assert_allclose(decay(at, edges), wanted, rtol=1e-10)


def test_decay_is_what_random_queries_and_keys_show() -> None:
    """The theory's claim itself: E[q . R k*] - E[q . R k], k* like q and k independent, by simulation."""
    rng = np.random.default_rng(0)
    frequencies = plain(100.0, 16)
    query = rng.normal(1.0, 1.0, (20_000, 8, 2))  # a mean that all components share cancels
    other = rng.normal(1.0, 1.0, query.shape)
    like = query + rng.normal(0.0, 0.3, query.shape)
    for distance in (1, 3, 9):
        angle = distance * frequencies
        turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
        scores = [np.einsum("npi,ijp,npj->n", query, turn, key).mean() for key in (like, other)]
        found = decay(one_at(frequencies, 100), [distance, distance + 1])[0]
        assert (scores[0] - scores[1]) / (2 * len(frequencies)) == pytest.approx(found, abs=0.03)


def test_the_first_distance_below_random_is_found_across_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    at = one_at(plain(10_000.0, 32), 50_000)
    sums = np.cos(np.arange(1, 50_000)[:, None] * plain(10_000.0, 32)).sum(axis=1)
    wanted = int(np.flatnonzero(sums < 0)[0]) + 1
    assert first_below_random(at) == wanted
    monkeypatch.setattr("attnprobe.rope_angles._AT_A_TIME", 7)
    assert first_below_random(at) == wanted
    assert first_below_random(one_at(at.inv_freq, wanted)) is None  # its longest distance is one less


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_tiny_model(tmp_path_factory.mktemp("model"), head_dim=32, max_position_embeddings=256))


def test_frequencies_that_depend_on_the_length(small: str) -> None:
    found = inspect_rope(small, ["dynamic:4", "linear:4"], [64, 256, 1024])
    assert [(at.scaling, at.length) for at in found.scaled] == [
        (f"{kind}:factor=4.0", length) for kind in ("dynamic", "linear") for length in (64, 256, 1024)
    ]
    for at in found.scaled[:3]:
        base = 10_000.0 * max(4 * at.length / 256 - 3, 1) ** (32 / 30)
        np.testing.assert_allclose(at.inv_freq, plain(base, 32), rtol=1e-5)
    assert found.at_longest == (found.scaled[2], found.scaled[5])
    assert found.kept(found.scaled[0]) is None
    np.testing.assert_allclose(found.slowdown(found.scaled[5]), 4.0, rtol=1e-5)


def test_angles_that_training_never_showed(small: str) -> None:
    """By hand: wavelengths above 256 are those of pairs 7 to 15; at 1024 tokens they turn four times as far."""
    found = inspect_rope(small, ["none", "linear:4"], [1024])
    never = 2 * math.pi / plain(10_000.0, 32) > 256
    assert (int(never.sum()), found.critical_dimension) == (9, 14)
    unscaled, linear = found.scaled
    np.testing.assert_allclose(found.farthest(unscaled), np.where(never, 4.0, 0.0), rtol=1e-5)
    np.testing.assert_allclose(found.farthest(linear), np.where(never, 1.0, 0.0), rtol=1e-5)
    assert never_turning(linear.inv_freq, 1024) == 9
    assert [one["new_angles"] for one in found.to_dict()["scalings"]] == [9, 0]
    first, second = (
        line.split() for line in inspect_lines(found) if line.startswith(("none", "linear:4")) and "1,024" in line
    )
    assert (first[5:7], second[5:7]) == (["9", "4.00"], ["0", "1.00"])
    told = " ".join(" ".join(inspect_lines(found)).split())
    wanted = "of pairs that completed no turn in training, the largest angle over the largest seen there"
    assert f"farthest: {wanted}" in told


def test_by_default_the_config_as_it_is_and_its_lengths(small: str) -> None:
    (at,) = inspect_rope(small).scaled
    assert (at.scaling, at.length, at.window) == ("as configured", 256, 256)
    assert [at.length for at in inspect_rope(small, ["yarn:4", "yarn:factor=4"]).scaled] == [256, 1024]


def test_layers_by_type_and_heads_that_turn_in_part(tmp_path: Path) -> None:
    for name, layers, turning, still in (("gemma3", "full_attention", 8, 0), ("gemma4", "full_attention", 4, 12)):
        tiny_config(name).save_pretrained(tmp_path / name)
        found = inspect_rope(str(tmp_path / name))
        assert (found.layers, len(found.inv_freq), found.n_still) == (layers, turning, still)
        assert len(found.scaled[0].inv_freq) == turning
    assert "24 more dimensions never turn" in " ".join(" ".join(inspect_lines(found)).split())


def test_what_cannot_be_inspected_says_why(tmp_path: Path, small: str) -> None:
    tiny_config("gpt2").save_pretrained(tmp_path / "gpt2")
    transformers.GPTJConfig(n_layer=1, n_embd=32, n_head=2).save_pretrained(tmp_path / "gptj")  # rotates in its own way
    for name in ("gpt2", "gptj"):
        with pytest.raises(InputError, match=rf'{name}" \("{name}"\) has no RoPE .* no rotary positions, or none that'):
            inspect_rope(str(tmp_path / name))
    scaled = {**LLAMA_2, "rope_scaling": {"rope_type": "linear", "factor": 2.0}}
    with pytest.raises(InputError, match=r"does not tell the original length of the model; add original_max"):
        inspect_rope(write(tmp_path, scaled))
    stated = inspect_rope(write(tmp_path, scaled), ["yarn:factor=4,original_max_position_embeddings=2048"])
    assert (stated.original, stated.scaled[-1].length) == (2048, 8192)
    with pytest.raises(InputError, match="unknown kind"):
        inspect_rope(small, ["yam:4"])
    with pytest.raises(InputError, match="length must be at least 2, not 1"):
        inspect_rope(small, lengths=[256, 1])
    with pytest.raises(InputError, match=r'no config "nowhere.json": no such file'):
        inspect_rope("nowhere.json")


def run(*arguments: str) -> Any:
    return CliRunner().invoke(cli.app, ["rope", "inspect", *arguments])


SCALINGS = ["none", "linear:4", "dynamic:4", "ntk:4", "yarn:4", "theta=500000"]
OPTIONS = [part for scaling in SCALINGS for part in ("--scaling", scaling)]


def test_the_command_prints_tables_of_80_columns(small: str) -> None:
    result = run(small, *OPTIONS, "--lengths", "256,1k")
    assert result.exit_code == 0, result.stderr
    lines = result.stdout.splitlines()
    assert max(len(line) for line in lines) <= 80
    header = next(i for i, line in enumerate(lines) if line.startswith("pair "))
    assert lines[header].split() == ["pair", "wavelength", "turns", "none", "linear:4", "dynamic:4", "ntk:4", "yarn:4"]
    assert lines[header + 1].split() == ["0", "6.3", "40.74", "1.00", "4.00", "1.00", "1.00", "1.00"]
    assert lines[header + 16].split()[0] == "15"
    assert "1 more scaling: --json" in " ".join(lines[header + 17 :])


def test_json_and_picture(small: str, tmp_path: Path) -> None:
    picture = tmp_path / "rope.svg"
    result = run(small, *OPTIONS, "--json", "--out", str(picture))
    found = json.loads(result.stdout)
    assert len(found["scalings"]) == 2 * len(SCALINGS)
    yarn = next(one for one in found["scalings"] if one["rope_type"] == "yarn" and one["length"] == 1024)
    assert set(yarn) >= {"window", "attention_scaling", "wavelength", "slowdown", "kept", "never_turning", "decay"}
    assert len(yarn["decay"]) == len(yarn["decay_distances"]) == 10
    text = picture.read_text(encoding="utf-8")
    assert all(name in text for name in ("wavelength (positions)", "yarn:4", "Men et al. 2024"))


def test_the_picture_draws_what_was_found(small: str) -> None:
    found = inspect_rope(small, ["none", "yarn:4"], [256, 1024])
    waves, slow, far = rope_figure(found).axes
    np.testing.assert_allclose(waves.lines[0].get_ydata(), 2 * np.pi / plain(10_000.0, 32), rtol=1e-5)
    np.testing.assert_allclose(slow.lines[1].get_ydata(), found.slowdown(found.scaled[3]))
    assert far.lines[1].get_ydata()[0] > 1 > far.lines[1].get_ydata()[-1]


def test_the_smallest_length_and_the_largest_window(small: str) -> None:
    """Two tokens have one distance; a window of millions of positions is followed up to a bound."""
    (shortest,) = rope_figure(inspect_rope(small, lengths=[2])).axes[2].lines[0].get_ydata()
    assert shortest == pytest.approx(np.cos(plain(10_000.0, 32)).mean(), rel=1e-5)
    found = inspect_rope(small, ["linear:1e9"])
    assert [(at.length, at.window) for at in found.scaled] == [(256, 256 * 10**9), (LONGEST, 256 * 10**9)]


def test_names_that_are_cut_to_the_same_are_numbered(small: str) -> None:
    specs = ["yarn:factor=4,original_max_position_embeddings=128", "theta=50000", "theta=500000"]
    lines = inspect_lines(inspect_rope(small, [*specs, specs[0].replace("128", "64")], [1024]))
    headers = [line.split("  ") for line in lines if line.startswith(("1: ", "4: ", "pair "))]
    assert [row[0] for row in headers] == ["1: yarn:factor=4.…", "4: yarn:factor=4.…"] * 2 + ["pair"]
    assert headers[-1][-4:] == ["1: yarn:…", "2: theta…", "3: theta…", "4: yarn:…"]


def test_tables_keep_to_80_columns_whatever_the_numbers(small: str) -> None:
    specs = ["theta=1e12", "linear:1e12", "dynamic:1e5", "yarn:1e12", "ntk:1e6"]
    lines = inspect_lines(inspect_rope(small, specs, [256, 4096]))
    assert max(map(len, lines)) <= 80
    assert not any(line.endswith("…") for line in lines)


def test_slowdowns_of_every_size_are_drawn_on_one_scale(small: str) -> None:
    slow = rope_figure(inspect_rope(small, ["yarn:4", "dynamic:100", "theta=1000"], [256, 4096])).axes[1]
    slow.figure.canvas.draw()
    low, high = slow.get_ylim()
    assert slow.get_yscale() == "log"
    assert {tick.get_text() for tick in slow.get_yticklabels()} >= {"1", "64"}
    assert 0 < low < min(min(line.get_ydata()) for line in slow.lines)
    assert high > max(max(line.get_ydata()) for line in slow.lines)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"rope_theta": 0}, "has rope_theta 0 in its RoPE parameters, where a positive number belongs"),
        ({"rope_theta": -10_000.0}, "has rope_theta -10000.0 in"),
        ({"rope_theta": None}, "has rope_theta None in"),
        ({"rope_scaling": {"type": "yarn", "factor": "four"}}, "has factor 'four' in"),
        ({"rope_scaling": {"type": "dynamic", "factor": math.inf}}, "has factor inf in"),
        ({"rope_theta": 1.0}, 'cannot be built with "yarn:factor=4.0": ZeroDivisionError'),
        # transformers' plain RoPE of this class leaves the part out, its scalings do not
        ({"partial_rotary_factor": 0.5}, '"yarn:factor=4.0" turns 32 pairs of dimensions at 4,096 tokens, where'),
        ({"partial_rotary_factor": 0}, "turns 0 pairs of dimensions"),
        ({"max_position_embeddings": -5}, "does not tell the original length"),
    ],
)
def test_a_config_with_wrong_numbers(tmp_path: Path, changes: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError) as caught:
        inspect_rope(write(tmp_path, {**LLAMA_2, "num_hidden_layers": 1, **changes}), ["yarn:4"])
    assert says in str(caught.value)


@pytest.mark.parametrize("arguments", [["model"], ["--scaling", "none"], ["inspector"]])
def test_without_a_command_it_is_the_comparison(arguments: list[str]) -> None:
    result = CliRunner().invoke(cli.app, ["rope", *arguments])
    assert (result.exit_code, result.stdout) == (2, "")
    assert "rope compare --help lists what can be given" in result.stderr


def test_wrong_arguments_are_one_line(small: str, tmp_path: Path) -> None:
    for arguments, says in (
        ([small, "--lengths", "2k,x"], '--lengths is "2k,x"; give numbers of tokens'),
        ([small, "--lengths", "0"], "--lengths is"),
        ([small, "--lengths", "1"], "length must be at least 2, not 1"),
        ([small, "--lengths", "999999k"], "a length of 1,023,998,976 tokens is too long to inspect"),
        ([small, "--scaling", "yarn"], 'lacks "factor"'),
        ([small, "--out", "rope.jpg"], "rope.jpg"),
        ([str(tmp_path)], "has no config.json"),
        ([], "missing argument 'MODEL'"),
    ):
        result = run(*arguments)
        assert (result.exit_code, result.stdout) == (2, ""), arguments
        (line,) = result.stderr.splitlines()
        assert says in line


def test_no_weights_are_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A config alone; nothing the size of the model is made, and transformers' messages stay as they were set."""
    build, built = AutoModelForCausalLM.from_config, []

    def noted(*arguments: Any, **options: Any) -> Any:
        built.append(build(*arguments, **options))
        return built[-1]

    monkeypatch.setattr(AutoModelForCausalLM, "from_config", noted)
    before = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_warning()
    try:
        result = run(write(tmp_path, {**LLAMA_3_1, "num_hidden_layers": 2}), "--json")
        assert transformers.logging.get_verbosity() == transformers.logging.WARNING
    finally:
        transformers.logging.set_verbosity(before)
    assert json.loads(result.stdout)["original_positions"] == 8192
    assert built
    assert all(parameter.is_meta for model in built for parameter in model.parameters())
