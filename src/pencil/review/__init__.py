"""Review: a person accepts corrections or keeps given labels on a local page; decisions are saved immediately."""

from pencil.decisions import REVIEWS, Decision, pinned_labels, read_reviews

__all__ = ["REVIEWS", "Decision", "pinned_labels", "read_reviews"]
