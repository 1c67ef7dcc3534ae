"""Signals to one rank of several, and the death of one: the others do not hang, and nothing is lost."""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from datetime import timedelta

import pytest
import torch
from ranks import free_port
from test_faults import SELDOM, Net, blobs

import pencil
from pencil import PencilError, Stopped
from pencil.runs.checkpoints import Checkpoints
from pencil.training import distributed

FORK = multiprocessing.get_context("fork")
WITHIN = 30
LAYOUTS = ("replicated", "sharded")


class Patient(Net):
    """Slow where it is told to be: in training or in evaluation."""

    def __init__(self, slow="training"):
        super().__init__()
        self.slow = slow

    def forward(self, x):
        if self.slow == ("training" if self.training else "evaluation"):
            time.sleep(0.05)
        return super().forward(x)


def work(rank, size, port, path, slow, layout, delay):
    names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ |= {name: str(value) for name, value in names.items()}
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    if rank == delay:
        time.sleep(1.0)
    settings = {**SELDOM, "training.label_layout": layout, "training.checkpoint_epochs": 1}
    try:
        pencil.fit(
            Patient(slow),
            blobs(),
            out=path,
            test=blobs(1200, 1),
            epochs=5,
            settings=settings,
            resume=True,
            progress=False,
        )
    except Stopped:
        os._exit(75)
    except PencilError as error:
        (path.parent / f"said-{rank}").write_text(str(error))
        os._exit(2)
    os._exit(0)


def start(path, *, size=2, slow="never", layout="replicated", delay=-1):
    port = free_port()
    ranks = [FORK.Process(target=work, args=(rank, size, port, path, slow, layout, delay)) for rank in range(size)]
    for rank in ranks:
        rank.start()
    return ranks


def wait_for(condition):
    end = time.monotonic() + WITHIN
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def exit_codes(ranks):
    end = time.monotonic() + WITHIN
    for rank in ranks:
        rank.join(timeout=max(0.0, end - time.monotonic()))
    codes = [rank.exitcode for rank in ranks]
    for rank in ranks:
        rank.kill()
    return codes


@pytest.mark.parametrize(
    "when, layout",
    [("training", "replicated"), ("training", "sharded"), ("evaluation", "sharded"), ("start-up", "replicated")],
)
def test_a_signal_to_one_rank_stops_all_with_one_checkpoint(when, layout, tmp_path, undisturbed):
    path = tmp_path / "run"
    ranks = start(path, slow=when, layout=layout, delay=0 if when == "start-up" else -1)
    if when == "start-up":
        time.sleep(0.5)
    else:
        wait_for((path / "metrics.jsonl").exists)
        time.sleep(0.1)
    os.kill(ranks[1].pid, signal.SIGTERM)
    codes = exit_codes(ranks)
    if when == "start-up" and codes[1] == -signal.SIGTERM:  # it had not begun to listen: nothing is lost, none hangs
        assert codes[0] == 2
    else:
        assert codes == [75, 75]
        assert len(Checkpoints(path / "checkpoints").verify()) >= 1
    assert exit_codes(start(path, layout=layout)) == [0, 0]
    assert labels(path).equals(undisturbed[layout])


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The labels of runs that nobody stops, for each layout."""
    path = tmp_path_factory.mktemp("undisturbed")
    for layout in LAYOUTS:
        assert exit_codes(start(path / layout, layout=layout)) == [0, 0]
    return {layout: labels(path / layout) for layout in LAYOUTS}


def labels(path):
    return pencil.open_run(path, model=Net()).labels


def test_the_others_say_so_and_end_when_a_rank_dies(tmp_path):
    path = tmp_path / "run"
    ranks = start(path, size=3, slow="training")
    wait_for((path / "metrics.jsonl").exists)
    ranks[1].kill()
    assert exit_codes(ranks) == [2, -signal.SIGKILL, 2]
    said = (tmp_path / "said-0").read_text()
    assert said.startswith("rank 0 lost contact with another process") and "--resume continues" in said
    assert exit_codes(start(path)) == [0, 0]  # with fewer of them


def test_checkpoints_can_be_read_by_another_number_of_ranks(tmp_path):
    path = tmp_path / "run"
    ranks = start(path, size=3, slow="training", layout="sharded")
    wait_for((path / "metrics.jsonl").exists)
    os.kill(ranks[2].pid, signal.SIGTERM)
    assert exit_codes(ranks) == [75, 75, 75]
    assert {"rank-0", "rank-1", "rank-2"} < set(Checkpoints(path / "checkpoints").newest().parts())
    assert exit_codes(start(path, size=2, layout="sharded")) == [0, 0]


def test_ranks_agree_on_a_start_whatever_dead_ones_have_left():
    """The store of torchrun outlives its workers: what those of an earlier start wrote must not be met again."""
    store, tokens = torch.distributed.HashStore(), []
    for _ in range(3):
        store.set("pencil/asks/1", "a process that died before it was answered")
        asking = threading.Thread(target=lambda: tokens.append(distributed._ask_for_token(store, 1)))
        timer = threading.Timer(0.05, asking.start)
        timer.start()
        tokens.append(distributed._welcome(store, 2))
        timer.join()
        asking.join()
        assert tokens[-1] == tokens[-2]
    assert len(set(tokens)) == 3


def test_a_rank_that_never_joins_is_named(monkeypatch):
    monkeypatch.setattr(distributed, "TIMEOUT", timedelta(seconds=0.4))
    with pytest.raises(TimeoutError, match=r"rank 2 has not joined within 0 s"):
        store = torch.distributed.HashStore()
        threading.Thread(target=distributed._ask_for_token, args=(store, 1)).start()
        distributed._welcome(store, 3)


@pytest.mark.slow
def test_torchrun_restarts_and_goes_on(tmp_path):
    """A worker that dies in the middle: torchrun starts all of them again, and they resume."""
    script = tmp_path / "dies_once.py"
    script.write_text(
        "import os, sys, threading, time, signal\n"
        "from pathlib import Path\n"
        "if os.environ['RANK'] == '1' and os.environ['TORCHELASTIC_RESTART_COUNT'] == '0':\n"
        "    def die():\n"
        f"        while not list(Path({str(tmp_path / 'run/checkpoints')!r}).glob('step-*')): time.sleep(0.01)\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    threading.Thread(target=die, daemon=True).start()\n"
        "from pencil.cli import main\n"
        "main()\n"
    )
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=1"]
    arguments = ["train", "digits-symmetric-50", "--epochs", "6", "--out", str(tmp_path / "run")]
    finished = subprocess.run(
        [*torchrun, str(script), *arguments, "--set", "training.checkpoint_epochs=1"],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=1800,  # it hangs: alone it takes half a minute, beside ten other jobs far longer
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    assert (tmp_path / "run" / "summary.json").exists() and finished.stderr.count("epoch 1/6") == 1
