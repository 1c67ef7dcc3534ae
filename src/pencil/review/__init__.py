"""Review: a person accepts or rejects corrections on a local page; every decision is saved before it is shown."""

from pencil.decisions import REVIEWS, Decision, pinned_labels, read_reviews

__all__ = ["REVIEWS", "Decision", "pinned_labels", "read_reviews"]
