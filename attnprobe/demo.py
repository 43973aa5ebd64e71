"""The demonstration: ten documents and a question, every rotation, and the curve over positions.

The prompt has nothing but the chat template before the documents, so that the first document's tokens serve as
secondary attention sinks: on SmolLM2 head/middle is 3.75. With one sentence of system text ("Answer the question from
the documents, in one short sentence.") it was 1.63. The output says so in words.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from attnprobe.measure_folder import FolderResult, measure_folder
from attnprobe.measuring import measure
from attnprobe.prompt import Document, Prompt
from attnprobe.report.curve_figures import rotations_figure
from attnprobe.report.figures import draw
from attnprobe.report.heatmap import write_heatmap
from attnprobe.report.report import write_report
from attnprobe.report.style import save_figure
from attnprobe.run import Run
from attnprobe.run_folder import RUNS, finished_runs
from attnprobe.summary import Group
from attnprobe.summary_text import budget_lines, curve_lines, ratio_line, residual_line
from attnprobe.terminal import fit, percent, say, work_bar, wrapped

if TYPE_CHECKING:
    from attnprobe.models import LanguageModel

GOLD = "schedule-2026"
QUESTION = "According to the 2026 schedule, for how many days must operational telemetry be kept?"
ANSWER = "Operational telemetry must be kept for exactly 47 days."
PICTURE, LAYERS, HEATMAP, REPORT = "curve.png", "layers.png", "heatmap.html", "report.html"

_MAX_NEW_TOKENS = 24

DOCUMENTS = (
    Document(
        "Under the records schedule that Halden Freight adopted for 2026, operational telemetry must be kept for "
        "exactly 47 days; a nightly job then erases it. Files about customers are on a schedule of their own.",
        id=GOLD,
    ),
    Document(
        "The records schedule of 2024 is no longer in force. It let every depot of Halden Freight erase its "
        "vehicle readings after one month, and the legal team found that too short.",
        id="schedule-2024",
    ),
    Document(
        "Readings that arrive twice are merged once a week. The merge compares the vehicle number with the time "
        "stamp, and leaves a line in the log for each reading that it drops.",
        id="merging",
    ),
    Document(
        "Names, addresses and invoices of customers are held in an encrypted store for seven years. Only the "
        "finance team of Halden Freight can read them, and each access is recorded.",
        id="customer-files",
    ),
    Document(
        "How long the audit trail is held is decided by the holding company, not by Halden Freight. Its auditors "
        "ask for the trail each spring and return it with their remarks.",
        id="audit-trail",
    ),
    Document(
        "Test systems are wiped after 14 days unless an engineer asks for more time. Whoever asks has to name a "
        "reason, and the request lapses at the end of the quarter.",
        id="test-systems",
    ),
    Document(
        "In 2023 Halden Freight gave up the servers in its own cellar and rented object storage. The move took "
        "five months, and two of the old machines still serve as a reserve.",
        id="storage-move",
    ),
    Document(
        "A vehicle may send at most 50 readings a second. Beyond that the gateway answers with an error, the "
        "vehicle waits, and the readings in between are lost for good.",
        id="rate-limit",
    ),
    Document(
        "Copies of the emergency handbook are replaced every 90 days. The old copies are shredded in the presence "
        "of two members of staff, who both sign the form.",
        id="handbook",
    ),
    Document(
        "Questions about records go to the data office on the third floor. It answers within two working days, "
        "and keeps a list of the questions that come up most often.",
        id="data-office",
    ),
)


@dataclass(frozen=True, eq=False)
class DemoResult:
    """What the demonstration measured.

    Parameters
    ----------
    folder
        Runs and curves of the rotations.
    own_answer
        What the model writes by itself in the first rotation.
    gold_shares
        float64 [position]: share of the document with the answer when it stands there.
    pictures
        Paths of the mean curve and of shares by layer, both PNG.
    pages
        Paths of two HTML pages: the text of the first rotation shaded by attention, and a report of all rotations.
    """

    folder: FolderResult
    own_answer: str
    gold_shares: np.ndarray
    pictures: tuple[Path, Path]
    pages: tuple[Path, Path]

    @property
    def mean(self) -> Group:
        """Mean over the rotations."""
        return self.folder.means[0]

    def to_dict(self) -> dict[str, Any]:
        """Everything in JSON's terms."""
        return {
            "question": QUESTION,
            "own_answer": self.own_answer,
            "forced_answer": ANSWER,
            "mean": self.mean.to_dict(),
            "gold_document": GOLD,
            "gold_shares": self.gold_shares.tolist(),
            "rotations": [result.to_dict() for result in self.folder.results],
            "out": str(self.folder.out),
            "pictures": [str(path) for path in self.pictures],
            "pages": [str(path) for path in self.pages],
            "seconds": self.folder.seconds,
        }


def rotations(documents: Sequence[Document] = DOCUMENTS) -> list[Prompt]:
    """All cyclic rotations of the documents, each with the question; every document stands once at every position."""
    n_documents = len(documents)
    return [
        Prompt([*documents[shift:], *documents[:shift]], QUESTION, answer=ANSWER, id=f"rotation-{shift}")
        for shift in range(n_documents)
    ]


def demo(lm: LanguageModel, out: Path, force: bool = False, quiet: bool = True) -> DemoResult:
    """Measure all rotations into a folder, draw them, and write pages to explore.

    The true answer is forced in every rotation, so that the same rows are measured in all of them; what the model
    writes by itself is shown for the first one.

    Raises
    ------
    InputError, CaptureError
        As ``measure_folder``.
    """
    prompts = rotations()
    with work_bar("answering", _MAX_NEW_TOKENS, quiet) as advance:
        own = measure(
            lm,
            prompts[0],
            max_new_tokens=_MAX_NEW_TOKENS,
            extras=("top", "columns", "keys"),
            progress=lambda stage, done, total: advance(done if stage == "decode" else 0, stage),
        )
    folder = measure_folder(lm, prompts, out, answers="file", force=force, quiet=quiet)
    curves = [result.curve for result in folder.results if result.curve is not None]
    shares = np.stack([curve.values for curve in curves])
    places = [curve.documents.index(GOLD) for curve in curves]
    gold = np.zeros(len(DOCUMENTS))
    gold[places] = shares[np.arange(len(places)), places]
    pictures, pages = (out / PICTURE, out / LAYERS), (out / HEATMAP, out / REPORT)
    mean = folder.means[0].curve
    assert mean is not None
    figure = rotations_figure(
        curves,
        places,
        title=f"{lm.source.name}: attention by position, {len(DOCUMENTS)} documents",
        note=f"One question, {len(prompts)} cyclic rotations, the same forced answer of {folder.results[0].n_answer} "
        f"tokens; mean over {len(mean.layers)} layers and {len(mean.heads)} heads. "
        "Some tokens of the first document act as attention sinks. One question is an example, no study.",
    )
    save_figure(figure, pictures[0])
    draw("layers", [Run.load(out / RUNS / name) for name in finished_runs(out)], pictures[1])
    write_heatmap(own, pages[0])
    write_report([out], pages[1])
    say(f"pictures: {pictures[0]}, {pictures[1]}", quiet)
    say(f"pages for a browser: {pages[0]} (the first rotation, the model's own answer), {pages[1]}", quiet)
    return DemoResult(folder, own.answer, gold, pictures, pages)


def demo_lines(result: DemoResult, model: str, unicode: bool = True) -> list[str]:
    """What ``attnprobe demo`` prints."""
    mean, folder = result.mean, result.folder
    curve = mean.curve
    assert curve is not None
    first = folder.results[0]
    facts = (
        ("model", model),
        ("prompt", f"{len(DOCUMENTS)} documents about data retention and a question, {first.n_prompt} tokens"),
        ("question", QUESTION),
        ("answer", f'"{fit(result.own_answer.strip(), 300).rstrip()}" (the model\'s own, greedy, first rotation)'),
        ("measured", f'"{ANSWER}" (forced in every rotation, so that all have the same {first.n_answer} rows)'),
    )
    return [
        *(line for name, text in facts for line in wrapped(f"{name:10}{text}", indent=" " * 10)),
        "",
        *wrapped(
            f"Share of the documents' attention by position: mean over {len(folder.results)} rotations, "
            f"{len(curve.layers)} layers and {len(curve.heads)} heads. Beside it, the share of the document with the "
            "answer when it stands there."
        ),
        "",
        *curve_lines(curve, unicode=unicode, extra=("with answer", [percent(share) for share in result.gold_shares])),
        "",
        *wrapped(ratio_line(curve)),
        *budget_lines(mean.budget),
        residual_line(mean.residual),
        "",
        *wrapped(
            f"{HEATMAP} shows the first rotation with the model's own answer; curve and report have the forced one."
        ),
        "",
        *wrapped(
            "Every document stood once at every position, so what the documents say averages out; what remains is "
            "position, with the documents before it. Much of the first position is not reading: a few of its tokens "
            "act as attention sinks, as the prompt's very first token does. With a sentence of text before the "
            "documents much of that excess goes. One question is an example, no study."
        ),
    ]
