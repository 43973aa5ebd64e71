"""The config of a study, as ``attnprobe run`` reads it from a YAML file. Imports pydantic."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from attnprobe.config_fields import (
    AttnImplementation,
    ConfigModel,
    ConfigPath,
    DeviceMap,
    Dtype,
    ModelConfig,
    Natural,
    Positive,
    Revision,
    Rope,
    Size,
    TrustRemoteCode,
)
from attnprobe.prompt import Layout, Markers, Template
from attnprobe.study_options import PREAMBLE, StudyOptions, check_changes


class StudyConfig(ModelConfig):
    """A study: every question's documents at all positions, on one model or several."""

    kind: Literal["study"] = Field(description="What is run.")
    models: list[ConfigModel] = Field(
        min_length=1,
        examples=[["smollm2"]],
        description="Models to study, one after the other: aliases, hub ids, folders or .gguf files. One that begins "
        "with ./ or ../ is relative to this file.",
    )
    prompts: ConfigPath = Field(
        examples=["prompts.jsonl"],
        description="Prompt file, one question with its documents a line; files of Lost in the Middle and HotpotQA "
        "are read as they are.",
    )
    out: ConfigPath = Field(
        examples=["out/study"], description="Folder for the results. A second run of the same config goes on in it."
    )
    n_documents: Annotated[int, Field(ge=2)] | None = Field(
        None,
        description="Documents of each question: fewer are filled up with other questions' documents that do not hold "
        "the answer. null: as the file has them.",
    )
    gold_only: bool = Field(
        False,
        description="Take of each question only the documents that the file marks as evidence, and fill up from there.",
    )
    limit: Positive | None = Field(None, description="Take so many questions from the file only. null: all.")
    answers: Literal["file", "generate"] = Field(
        "file",
        description="Force the file's answers, in one pass each; or the one that the model writes most often over the "
        "orders of a question.",
    )
    design: Literal["williams", "cyclic", "insertion"] = Field(
        "williams",
        description="Orders of the documents. williams: every document at every position, and every neighbourhood; "
        "cyclic: all rotations; insertion: only the gold document moves.",
    )
    bases: Positive = Field(
        StudyOptions.bases,
        description="Random base orders of each question's documents; two or more tell what a document does at a "
        "position from noise.",
    )
    seed: Natural = Field(StudyOptions.seed, description="Draws all that is random.")
    length_matched: bool = Field(
        StudyOptions.length_matched,
        description="Fill shorter documents up with neutral text to the tokens of the longest one of their question.",
    )
    extras: list[Literal["distance", "values", "effects"]] = Field(
        [],
        description="More to measure: mass by distance from the row; mass weighted by what each key writes; "
        "what hiding each document from the answer's rows does to the answer's log-probability.",
    )
    null: bool = Field(
        True,
        description='Also measure every order with question and answer "N/A": what position alone gets, and where '
        "secondary sinks are.",
    )
    preamble: str | None = Field(
        PREAMBLE, description="Also measure every order with this sentence before the documents. null: do not."
    )
    variants: list[str] = Field(
        [],
        description="More to measure in every order: dummy (a document without content in place of one of the "
        "documents), or one changed option, e.g. markers=numbered, template=plain.",
    )
    layout: Layout = Field("question_last", description="Where the question stands.")
    markers: Markers = Field("xml", description="What is written around documents.")
    template: Template = Field("auto", description="Chat template, plain text, or chat where there is one.")
    rows: Literal["predicting", "answer"] = Field(
        "predicting", description="Query rows averaged: those that predict the answer's tokens, or the answer's own."
    )
    dtype: Dtype = None
    device_map: DeviceMap = None
    attn_implementation: AttnImplementation = None
    revision: Revision = None
    trust_remote_code: TrustRemoteCode = False
    rope: Rope = None
    max_new_tokens: Positive = Field(
        StudyOptions.max_new_tokens, description="Longest answer that the model writes, tokens."
    )
    beyond_window: bool = Field(
        StudyOptions.beyond_window, description="Allow prompts longer than the model was made for."
    )
    keep_runs: Size = Field(
        "2 GB", description="Keep whole measurements, row by row, until they take so much room on the disk."
    )

    @model_validator(mode="after")
    def _variants_change_something(self) -> StudyConfig:
        check_changes(self.variants, {"layout": self.layout, "markers": self.markers, "template": self.template})
        return self
