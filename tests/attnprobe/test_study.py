"""Studies end to end on small models: orders, variants, folders that resume, analyses, and the command."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from planted_models import additive_lm
from tiny_folder import prompt_records, save_tiny_model, write_prompts
from typer.testing import CliRunner, Result

import attnprobe as ap
from attnprobe import cli, rotating, study_cells
from attnprobe.csv_text import table_csv
from attnprobe.errors import InputError, RunFileError
from attnprobe.estimates import Interval
from attnprobe.report import curve_figures
from attnprobe.study import Study
from attnprobe.study_cells import ASKED
from attnprobe.study_command import write_results
from attnprobe.study_curve import claim, study_curve
from attnprobe.study_findings import PanelRow, robustness
from attnprobe.study_merge import merge_folders
from attnprobe.study_options import StudyOptions, ordered_prompt, variant_prompt
from attnprobe.study_text import end_text, interval_text, study_lines

COLOURS = ["red", "blue", "green", "grey"]
WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight", *COLOURS, "north", "west", "page", "holds"]
K = 4


@pytest.fixture(scope="module")
def lm() -> ap.LanguageModel:
    """Attention by key alone: every word has its own weight, positions have none."""
    rng = np.random.default_rng(3)
    return additive_lm(WORDS, None, {word: float(rng.normal(0, 0.7)) for word in WORDS if len(word) > 1})


def prompt(number: int, **changes: Any) -> ap.Prompt:
    rng = np.random.default_rng(number)
    documents = [" ".join(rng.choice(WORDS[:12], 5)) for _ in range(K)]
    documents[number % K] += " north"
    return ap.Prompt(
        **{"documents": documents, "question": "which page", "answer": "north", "id": f"q{number}"} | changes
    )


def prompts(n: int) -> list[ap.Prompt]:
    return [prompt(number) for number in range(n)]


@pytest.fixture(scope="module")
def study(lm: ap.LanguageModel, tmp_path_factory: pytest.TempPathFactory) -> tuple[Study, Path]:
    out = tmp_path_factory.mktemp("study")
    variants = ("null", "preamble", "dummy", "markers=numbered")
    found = ap.rotate(
        lm,
        prompts(6),
        answers=["north west"] * 6,
        out=out,
        bases=2,
        variants=variants,
        extras=("distance", "values", "effects"),
    )
    return found, out


def test_every_document_stands_once_at_every_position_of_a_base(study: tuple[Study, Path]) -> None:
    data = study[0].of()
    assert data.permutations.shape == (6, 2 * K, K)
    for q in range(6):
        for base in (0, 1):
            square = data.permutations[q, data.bases == base]
            assert (np.sort(square, axis=0) == np.arange(K)[:, None]).all()
    # base orders are drawn for each question
    assert len({tuple(data.permutations[q, 0]) for q in range(6)}) > 1


def test_log_values_equal_those_of_the_runs(study: tuple[Study, Path], lm: ap.LanguageModel) -> None:
    data = study[0].of()
    q, o = 4, 3
    shown = ordered_prompt(prompt(q), data.orders[q][o].permutation)
    run = ap.measure(lm, shown, answer="north west", extras=("top", "question"))
    for norm in ("share", "mass", "density", "log_share", "advantage"):
        values = run.curve(norm).values
        expected = values if norm == "advantage" else np.log(values)
        np.testing.assert_allclose(data.log_values(norm)[q, o], expected, atol=2e-6)
    np.testing.assert_allclose(
        data.log_values("share", view="trimmed")[q, o], np.log(run.curve(trimmed=True).values), atol=5e-6
    )
    for view, rows in (("first", slice(0, 1)), ("later", slice(1, None))):
        np.testing.assert_allclose(
            data.log_values("share", view=view)[q, o], np.log(run.curve(rows=rows).values), atol=2e-6
        )
    assert run.question_mass is not None
    question = run.question_mass[..., list(run.document_spans)].mean(axis=(0, 1), dtype=np.float64)
    np.testing.assert_allclose(
        data.log_values("share", view="question")[q, o], np.log(question / question.sum()), atol=2e-6
    )
    one = data.log_values("share", layers=1, heads=0)[q, o]
    np.testing.assert_allclose(one, np.log(run.curve(layers=1, heads=0).values), atol=2e-6)
    np.testing.assert_allclose(data.answer_logprob[q, o], run.answer_logprob.sum(), atol=1e-5)


@pytest.mark.parametrize("variant", ["null", "preamble", "dummy", "markers=numbered"])
def test_variants_are_what_they_say(study: tuple[Study, Path], lm: ap.LanguageModel, variant: str) -> None:
    found, _ = study
    data = found.of()
    q, o = 2, 5
    order = data.orders[q][o]
    shown = variant_prompt(ordered_prompt(prompt(q), order.permutation), variant, found.options, order.number % K)
    run = ap.measure(lm, shown, answer="N/A" if variant == "null" else "north west")
    np.testing.assert_allclose(data.log_values("share", variant=variant)[q, o], np.log(run.curve().values), atol=2e-6)


def test_the_null_question_is_asked_of_the_same_documents() -> None:
    plain = prompt(0)
    null = variant_prompt(plain, "null", StudyOptions())
    assert (null.documents, null.question) == (plain.documents, "N/A")
    both = variant_prompt(prompt(0, instruction="Be brief."), "preamble", StudyOptions(preamble="Read."))
    assert both.instruction == "Be brief.\n\nRead."


def test_content_alone_gives_a_flat_curve_and_all_of_the_variance(study: tuple[Study, Path]) -> None:
    """The model's logits depend on words only, so after averaging over positions nothing is left."""
    found, _ = study
    for norm in ("share", "log_share"):
        curve = found.curve(norm)
        np.testing.assert_allclose(curve.profiles - curve.profiles.mean(axis=1, keepdims=True), 0, atol=1e-5)
        assert curve.verdict == "flat"
    assert found.claim() == "flat"
    parts = found.decompose()
    assert parts.content.estimate == pytest.approx(1, abs=1e-4)
    assert parts.position.estimate == pytest.approx(0, abs=1e-4)
    assert found.interval(0.95).estimate == pytest.approx(1, abs=1e-5)


def test_the_dummy_is_read_where_it_stood(study: tuple[Study, Path]) -> None:
    found, _ = study
    data = found.of()
    values = data.log_values("share", variant="dummy")
    expected = np.array(
        [
            np.mean([values[q, o, p] for o, order in enumerate(data.orders[q]) if order.number % K == p])
            for q in range(6)
            for p in range(K)
        ]
    ).reshape(6, K)
    np.testing.assert_allclose(found.curve(variant="dummy").profiles, expected, atol=1e-12)


def test_calibration_divides_by_the_null_run_of_the_same_order(study: tuple[Study, Path]) -> None:
    found, _ = study
    data = found.of()
    difference = data.log_values("share") - data.log_values("share", variant="null")
    np.testing.assert_allclose(found.curve(calibrated=True).profiles, difference.mean(axis=1), atol=1e-12)


def test_panel_budget_and_table(study: tuple[Study, Path]) -> None:
    found, _ = study
    names = [row.name for row in found.artefact_panel()]
    assert names[:6] == ["raw", "trimmed", "sinks apart", "null", "calibrated", "preamble"]
    assert {"dummy", "markers=numbered", "first row", "later rows", "question rows"} < set(names)
    assert sum(found.budget().values()) == pytest.approx(1, abs=1e-6)
    assert found.uniform().sum() == pytest.approx(1)
    rows = found.table()
    assert len(rows) == 6 * 2 * K * K
    assert sum(row["is_gold"] for row in rows) == 6 * 2 * K
    for o in range(2 * K):
        order = [row for row in rows if (row["question"], row["base"] * K + row["order"]) == ("q1", o)]
        assert sum(row["share"] for row in order) == pytest.approx(1, abs=1e-6)
    json.dumps(found.to_dict(), allow_nan=False)
    assert found.to_dict()["budget"]["secondary_sink"] is not None
    assert found.to_dict()["budget_null"]["secondary_sink"] is None  # set apart in the prompts as they are only


def test_distance_and_value_weighted_mass(study: tuple[Study, Path], lm: ap.LanguageModel) -> None:
    found, _ = study
    data = found.of()
    runs = [
        ap.measure(
            lm,
            ordered_prompt(prompt(q), data.orders[q][o].permutation),
            answer="north west",
            extras=("distance", "values"),
        )
        for q in range(6)
        for o in range(2 * K)
    ]
    mass, edges = found.distance(layers=1)
    assert len(mass) == len(edges) - 1
    assert edges[:4] == (0, 1, 2, 4)
    expected = np.zeros(len(mass))
    for one in runs:
        assert one.distance_mass is not None
        expected[: one.distance_mass.shape[-1]] += one.distance_mass[1].mean(axis=0) / len(runs)
    np.testing.assert_allclose(mass, expected, atol=1e-6)
    weighted = data.log_values("share", view="weighted")[3, 2]
    one = runs[3 * 2 * K + 2]
    assert one.value_mass is not None
    own = one.value_mass[..., list(one.document_spans)].mean(axis=(0, 1), dtype=np.float64)
    np.testing.assert_allclose(weighted, np.log(own / own.sum()), atol=2e-6)


def test_mass_and_effect(study: tuple[Study, Path], lm: ap.LanguageModel) -> None:
    found, _ = study
    data = found.of()
    shown = ordered_prompt(prompt(5), data.orders[5][1].permutation)
    expected = ap.effects(lm, shown, "north west").effect
    np.testing.assert_allclose(data.array(ASKED, "effect")[5, 1], expected, atol=1e-5)
    # the planted model writes nothing to the residual stream, so that no document has an effect
    np.testing.assert_allclose(data.array(ASKED, "effect"), 0, atol=1e-4)
    assert found.mass_and_effect().n_cells == 6 * K * K
    text = " ".join(" ".join(study_lines(found)).split())
    for norm, name in (("share", "pooled"), ("log_share", "per head")):
        assert f"share ({name}) and effect on the answer (rank correlation): " in text
        pooled = found.mass_and_effect(norm).pooled
        assert found.to_dict()["mass_and_effect"][norm]["pooled"] == pooled.to_dict()
        assert f"{interval_text(pooled)} over all" in text


def test_the_gold_answer_by_position(study: tuple[Study, Path]) -> None:
    found, _ = study
    data = found.of()
    gold = found.gold_logprob()
    assert gold is not None
    assert gold.n == 6
    expected = np.zeros(K)
    for q in range(6):
        own = [np.mean(data.answer_logprob[q][data.gold_positions[q] == p]) for p in range(K)]
        expected += np.array(own) - np.mean(own)
    np.testing.assert_allclose(gold.values, expected / 6, atol=1e-9)


def test_a_second_call_measures_nothing_and_finds_the_same(
    study: tuple[Study, Path], lm: ap.LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, out = study

    def refuse(*arguments: Any, **options: Any) -> Any:
        raise AssertionError("measured again")

    monkeypatch.setattr(study_cells, "measure", refuse)
    monkeypatch.setattr(rotating, "measure", refuse)
    options = {name: value for name, value in found.options.to_dict().items() if name not in ("design", "seed")}
    again = ap.rotate(lm, prompts(6), answers=["north west"] * 6, out=out, **options)
    assert json.dumps(again.to_dict()) == json.dumps(found.to_dict())
    assert json.dumps(Study.load(out).to_dict()) == json.dumps(found.to_dict())


def test_another_study_in_the_same_folder_is_refused(study: tuple[Study, Path], lm: ap.LanguageModel) -> None:
    with pytest.raises(InputError, match="bases"):
        ap.rotate(lm, prompts(6), answers=["north west"] * 6, out=study[1])
    with pytest.raises(InputError) as caught:
        ap.rotate(lm, prompts(6), answers=["north west"] * 6, out=study[1], bases=2)
    assert str(caught.value).startswith(f"{study[1]} holds results of other settings")


def test_whole_runs_are_kept_up_to_a_size(lm: ap.LanguageModel, tmp_path: Path) -> None:
    ap.rotate(lm, prompts(1), answers=["north"], out=tmp_path / "all", variants=())
    kept = sorted((tmp_path / "all").glob("*/runs/*.safetensors"))
    assert len(kept) == K
    assert ap.Run.load(kept[0]).row_mass is not None
    ap.rotate(lm, prompts(1), answers=["north"], out=tmp_path / "none", variants=(), keep_runs=0)
    assert not list((tmp_path / "none").glob("*/runs/*.safetensors"))


def test_a_failed_cell_leaves_its_question_out(
    lm: ap.LanguageModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = study_cells.measure

    def fails_once(model: Any, shown: ap.Prompt, **options: Any) -> Any:
        if shown.id == "q1":
            raise RuntimeError("no luck")
        return real(model, shown, **options)

    monkeypatch.setattr(study_cells, "measure", fails_once)
    found = ap.rotate(lm, prompts(3), answers=["north"] * 3, out=tmp_path, variants=())
    assert found.of().questions == ("q0", "q2")
    assert "no luck" in found.of().incomplete["q1"]
    monkeypatch.setattr(study_cells, "measure", real)
    again = ap.rotate(lm, prompts(3), answers=["north"] * 3, out=tmp_path, variants=(), retry_failed=True)
    assert again.of().questions == ("q0", "q1", "q2")


def test_out_of_memory_feeds_the_prompt_in_chunks(
    lm: ap.LanguageModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, chunks = study_cells.measure, []

    def greedy(model: Any, shown: ap.Prompt, **options: Any) -> Any:
        chunks.append(options["prefill_chunk"])
        if options["prefill_chunk"] == "auto":
            raise MemoryError("too much")
        return real(model, shown, **options)

    monkeypatch.setattr(study_cells, "measure", greedy)
    found = ap.rotate(lm, prompts(1), answers=["north"], out=tmp_path, variants=())
    assert not found.of().incomplete
    assert set(chunks) == {"auto", 2048}


def test_a_damaged_file_is_named(lm: ap.LanguageModel, tmp_path: Path) -> None:
    ap.rotate(lm, prompts(1), answers=["north"], out=tmp_path, variants=())
    file = next(tmp_path.glob("*/arrays/*.safetensors"))
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(ap.RunFileError, match=file.name):
        Study.load(tmp_path)
    file.unlink()
    with pytest.raises(ap.RunFileError, match=r"missing.*run the same command again"):
        Study.load(tmp_path)
    with pytest.raises(InputError, match="holds no study"):
        Study.load(tmp_path / "other")


def test_generated_answers_are_forced_where_they_are_most_frequent(lm: ap.LanguageModel) -> None:
    found = ap.rotate(lm, prompts(2), variants=(), max_new_tokens=3)
    data = found.of()
    for q in range(2):
        answers = {tuple(fact["answer_ids"]) for fact in data.facts[ASKED][q]}
        assert len(answers) == 1
        own = [
            ap.measure(lm, ordered_prompt(prompt(q), order.permutation), max_new_tokens=3).answer_ids
            for order in data.orders[q]
        ]
        assert max(set(own), key=own.count) in answers
    assert found.agreement() is not None


def test_insertion_moves_the_document_with_the_answer(lm: ap.LanguageModel) -> None:
    found = ap.rotate(lm, prompts(2), answers=["north"] * 2, design="insertion", variants=())
    data = found.of()
    # the curve is the moved document's: in a model without positions, flat in every question
    values = data.log_values("share")
    curve = found.curve()
    for q in range(2):
        np.testing.assert_allclose(curve.profiles[q], [values[q, o, o] for o in range(K)], atol=1e-12)
        np.testing.assert_allclose(np.ptp(curve.profiles[q]), 0, atol=1e-5)
        assert [order.permutation.index(q % K) for order in data.orders[q]] == list(range(K))
        others = {tuple(d for d in order.permutation if d != q % K) for order in data.orders[q]}
        assert len(others) == 1
    with pytest.raises(InputError, match="insertion"):
        found.decompose()
    longer = [
        replace(one, documents=[d.text + " red" * 9 * (i == number) for i, d in enumerate(one.documents)])
        for number, one in enumerate(prompts(2))
    ]
    found = ap.rotate(lm, longer, answers=["north"] * 2, design="insertion", variants=())
    assert found.uniform().min() > 1.5 / K
    from attnprobe.report.study_figures import layer_position_figure

    (image,) = layer_position_figure(found).axes[0].images
    expected = [np.log2(found.curve("log_share", layers=layer).values / found.uniform()) for layer in found.of().layers]
    np.testing.assert_allclose(image.get_array(), expected, atol=1e-6)
    two = prompt(0, documents=["north red one", "north blue", "two", "three"])
    with pytest.raises(InputError, match=r"q0.*holds the answer"):
        ap.rotate(lm, [two], answers=["north"], design="insertion")


def test_documents_of_one_length(lm: ap.LanguageModel) -> None:
    uneven = prompt(0, documents=["one two three four five six", "red", "blue green", "grey north"])
    found = ap.rotate(lm, [uneven], answers=["north"], variants=(), length_matched=True)
    tokens = found.of().array(ASKED, "tokens")
    assert np.ptp(tokens) == 0
    assert tokens.max() >= 6


def test_shares_equal_those_of_runs_with_windows() -> None:
    from tiny_models import tiny_model
    from toy_tokenizers import CHATML, bytelevel, with_template

    tokenizer = with_template(bytelevel, CHATML)
    model = tiny_model("gemma2", vocab_size=len(tokenizer))
    windowed = ap.LanguageModel(model, tokenizer)
    shown = ap.Prompt(["Refunds take 30 days.", "Members wait.", "See it."], "How long?", answer="30 days")
    found = ap.rotate(windowed, [shown], answers=["30 days"], variants=(), extras=("values",), beyond_window=True)
    data = found.of()
    for o, order in enumerate(data.orders[0]):
        run = ap.measure(windowed, ordered_prompt(shown, order.permutation), answer="30 days", extras=("values",))
        assert (run.visible[:, :, run.document_spans[0]] == 0).any(), "no window ends before the first document"
        for norm in ("share", "mass", "log_share", "density"):
            np.testing.assert_allclose(data.log_values(norm)[0, o], np.log(run.curve(norm).values), atol=5e-6)
    weighted = data.log_values("log_share", view="weighted")
    assert not np.isinf(weighted).any()


def test_a_model_outside_the_interface_is_refused_at_once() -> None:
    from tiny_models import tiny_model
    from toy_tokenizers import CHATML, bytelevel, with_template

    tokenizer = with_template(bytelevel, CHATML)
    bloom = ap.LanguageModel(tiny_model("bloom", vocab_size=len(tokenizer)), tokenizer)
    with pytest.raises(InputError, match=r"Bloom.*measure\(\)"):
        ap.rotate(bloom, prompts(1), answers=["north"])


@pytest.mark.parametrize("layout", ["question_last", "question_first", "question_both"])
def test_secondary_sinks_are_taken_apart_in_every_layout(layout: str) -> None:
    weights = dict.fromkeys(WORDS, 0.0) | {"eight": 6.5}
    sinking = additive_lm([*WORDS, "five"], None, weights, word_layers=[1])
    texts = [" ".join(WORDS[:7]) + " " + " ".join(WORDS[8:12] * 4) for _ in range(K)]
    texts[2] = texts[2].replace("three", "eight")
    shown = prompt(0, documents=texts, layout=layout)
    found = ap.rotate(sinking, [shown], answers=["north"], variants=("null",))
    data = found.of()
    assert all(fact["secondary_sinks"] for fact in data.facts[ASKED][0])
    with_them = data.log_values("share")
    without = data.log_values("share", view="apart")
    for o, order in enumerate(data.orders[0]):
        at = order.permutation.index(2)
        assert with_them[0, o, at] - without[0, o, at] > 0.5
        left = data.array(ASKED, "tokens")[0, o] - (np.arange(K) == at)
        np.testing.assert_allclose(without[0, o], np.log(left / left.sum()), atol=1e-5)
    with pytest.raises(InputError, match=r"no mass\.apart"):
        data.log_values("share", view="apart", variant="null")


def test_a_changed_tokenizer_is_another_study(lm: ap.LanguageModel, tmp_path: Path) -> None:
    ap.rotate(lm, prompts(1), answers=["north"], out=tmp_path, variants=())
    other = additive_lm([*reversed(WORDS)])
    with pytest.raises(InputError, match=r"tokenizer_sha256"):
        ap.rotate(
            ap.LanguageModel(lm.model, other.tokenizer, lm.source),
            prompts(1),
            answers=["north"],
            out=tmp_path,
            variants=(),
        )


def test_a_wrong_answer_of_the_models_own_says_nothing_of_the_gold_document(lm: ap.LanguageModel) -> None:
    found = ap.rotate(lm, prompts(1), variants=(), max_new_tokens=2)
    assert found.of().facts[ASKED][0][0]["answer_is_accepted"] is ("north" in found.of().facts[ASKED][0][0]["answer"])
    if not found.of().facts[ASKED][0][0]["answer_is_accepted"]:
        assert found.gold_logprob() is None


def test_layers_are_tested_together(study: tuple[Study, Path]) -> None:
    tests = study[0].layer_tests()
    assert [one["layer"] for one in tests] == list(study[0].of().layers)
    for one in tests:
        assert one["head_middle"] == pytest.approx(1, abs=1e-4)


def test_two_documents_have_a_curve_and_no_middle(lm: ap.LanguageModel) -> None:
    two = [prompt(number, documents=["north red one", f"blue {WORDS[number]}"]) for number in range(2)]
    found = ap.rotate(lm, two, answers=["north"] * 2, variants=("null",))
    assert found.curve().head_middle is None
    assert found.to_dict()["decomposition"] is None
    lines = study_lines(found)
    assert any("no middle" in line for line in lines)
    assert any(line.startswith("fit: none") and "there are 2" in line for line in lines)


def test_an_array_that_is_gone_is_named(lm: ap.LanguageModel, tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    ap.rotate(lm, prompts(1), answers=["north"], out=tmp_path, variants=())
    file = next(tmp_path.glob("*/arrays/*.safetensors"))
    arrays = load_file(file)
    del arrays["asked/mass.raw"]
    save_file(arrays, file)
    with pytest.raises(ap.RunFileError, match=rf"{file.name}.*asked/mass.raw"):
        Study.load(tmp_path)


def test_several_models(lm: ap.LanguageModel, tmp_path: Path) -> None:
    from dataclasses import replace

    other = ap.LanguageModel(lm.model, lm.tokenizer, replace(lm.source, name="other"))
    found = ap.rotate([lm, other], prompts(1), answers=["north"], out=tmp_path, variants=())
    assert len(found.models) == 2
    assert Study.load(tmp_path).models == tuple(sorted(found.models))
    with pytest.raises(InputError, match="several models"):
        found.curve()
    np.testing.assert_array_equal(found.curve(model="other").values, found.curve(model=found.models[0]).values)
    with pytest.raises(InputError, match="have the name"):
        ap.rotate([lm, lm], prompts(1), answers=["north"])


def test_few_questions_give_no_intervals_and_say_so(lm: ap.LanguageModel) -> None:
    found = ap.rotate(lm, prompts(2), answers=["north"] * 2, variants=())
    interval = found.interval()
    assert (interval.low, interval.high) == (None, None)
    assert "5" in str(interval.reason)
    assert found.claim() == "too few questions"
    text = " ".join(study_lines(found))
    assert str(interval.reason) in text
    assert text.count("the test needs at least 6") == 1
    assert "without known artefacts" not in text
    assert "fit: symmetric, alpha" in text
    assert "two_sided: none, as two sides and a floor take five documents" in text
    fits = found.to_dict()["fit"]
    assert fits["two_sided"] is None
    assert fits["symmetric"]["fit"]["model"] == "symmetric"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"design": "wiliams"}, "wiliams"),
        ({"variants": ("nul",)}, "did you mean 'null'"),
        ({"variants": ("null", "null")}, "once"),
        ({"extras": ("top",)}, "distance, values, effects"),
        ({"base": 2}, "did you mean bases"),
        ({"preamble": " "}, "preamble is empty"),
        ({"answers": ["north", "north"]}, "2 answers for 1 prompt"),
        ({"answers": [""]}, "no answer to force"),
        ({"bases": 0}, "bases"),
        ({"seed": -1}, "seed"),
        ({"answers": "north"}, "answers is one text"),
        ({"answers": [" "]}, "no answer to force"),
        ({"keep_runs": "2 GB"}, "keep_runs"),
        ({"length_matched": "no"}, "length_matched"),
        ({"preamble": None}, "preamble"),
        ({"rows": "all"}, "rows is 'all'"),
        ({"extras": "effect"}, "extras effect: a study takes"),
        ({"max_new_tokens": 0}, "max_new_tokens"),
    ],
)
def test_bad_options_are_refused_by_name(lm: ap.LanguageModel, given: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        ap.rotate(lm, prompts(1), **{"answers": ["north"]} | given)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], "list of prompts"),
        ([prompt(0), prompt(0)], "twice|two questions"),
        ([prompt(0), prompt(1, documents=["one", "two"])], "one number"),
        ([prompt(0, documents=["one"])], "nothing to move"),
        ([ap.Prompt.from_text("one two")], "no documents to move"),
    ],
)
def test_bad_prompts_are_refused_by_name(lm: ap.LanguageModel, given: list[ap.Prompt], message: str) -> None:
    with pytest.raises(InputError, match=message):
        ap.rotate(lm, given)


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli.app, [str(a) for a in arguments])


@pytest.mark.slow
def test_the_command(tmp_path: Path) -> None:
    model = save_tiny_model(tmp_path / "model")
    file = write_prompts(tmp_path / "prompts.jsonl", prompt_records(6, n_documents=3))
    command = ("study", file, "--model", model, "--out", tmp_path / "out", "--variants", "null")
    first = run(*command)
    assert first.exit_code == 0, (first.stderr, first.exception)
    lines = first.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert any(line.startswith("head/middle") for line in lines)
    (folder,) = (path.parent for path in (tmp_path / "out").glob("*/summary.json"))
    assert {path.name for path in folder.glob("*.png")} >= {"curve.png", "artefacts.png", "layers.png"}
    assert len((folder / "table.csv").read_text().splitlines()) == 1 + 6 * 6 * 3
    second = run(*command, "--json", "--quiet")
    assert second.exit_code == 0
    (found,) = json.loads(second.stdout).values()
    assert found["n_questions"] == 6
    assert found == json.loads((folder / "summary.json").read_text())


def test_the_command_names_what_is_wrong(tmp_path: Path) -> None:
    records = prompt_records(2)
    del records[1]["answer"]
    file = write_prompts(tmp_path / "prompts.jsonl", records)
    result = run("study", file, "--model", "nothing", "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert "q1" in result.stderr
    result = run("study", file, "--model", "nothing", "--out", tmp_path / "out", "--keep-runs", "lots")
    assert result.exit_code == 2
    assert "lots" in result.stderr


def planted_study(tmp_path: Path, position_logits: Any, n: int = 6, **options: Any) -> Study:
    """Forced answers on a model whose attention is a function of the key's position."""
    planted = additive_lm(WORDS, np.asarray(position_logits, dtype=np.float64), {})
    return ap.rotate(planted, prompts(n), answers=["north west"] * n, out=tmp_path / "planted", **options)


def decaying(rate: float) -> np.ndarray:
    return 3.0 * np.exp(-rate * np.arange(256))


def test_a_question_of_empty_documents_is_refused_before_anything_is_measured(
    lm: ap.LanguageModel, tmp_path: Path
) -> None:
    asked = [*prompts(2), prompt(7, documents=[""] * K)]
    with pytest.raises(InputError, match=r"'q7'.*all empty.*leave the question out"):
        ap.rotate(lm, asked, answers=["north"] * 3, out=tmp_path / "out", variants=("null",))
    assert not (tmp_path / "out").exists()


def test_results_are_written_where_documents_have_no_tokens(lm: ap.LanguageModel, tmp_path: Path) -> None:
    asked = [prompt(q, documents=["north red", "", "blue", "two three"]) for q in range(6)]
    found = ap.rotate(lm, asked, answers=["north"] * 6, out=tmp_path / "out", variants=("null",))
    (name,) = found.models
    data = found.of()
    # as a folder written before such questions were refused
    data.arrays[f"{ASKED}/tokens"][0] = 0.0
    data.arrays[f"{ASKED}/mass.raw"][0] = np.nan
    folder = next((tmp_path / "out").iterdir())
    write_results(found, name, folder)
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["effective_documents"] is None
    assert None not in summary["uniform"]  # the other questions'


def test_every_model_is_checked_before_one_is_measured(
    lm: ap.LanguageModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dataclasses import replace

    from tiny_models import tiny_model
    from toy_tokenizers import CHATML, bytelevel, with_template

    def refuse(*arguments: Any, **options: Any) -> Any:
        raise AssertionError("measured")

    monkeypatch.setattr(study_cells, "measure", refuse)
    monkeypatch.setattr(rotating, "measure", refuse)
    tokenizer = with_template(bytelevel, CHATML)
    bloom = ap.LanguageModel(tiny_model("bloom", vocab_size=len(tokenizer)), tokenizer)
    with pytest.raises(InputError, match=r"Bloom.*measure\(\)"):
        ap.rotate([lm, bloom], prompts(1), answers=["north"])
    small = ap.LanguageModel(tiny_model("llama", vocab_size=len(tokenizer), max_position_embeddings=40), tokenizer,
                             replace(lm.source, name="small"))  # fmt: skip
    with pytest.raises(InputError, match=r"small: prompt 'q0' has .* the model's limit is 40"):
        ap.rotate([lm, small], prompts(1), answers=["north"])


def test_extras_that_a_model_cannot_give_are_refused_at_the_start(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from tiny_models import tiny_model
    from toy_tokenizers import CHATML, bytelevel, with_template

    tokenizer = with_template(bytelevel, CHATML)
    gated = ap.LanguageModel(tiny_model("qwen3_next", vocab_size=len(tokenizer)), tokenizer)
    with pytest.raises(InputError, match=r'extras values: .*"values" needs the output projection'):
        ap.rotate(gated, prompts(2), answers=["north"] * 2, variants=(), extras="values", out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_one_extra_may_be_given_as_a_text(lm: ap.LanguageModel) -> None:
    found = ap.rotate(lm, prompts(1), answers=["north"], variants="null", extras="distance")
    assert (found.options.extras, found.options.variants) == (("distance",), ("null",))
    for name, extra in (("mass_and_effect", "effects"), ("curve", "values")):
        choice = {"view": "weighted"} if name == "curve" else {}
        with pytest.raises(InputError, match=rf"did not measure {extra}.*extras=\('{extra}',\), or --extras {extra}"):
            getattr(found, name)(**choice)


def test_the_claim_says_what_it_is_of_and_whether_it_holds_without_artefacts(tmp_path: Path) -> None:
    # One token of the first document draws attention, whatever it says: no U is left once it is taken out.
    plain = additive_lm(WORDS)
    (start, _) = next(s for s in prompt(0).encode(plain.tokenizer).spans if s.kind == "document").segments[0]
    found = planted_study(tmp_path, np.eye(256)[start] * 5.0, variants=())
    assert found.claim() == "head"
    without = found.claim_without_artefacts()
    assert (without.claim, without.holds, without.verdicts) == ("head", False, {"trimmed": "flat"})
    assert without.head == {
        "raw": {"pooled": "raised", "per head": "raised"},
        "trimmed": {"pooled": "even", "per head": "even"},
    }
    assert found.to_dict()["claim_without_artefacts"] == without.to_dict()
    lines = study_lines(found)
    head, log_head = (f"{found.curve(norm).head_middle.estimate:.2f}" for norm in ("share", "log_share"))
    assert f", raw curve: head (head {head} pooled, {log_head} per head; tail " in lines[0]
    text = " ".join(" ".join(lines).split())
    assert 'The verdict is not the same without known artefacts: with trimmed it is "flat", not "head".' in text
    assert "Head: raised in raw; even in trimmed. Tail: even in raw, trimmed." in text
    tail = planted_study(tmp_path / "tail", -decaying(0.02), variants=())
    assert tail.claim_without_artefacts().holds is True
    assert "The verdict is the same without known artefacts, though" in " ".join(" ".join(study_lines(tail)).split())


def panel_row(name: str, pooled: list[float], per_head: list[float], noise: float = 0.01) -> PanelRow:
    def of(norm: str, values: list[float]) -> Any:
        return study_curve(np.random.default_rng(1).normal(0, noise, (8, 3, 5)) + np.log(values), norm=norm)

    curves = {"share": of("share", pooled), "log_share": of("log_share", per_head)}
    return PanelRow(name, "", curves, removes_artefact=name != "raw")


def test_each_end_is_reported_where_the_raw_curve_claims_nothing() -> None:
    raw = panel_row("raw", [3, 1, 1, 1, 2], [1, 1, 1, 1, 2])
    same = panel_row("sinks apart", [3, 1, 1, 1, 2], [1, 1, 1, 1, 2])
    both = panel_row("trimmed", [3, 1, 1, 1, 2], [3, 1, 1, 1, 2])
    found = robustness((raw, both, same))
    assert found.holds is None
    assert found.claim == "depends on the order of averaging (pooled: U, per head: tail)"
    assert (found.verdicts["trimmed"], found.same_curve) == ("U", ("sinks apart",))
    assert found.sentences == (
        "The raw curve claims nothing that could hold without known artefacts.",
        "Head: raised pooled, even per head in raw, sinks apart; raised in trimmed.",
        "Tail: raised in raw, trimmed, sinks apart.",
        "Nothing was there to take out, so it is the raw curve again: sinks apart.",
    )
    assert found.to_dict()["text"] == " ".join(found.sentences)
    json.dumps(found.to_dict())


def test_bounds_that_a_state_turns_on_have_the_digits_that_show_it() -> None:
    def text(low: float, high: float) -> str:
        return end_text(Interval(1.14, low, high, 0.95, 8, ""))

    assert text(1.044, 1.2519) == "1.14 (1.04 to 1.252), raised"
    assert text(1.044, 1.2481) == "1.14 (1.04 to 1.248), even (slightly above 1)"
    assert text(0.99996, 1.25004) == "1.14 (1.000 to 1.250), unclear"
    assert text(1.0002, 1.2504) == "1.14 (1.0002 to 1.2504), raised"
    assert text(1.02, 1.28) == "1.14 (1.02 to 1.28), raised"


def test_the_panel_fits_a_terminal_and_names_every_state() -> None:
    from attnprobe.study_text import _panel_lines

    rows = [panel_row("raw", [12, 1, 1, 1, 0.5], [1.1, 1, 1, 1, 1]),
            panel_row("template=plain, trimmed", [1, 1, 1, 1, 1], [1.24, 1, 1, 1, 1], 0.3)]  # fmt: skip
    lines = _panel_lines(rows)
    assert all(len(line) <= 80 for line in lines)
    text = "\n".join(lines)
    assert re.search(r"raw +12\.\d+ \(11\.\d+ to 12\.\d+\) raised +0\.\d+ \(.*\) lowered", text)
    assert re.search(r"raw +1\.\d+ \(1\.\d+ to 1\.\d+\) even\* +\S+ \(.*\) even", text)
    assert "even* inside 0.8 to 1.25 as a whole" in text
    assert "unclear" in text


def test_verdicts_that_contradict_each_other_are_named_as_the_tables_are() -> None:
    row = panel_row("raw", [3, 1, 1, 1, 1], [1, 1, 1, 1, 1])
    assert claim(row.curves) == "depends on the order of averaging (pooled: head, per head: flat)"


def test_scaled_values_are_those_of_the_picture_and_the_terminal(tmp_path: Path) -> None:
    found = planted_study(tmp_path, decaying(0.02), variants=())
    curve = found.curve()
    assert curve.values.sum() < 1 - 1e-4  # geometric means
    shown = curve.scaled()
    np.testing.assert_allclose(shown.estimate, curve.values / curve.values.sum(), rtol=1e-12)
    assert shown.low is not None
    assert curve.band.low is not None
    np.testing.assert_allclose(shown.low, curve.band.low / curve.values.sum(), rtol=1e-12)
    row = next(line for line in study_lines(found) if line.split()[:1] == ["0"])
    assert row.split()[1] == f"{100 * shown.estimate[0]:.1f}"
    symmetric = curve.fit("symmetric").fit
    (line,) = [line for line in study_lines(found) if line.startswith("fit: ")]
    assert line.startswith(f"fit: symmetric, alpha {symmetric.parameters['alpha']:.2f} (standard error ")
    assert f"r2 {symmetric.r2:.3f}" in " ".join(" ".join(study_lines(found)).split())
    advantage = found.curve("advantage")
    np.testing.assert_array_equal(advantage.scaled().estimate, advantage.values)


def test_an_advantage_has_differences_and_no_ratios(study: tuple[Study, Path]) -> None:
    found, _ = study
    curve, plain = found.curve("advantage"), found.curve()
    assert (curve.head_middle, curve.tail_middle) == (None, None)
    assert (plain.head_minus_middle, plain.tail_minus_middle) == (None, None)
    means = found.of().log_values("advantage").mean(axis=1)  # [question, position]
    assert curve.head_minus_middle is not None
    expected = (means[:, 0] - means[:, [1, 2]].mean(axis=1)).mean()
    assert curve.head_minus_middle.estimate == pytest.approx(expected, abs=1e-12)
    assert found.interval(norm="advantage") == curve.head_minus_middle


def test_the_table_has_the_units_of_the_curves(study: tuple[Study, Path]) -> None:
    found, _ = study
    rows = [row for row in found.table() if row["question"] == "q3"]
    by_position = [[row["log_share"] for row in rows if row["position"] == p] for p in range(K)]
    np.testing.assert_allclose(np.exp(found.curve("log_share").profiles[3]),
                               [np.exp(np.mean(np.log(values))) for values in by_position], rtol=1e-6)  # fmt: skip
    data = found.of()
    for name, choice in (("apart", {"view": "apart"}), ("trimmed", {"view": "trimmed"}),
                         ("null", {"variant": "null"}), ("preamble", {"variant": "preamble"})):  # fmt: skip
        expected = np.exp(data.log_values("share", **choice)[3]).ravel()
        np.testing.assert_allclose([row[f"share_{name}"] for row in rows], expected, rtol=1e-9)
    one = [row["answer_logprob"] for row in rows if (row["base"], row["order"]) == (0, 1)]
    assert one == [float(np.sum(data.facts[ASKED][3][1]["answer_logprob"]))] * K


def test_results_are_short_at_a_prompt(study: tuple[Study, Path]) -> None:
    found, _ = study
    gold = found.gold_logprob()
    curve = found.curve()
    assert curve.head_middle is not None
    results = [curve, curve.head_middle, curve.band, found.decompose(), gold, found.artefact_panel()[0],
               found.mass_and_effect(), curve.flatness, found.of(), found]  # fmt: skip
    for one in results:
        assert len(repr(one)) < 250
        assert "array(" not in repr(one)
    assert repr(curve.head_middle).startswith("Interval(1 (1 to 1), 95 %, n=6")
    assert "flat" in repr(curve)


def test_a_folder_of_one_model_is_a_study_too(study: tuple[Study, Path]) -> None:
    found, out = study
    (part,) = (path for path in out.iterdir() if path.is_dir())
    assert json.dumps(Study.load(part).to_dict()) == json.dumps(found.to_dict())


def test_kept_runs_can_be_walked_over(lm: ap.LanguageModel, study: tuple[Study, Path]) -> None:
    found, _ = study
    data = found.of()
    kept = list(found.runs())
    assert len(kept) == 6 * 2 * K * 5
    one = next(one for one in kept if (one.question, one.variant) == ("q4", ASKED) and one.order == data.orders[4][3])
    np.testing.assert_allclose(np.log(one.curve().values), data.log_values("share")[4, 3], atol=2e-6)
    null = next(one for one in kept if one.variant == "null")
    q, o = data.questions.index(null.question), data.orders[data.questions.index(null.question)].index(null.order)
    expected = data.log_values("share", variant="null")[q, o]
    np.testing.assert_allclose(np.log(null.curve().values), expected, atol=2e-6)
    with pytest.raises(InputError, match="no whole run of this study was kept"):
        ap.rotate(lm, prompts(1), answers=["north"], variants=()).runs()


def test_the_own_answers_that_are_not_shown_are_counted(study: tuple[Study, Path]) -> None:
    lines = study_lines(study[0])
    start = next(number for number, line in enumerate(lines) if line.startswith("answers: forced"))
    assert [line.split(":")[0] for line in lines[start + 1 : start + 4]] == ["  q0", "  q1", "  q2"]
    assert lines[start + 4] == "  and 3 more in summary.json"


def test_pictures(tmp_path: Path) -> None:
    from attnprobe.report.curve_figures import curve_figure
    from attnprobe.report.study_figures import answer_position_figure, artefact_figure, layer_position_figure

    found = planted_study(tmp_path, decaying(0.02), variants=())
    significant = [(0, t["layer"]) for t in found.layer_tests() if t["head_p"] < 0.05]
    assert significant
    main = layer_position_figure(found).axes[0]
    assert set(significant) <= {(int(x), int(y)) for x, y in main.collections[0].get_offsets()}
    assert "adjusted p < 0.05" in main.get_legend().get_texts()[0].get_text()
    note = " ".join(main.figure._supxlabel.get_text().split())
    assert f"each layer: mean log share of {found.of().n_heads} head" in note
    assert "Dots say that a difference is consistent over questions, not that it is large." in note
    figure = artefact_figure(found)
    left, right = figure.axes
    assert left.get_xlim() == right.get_xlim()
    assert {0.8, 1, 1.25} <= set(left.get_xticks())
    for axes in (left, right):
        assert [axes.patches[0].get_x(), axes.patches[0].get_width()] == pytest.approx([0.8, 0.45])
    gold = found.gold_logprob()
    assert gold is not None
    note = " ".join(answer_position_figure(found)._supxlabel.get_text().split())
    assert f"Head - middle: {interval_text(gold.head_minus_middle)} nats" in note
    assert "mean of" not in note
    verdict = "depends on the order of averaging (pooled: tail or U, per head: inconclusive)"
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(curve_figures, "robustness", lambda panel: replace(robustness(panel), claim=verdict))
        figure = curve_figure(found)
    plain = " ".join(curve_figure(found)._suptitle.get_text().split())
    assert plain == f"Attention by position, raw curve: {found.claim()}"
    figure.canvas.draw()
    title = figure._suptitle
    assert title.get_window_extent().x1 <= figure.bbox.x1
    assert " ".join(title.get_text().split()) == f"Attention by position, raw curve: {verdict}"


def test_merged_studies_get_results_of_the_whole(lm: ap.LanguageModel, tmp_path: Path) -> None:
    import shutil

    asked = {"prompts": prompts(2), "answers": ["north"] * 2, "variants": ()}
    whole = ap.rotate(lm, out=tmp_path / "whole", **asked)
    (name,) = whole.models
    parts = []
    for number in range(2):
        folder = tmp_path / f"part{number}"
        shutil.copytree(tmp_path / "whole", folder)
        (model,) = folder.iterdir()
        records = model / "cells" / "cells-0.jsonl"
        other = [line for line in records.read_text().splitlines(keepends=True) if f'"q000{number}-' in line]
        records.write_text("".join(other))
        found = Study.load(folder)
        write_results(found, name, model)
        parts.append(folder)
    merged = merge_folders(parts, tmp_path / "out")
    assert (merged.done, merged.differing) == (merged.n_cells, ())
    (model,) = (tmp_path / "out").iterdir()
    summary = json.loads((model / "summary.json").read_text())
    assert summary["n_questions"] == 2
    assert summary == json.loads(json.dumps(whole.to_dict()))
    assert (model / "table.csv").read_text() == table_csv(whole.table())
    assert (model / "curve.png").exists()

    for folder in parts:
        (next(folder.iterdir()) / "study.json").write_text("{")
    with pytest.raises(RunFileError, match=r"study\.json"):
        merge_folders(parts, tmp_path / "damaged")


@pytest.mark.slow
def test_the_command_checks_all_models_first(tmp_path: Path) -> None:
    model = save_tiny_model(tmp_path / "model")
    small = save_tiny_model(tmp_path / "small", max_position_embeddings=16)
    file = write_prompts(tmp_path / "prompts.jsonl", prompt_records(1, n_documents=3))
    out = tmp_path / "out"
    for other, words in ((tmp_path / "nowhere", "nowhere"), (small, "limit is 16")):
        result = run("study", file, "-m", model, "-m", other, "--out", out)
        assert result.exit_code == 2
        assert words in result.stderr
        assert not out.exists()
