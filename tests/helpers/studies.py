"""Seeded studies for tests, made from masses without a model."""

from __future__ import annotations

from typing import Any

import numpy as np

from attnprobe.designs import orders
from attnprobe.study import Study
from attnprobe.study_cells import KINDS
from attnprobe.study_data import StudyData
from attnprobe.study_options import StudyOptions


def make_study(
    seed: int = 0, *, n_questions: int = 6, n_documents: int = 4, n_layers: int = 3, n_heads: int = 2, **changes: Any
) -> Study:
    """A study of one model, with distances and without variants; ``changes`` replace arrays, by name."""
    rng = np.random.default_rng(seed)
    found = tuple(orders("cyclic", n_documents, seed=seed) for _ in range(n_questions))
    shape = (n_questions, len(found[0]), n_layers)
    mass = rng.lognormal(0, 0.5, (*shape, n_heads, n_documents)).astype(np.float32)
    mass[..., 0] *= 3
    mass /= 2 * mass.sum(-1, keepdims=True)
    budget = rng.dirichlet(np.ones(len(KINDS)), shape).astype(np.float32)
    edges = np.array([0, 1, 2, 4, 8, 16, 32], dtype=np.float32)
    distance = rng.dirichlet(np.ones(len(edges)), (*shape, n_heads)).astype(np.float32)[..., :-1]
    arrays = {
        "mass.raw": mass,
        "mass.trimmed": changes.get("mass.raw", mass),  # no token is heavier than the others
        "budget": budget,
        "tokens": rng.integers(5, 9, (*shape[:2], n_documents)).astype(np.float32),
        "distance": distance,
        "distance_edges": np.broadcast_to(edges, (*shape[:2], len(edges))),
        **changes,
    }
    data = StudyData(
        model="tiny",
        questions=tuple(f"q{number}" for number in range(n_questions)),
        orders=found,
        arrays={f"asked/{name}": array for name, array in arrays.items()},
        facts={"asked": [[{"gold_position": None} for _ in one] for one in found]},
        layers=tuple(range(n_layers)),
        own_answers={},
        runs={},
        incomplete={},
    )
    return Study({"tiny": data}, StudyOptions(design="cyclic", variants=(), extras=("distance",)))
