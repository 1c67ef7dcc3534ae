"""The words for labels and scores, which differ between single-label and multi-label data."""

from typing import NamedTuple


class Wording(NamedTuple):
    """How texts about a run speak of its labels; the fields from ``gallery`` on are texts of the report.

    ``score`` is the name in metrics and in JSON. ``agreement`` is the score on held-out labels, which may be wrong.
    """

    form: str
    score: str
    score_name: str
    score_title: str
    agreement: str
    labels: str
    labels_explained: str
    change: str
    gallery: str
    others: str
    others_explained: str
    class_table: str
    left: str
    came: str
    left_of: str


SINGLE_LABEL = Wording(
    form="single-label",
    score="accuracy",
    score_name="accuracy",
    score_title="Accuracy",
    agreement="agreement with",
    labels="labels",
    labels_explained="labels",
    change="another class is the most probable",
    gallery="A few of each pair of classes",
    others="Suspects that did not change",
    others_explained="These labels have high issue scores but kept their class: a person should look at them. The most "
    "suspicious come first.",
    class_table="Labels of each class, and labels that left it or joined it",
    left="left it",
    came="came to it",
    left_of="left it, of given",
)
MULTI_LABEL = Wording(
    form="multi-label",
    score="map",
    score_name="mAP",
    score_title="mAP",
    agreement="mAP on",
    labels="known labels",
    labels_explained="known labels (a row and a class each)",
    change="the opposite is more probable",
    gallery="A few of each class that changed",
    others="Suspects that did not change",
    others_explained="These labels (a row and a class each) have high issue scores but did not change: a person should "
    "look at them. The most suspicious come first.",
    class_table="Rows that have the class, and labels that were added or removed",
    left="removed",
    came="added",
    left_of="changed, of known",
)


def wording(multilabel: bool) -> Wording:
    """Return the words for one form of labels."""
    return MULTI_LABEL if multilabel else SINGLE_LABEL
