"""Section 4.5 on a small case: what the paper claims about the two directions of the KL divergence."""

import json

import numpy as np
import pytest

from pencil.bench import kl_analysis


@pytest.mark.slow
def test_inverse_kl_corrects_labels_and_forward_kl_does_not(tmp_path):
    text = kl_analysis.analyse(tmp_path, seed=1, epochs=16)
    numbers = json.loads((tmp_path / "results.json").read_text())
    inverse, forward = numbers["inverse"], numbers["forward"]
    assert len(set(forward["correct"])) == 1  # a horizontal line
    assert inverse["correct_after"] > inverse["correct_before"] + 0.05
    # a wrong label: the force on the true class is orders of magnitude smaller under forward KL
    assert forward["wrong_label_mean"] < inverse["wrong_label_first_epoch"] / 100
    # inverse KL pushes the given (wrong) class down and the true class up; y_tilde moves against the gradient
    assert np.mean(inverse["wrong_given"]) > 0 > np.mean(inverse["wrong_true"])
    assert "| labels right after, % |" in text
    assert len(list(tmp_path.glob("*.svg"))) == 9
