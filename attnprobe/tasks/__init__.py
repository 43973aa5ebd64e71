"""Behaviour beside attention: tasks whose prompts are built, measured, answered and scored, and their analysis."""

from attnprobe.tasks.scoring import Score, score_answer

__all__ = ["Score", "score_answer"]
