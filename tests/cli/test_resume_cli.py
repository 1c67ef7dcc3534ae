"""Stopping, resuming and checking runs from the command line."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from commands import pencil

QUICK = ["train", "digits-symmetric-50", "--epochs", "6", "--set", "training.checkpoint_epochs=1"]


def weights(path):
    return (path / "model.safetensors").read_bytes(), (path / "labels.parquet").read_bytes()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """One run from beginning to end, and one that was stopped."""
    folder = tmp_path_factory.mktemp("runs")
    pencil(*QUICK, "--out", "whole", cwd=folder)
    process = subprocess.Popen(
        [sys.executable, "-m", "pencil", *QUICK, "--out", "stopped"],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stderr=subprocess.PIPE,
        text=True,
    )
    while not (folder / "stopped" / "metrics.jsonl").exists():
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 75
    assert "stopped by SIGTERM at epoch" in said and "Traceback" not in said
    assert said.rstrip().endswith("pencil resume stopped") and "RUN" not in said
    return folder


def test_check_says_whether_a_run_is_whole(whole):
    assert "whole   labels.parquet" in pencil("check", "whole", cwd=whole).stdout
    found = json.loads(pencil("check", "stopped", "--json", cwd=whole).stdout)
    assert found["ok"] and not found["finished"] and "step-" in found["findings"][0]["path"]


def test_the_same_command_goes_on_to_the_same_files(whole):
    refused = pencil("train", "digits-symmetric-50", "--out", "stopped", "--resume", cwd=whole, code=2)
    assert "training.epochs is None; expected 6" in refused.stderr
    finished = pencil(*QUICK, "--out", "stopped", "--resume", cwd=whole)
    assert "epoch 1/6" not in finished.stderr and "epoch 6/6" in finished.stderr
    assert weights(whole / "stopped") == weights(whole / "whole")


def test_a_run_that_is_finished_or_damaged_is_told_apart(whole):
    pencil("resume", "whole", cwd=whole)
    content = bytearray((whole / "whole" / "labels.parquet").read_bytes())
    content[100] ^= 1
    (whole / "whole" / "labels.parquet").write_bytes(content)
    checked = pencil("check", "whole", cwd=whole, code=2)
    assert "BROKEN  labels.parquet" in checked.stdout and "1 of 7" in checked.stderr


def test_two_processes_write_one_run_and_say_things_once(tmp_path):
    command = ["train", "digits-symmetric-50", "--epochs", "3", "--processes", "2", "--out", "both"]
    run = subprocess.run(
        [sys.executable, "-m", "pencil", *command],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert run.stderr.count("epoch 3/3") == 1 and run.stdout.count("report   ") == 1
    assert json.loads((tmp_path / "both" / "summary.json").read_text())["epochs"] == 3
