"""The configs of tasks, as ``attnprobe run`` reads them from a YAML file. Imports pydantic.

What a kind shares with the others stands around its own keys: bases are read from the last to the first.
"""

from __future__ import annotations

import os
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationInfo, model_validator

from attnprobe.config_fields import (
    AttnImplementation,
    Config,
    ConfigModel,
    ConfigPath,
    DeviceMap,
    Dtype,
    ModelConfig,
    Natural,
    Part,
    Positive,
    Revision,
    Rope,
    TrustRemoteCode,
    placed,
)
from attnprobe.prompt import Layout, Markers, Template
from attnprobe.several_models import LOADING
from attnprobe.tasks.cell import READ_AND_ANSWER, Form
from attnprobe.tasks.endpoint import Endpoint, LimitName
from attnprobe.tasks.filler_control import Placement
from attnprobe.tasks.niah import Mode
from attnprobe.tasks.task_input import TaskInput
from attnprobe.tasks.task_judge import Judging
from attnprobe.tasks.task_options import TaskOptions


def _placed_filler(kind: str, info: ValidationInfo) -> str:
    """A kind of filler; a file in it as seen from the config file."""
    how, colon, path = kind.partition(":")
    return f"{how}:{os.path.normpath(placed(Path(path), info))}" if path else f"{how}{colon}"


Filler = Annotated[str, AfterValidator(_placed_filler)]


class _Server(BaseModel):
    """How a server is asked: the fields of :class:`attnprobe.tasks.endpoint.Endpoint`."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, hide_input_in_errors=True)

    base_url: str
    model: str
    key_env: str | None = None
    temperature: float | None = 0.0
    seed: int | None = 0
    limit_name: LimitName = "max_tokens"
    timeout: float = Endpoint.timeout
    retries: Natural = Endpoint.retries
    per_minute: float | None = None
    concurrency: Positive = Endpoint.concurrency

    def endpoint(self, max_tokens: int) -> Endpoint:
        """The same as what the task takes."""
        names = [field.name for field in fields(Endpoint) if field.name != "max_tokens"]
        return Endpoint(**{name: getattr(self, name) for name in names}, max_tokens=max_tokens)


class _Observed(_Server):
    tokenizer: ConfigModel | None = None


class _Judge(_Server):
    sample: Positive = Judging.sample


class _Models(Config):
    """What every task begins with."""

    models: list[ConfigModel] = Field(
        examples=[["smollm2"]],
        description="Models to measure, one after the other: aliases, hub ids, folders or .gguf files. One that begins "
        "with ./ or ../ is relative to this file. [] with endpoint.",
    )
    out: ConfigPath = Field(
        examples=["out/task"], description="Folder for the results. A second run of the same config goes on in it."
    )


class _Needles(_Models):
    """Where needles come from."""

    items: ConfigPath | None = Field(
        None,
        description="File of needles, one JSON object a line with id, wordings, question, answer and foil, and if need "
        "be accepted, pattern (a regular expression for replies), distractors (needle_sweep: one fewer than "
        "documents), domain, terms; e.g. "
        '{"id": "tram", "wordings": ["The last tram leaves at 23:40."], "question": "When does the last tram leave?", '
        '"answer": "23:40", "foil": "22:15", "distractors": ["Trams are cleaned at night."]}. null: the built-in ones.',
    )
    only: Annotated[list[str], Field(min_length=1)] | None = Field(
        None, description="Take only the needles with these ids. null: all."
    )
    limit: Positive | None = Field(None, description="Take so many needles only. null: all.")


class TaskConfig(ModelConfig):
    """What every task ends with: draws, form, and how the model is run."""

    chosen: ClassVar[tuple[str, ...]]
    if TYPE_CHECKING:  # of the other bases, which stand before these
        models: list[str]
        out: Path
        markers: Markers

    trials: Positive = Field(1, description="Draws of each item: of distractors or filler, and the needle's wording.")
    seed: Natural = Field(0, description="Draws all that is random.")
    baselines: bool = Field(
        True, description="Also ask each question without any text, and with the evidence alone (closed book, oracle)."
    )
    layout: Layout = Field("question_last", description="Where the question stands.")
    template: Template = Field("auto", description="Chat template, plain text, or chat where there is one.")
    system: str | None = Field(None, description="System message. null: none.")
    instruction: str | None = Field(READ_AND_ANSWER, description="What the model is told to do. null: nothing.")
    max_new_tokens: Natural = Field(
        32, description="Longest reply that the model writes, tokens; 0 for no replies and no accuracy."
    )
    beyond_window: bool = Field(False, description="Allow prompts longer than the model was made for.")
    dtype: Dtype = None
    device_map: DeviceMap = None
    attn_implementation: AttnImplementation = None
    revision: Revision = None
    trust_remote_code: TrustRemoteCode = False
    rope: Rope = None
    endpoint: _Observed | None = Field(
        None,
        description="A model on a server that speaks OpenAI's chat completions, in place of models; without attention "
        "or log-probabilities. A mapping: base_url and model; if need be key_env (the environment variable with the "
        "key), tokenizer (a model whose tokens prompts are counted in; must be given where prompts have lengths), "
        "temperature, seed, limit_name, timeout, retries, per_minute, concurrency.",
    )
    judge: _Judge | None = Field(
        None,
        description="A model on a server that compares replies with the answers, to see how far the rule that scores "
        "them can be trusted. A mapping as endpoint, with sample (replies that are judged, 50) in place of tokenizer.",
    )

    @model_validator(mode="after")
    def _someone_does_it(self) -> TaskConfig:
        if bool(self.models) == (self.endpoint is not None):
            raise ValueError("give models to measure, or an endpoint to observe; one of the two")
        if self.endpoint is not None:
            for name in (*LOADING, "beyond_window"):
                if getattr(self, name) not in (None, False):
                    raise ValueError(
                        f"{name} has no effect with endpoint, whose server has loaded the model; leave it out"
                    )
        return self

    def given(self) -> TaskInput:
        """Who does the task."""
        return TaskInput(
            models=tuple(self.models),
            loading=self.loading,
            endpoint=None if self.endpoint is None else self.endpoint.endpoint(max(self.max_new_tokens, 1)),
            tokenizer=None if self.endpoint is None else self.endpoint.tokenizer,
            judge=None if self.judge is None else Judging(self.judge.endpoint(16), self.judge.sample, self.seed),
        )

    def options(self) -> TaskOptions:
        """What the task is made of."""
        only: list[str] | None = getattr(self, "only", None)
        choices = {name: getattr(self, name) for name in (*self.chosen, "trials", "seed")}
        return TaskOptions(
            task=self.kind,
            choices={**choices, "with_baselines": self.baselines},
            form=Form(self.layout, self.markers, self.template, self.system, self.instruction),
            source=getattr(self, "prompts" if self.kind == "multi_doc" else "items"),
            only=None if only is None else tuple(only),
            limit=getattr(self, "limit", None),
            max_new_tokens=self.max_new_tokens,
            beyond_window=self.beyond_window,
        )


class _Sweep(_Needles):
    n_documents: Positive = Field(10, description="Documents of a prompt: the needle and its distractors.")
    positions: Annotated[list[Natural], Field(min_length=1)] | None = Field(
        None, description="Places of the needle, from 0. null: all."
    )
    other_topics: bool = Field(
        False, description="Where an item has too few distractors, take other items', which are off its topic."
    )
    markers: Markers = Field("xml", description="What is written around documents.")


class NeedleSweepConfig(TaskConfig, _Sweep):
    """A needle at every position among distractors: is the answer worse where the model looks less?"""

    chosen = ("n_documents", "positions", "other_topics")

    kind: Literal["needle_sweep"] = Field(description="What is run.")


class _Haystack(_Needles):
    lengths: list[Positive] = Field(
        min_length=1, examples=[[1000, 2000, 4000]], description="Tokens of whole prompts, each hit exactly."
    )
    strict_filler: bool = Field(
        True,
        description="Refuse filler that holds what has the form of an answer: a number, code, date, duration or time. "
        "false: note it. An answer itself is always refused; other dates and durations, and many of the task's own "
        "words, are noted.",
    )
    markers: Markers = Field("none", description="What is written around the pieces of text.")


class _Matrix(_Haystack):
    depths: list[Part] = Field(
        min_length=1,
        examples=[[0.0, 0.25, 0.5, 0.75, 1.0]],
        description="Where the needle stands: 0 before all of the filler, 1 behind it.",
    )
    mode: Mode = Field(
        "single",
        description="One needle; several of which one is asked for (multi_key) or all (multi_value); or two that "
        "contradict each other.",
    )
    n_needles: Annotated[int, Field(ge=2)] = Field(3, description="Needles of multi_key and multi_value.")
    filler: Filler = Field(
        "prose",
        description="prose (built in, without end), same_domain, repeated, shuffled; file:PATH, repeated:PATH or "
        "shuffled:PATH.",
    )


class NiahConfig(TaskConfig, _Matrix):
    """A needle in a haystack: every length by every depth."""

    chosen = ("lengths", "depths", "mode", "n_needles", "filler", "strict_filler")

    kind: Literal["niah"] = Field(description="What is run.")


class _Control(_Haystack):
    fillers: list[Filler] = Field(
        ["prose"],
        min_length=1,
        description="Kinds of filler: prose (built in, without end), same_domain, repeated, shuffled; file:PATH, "
        "repeated:PATH or shuffled:PATH. repeated, prose and same_domain together tell length, content and "
        "interference apart.",
    )
    placements: list[Placement] = Field(
        ["after"],
        min_length=1,
        description="Where the filler stands: after the evidence, before it, or split around it. No one of them keeps "
        "both the evidence's place and its distance from the question.",
    )


class FillerControlConfig(TaskConfig, _Control):
    """The same evidence and question in prompts that grow by text without any use."""

    chosen = ("lengths", "fillers", "placements", "strict_filler")

    kind: Literal["filler_control"] = Field(description="What is run.")


class _Questions(_Models):
    prompts: ConfigPath = Field(
        examples=["questions.jsonl"],
        description="Questions with their documents, the ones with the evidence marked: Lost in the Middle, HotpotQA, "
        "SQuAD, or JSON lines with gold.",
    )
    n_documents: Positive = Field(10, description="Documents of a prompt, those with the evidence among them.")
    positions: Annotated[list[Natural], Field(min_length=1)] | None = Field(
        None, description="Places of the evidence, from 0. null: all that every question has."
    )
    limit: Positive | None = Field(None, description="Take so many questions only. null: all.")
    shuffle: bool = Field(True, description="Shuffle the other documents; false: keep the file's order.")
    markers: Markers = Field("numbered", description="What is written around documents.")


class MultiDocConfig(TaskConfig, _Questions):
    """Questions from a file, the document with the answer at chosen places among the others."""

    chosen = ("n_documents", "positions", "shuffle")

    kind: Literal["multi_doc"] = Field(description="What is run.")
