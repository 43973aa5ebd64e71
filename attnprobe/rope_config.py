"""The config of a comparison of RoPE scalings, as ``attnprobe run`` reads it from a YAML file. Imports pydantic."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from attnprobe.config_fields import (
    AttnImplementation,
    ConfigModel,
    ConfigPath,
    DeviceMap,
    Dtype,
    ModelConfig,
    Natural,
    Part,
    Positive,
    Revision,
    RopeText,
    TrustRemoteCode,
)
from attnprobe.rope_options import DEPTHS, Margins, RopeOptions

Margin = Annotated[float, Field(gt=0)]


class RopeConfig(ModelConfig):
    """One model under several RoPE scalings, on the same texts."""

    kind: Literal["rope"] = Field(description="What is run.")
    model: ConfigModel = Field(
        examples=["smollm2"],
        description="Alias, hub id, folder or .gguf file. One that begins with ./ or ../ is relative to this file.",
    )
    scalings: list[RopeText] = Field(
        min_length=1,
        examples=[["none", "yarn:factor=2"]],
        description="RoPE scalings. none, the unscaled model, is always measured: the others are compared with it.",
    )
    lengths: list[Positive] = Field(
        min_length=1,
        examples=[[2048, 8192, 16384]],
        description="Tokens of prompt and answer together. One up to the model's window counts as inside it.",
    )
    out: ConfigPath = Field(
        examples=["out/rope"],
        description="Folder for the results. A second run of the same config goes on in it; scalings may be added.",
    )
    texts: Positive = Field(RopeOptions.texts, description="Texts of each length; intervals take five.")
    depths: list[Part] = Field(
        list(DEPTHS), description="Where the needles of a text stand, from 0 (start) to 1 (end), ascending."
    )
    items: ConfigPath | None = Field(
        None,
        description="File of needles, one JSON object a line with id, wordings, question, answer and foil, as tasks "
        "take it. null: the built-in ones.",
    )
    filler: str = Field(
        RopeOptions.filler,
        description="Text around the needles: prose, repeated, shuffled, or a text file as file:PATH, repeated:PATH or "
        "shuffled:PATH (as seen from the current folder).",
    )
    seed: Natural = Field(RopeOptions.seed, description="Draws all that is random.")
    n_heads: Positive = Field(RopeOptions.n_heads, description="Retrieval heads to choose on the unscaled model.")
    margin_logprob: Margin = Field(
        Margins.logprob, description="An answer is kept where a loss of this much log-probability is ruled out, nats."
    )
    margin_advantage: Margin = Field(Margins.advantage, description="The same of the needle's advantage, nats.")
    margin_loss: Margin = Field(Margins.loss, description="The same of a rise of the text's loss, nats a token.")
    dtype: Dtype = None
    device_map: DeviceMap = None
    attn_implementation: AttnImplementation = None
    revision: Revision = None
    trust_remote_code: TrustRemoteCode = False

    def options(self) -> RopeOptions:
        """What is measured, and how it is judged."""
        return RopeOptions(
            lengths=tuple(self.lengths),
            depths=tuple(self.depths),
            texts=self.texts,
            filler=self.filler,
            seed=self.seed,
            n_heads=self.n_heads,
            margins=Margins(self.margin_logprob, self.margin_advantage, self.margin_loss),
        )
