"""Review: a person accepts or rejects corrections on a local page; every decision is on disk before it is shown."""

from pencil.decisions import REVIEWS, Decision, pinned_labels, read_reviews
from pencil.review.merge import merge_reviews

__all__ = ["REVIEWS", "Decision", "merge_reviews", "pinned_labels", "read_reviews"]
