"""One process writes to a run directory, and the next one can as soon as it is gone, however it went."""

import errno
import json
import os
import platform
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pencil.errors import RunError
from pencil.runs.lock import RunLock

HOLD = """
import os, sys, time
from pathlib import Path
from pencil.runs.lock import RunLock

with RunLock(Path(sys.argv[1])):
    print(os.getpid(), flush=True)
    sys.stdin.read()
"""
# The lock's holder has a child, as a trainer has data workers.
FORK = HOLD.replace(
    "    print(os",
    "    reader, writer = os.pipe()\n"
    "    child = os.fork()\n"
    "    if not child:\n"
    "        os.write(writer, b'.')\n"
    "        time.sleep(20)\n"
    "    os.read(reader, 1)\n"  # the child runs
    "    print(child, 'of', os",
)
CONTEND = """
import os, random, sys, time
from pathlib import Path
from pencil.errors import RunError
from pencil.runs.lock import RunLock

folder, taken = Path(sys.argv[1]), 0
while taken < 150:
    try:
        with RunLock(folder):
            os.close(os.open(folder / "inside", os.O_CREAT | os.O_EXCL))  # fails where another is inside
            (folder / "inside").unlink()
            taken += 1
    except RunError:
        pass
"""


@pytest.fixture
def start(tmp_path):
    """Start a script and wait for its first line; whatever still runs at the end is killed."""
    started = []

    def run(script):
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        started.append(subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], **pipes))
        return started[-1], started[-1].stdout.readline().split()

    yield run
    for process in started:
        process.kill()
        process.communicate()


def test_the_file_says_who_and_goes_away(tmp_path):
    with RunLock(tmp_path / "run"):
        who = json.loads((tmp_path / "run" / ".lock").read_text())
        assert (who["pid"], who["host"]) == (os.getpid(), platform.node())
        assert (
            abs(time.time() - time.mktime(time.strptime(who["started"], "%Y-%m-%dT%H:%M:%S+00:00")))
            < 10 + time.timezone
        )
    assert list((tmp_path / "run").iterdir()) == []
    with RunLock(tmp_path / "run"):
        pass


def test_it_is_given_back_after_an_error(tmp_path):
    with pytest.raises(KeyError), RunLock(tmp_path):
        raise KeyError
    with RunLock(tmp_path):
        pass


def test_a_second_process_is_refused(tmp_path, start):
    process, (pid,) = start(HOLD)
    expected = rf"in use by process {pid} on {platform.node()} since 2.*only one process may .*choose another --out"
    for _ in range(2):  # being refused does not free it
        with pytest.raises(RunError, match=expected), RunLock(tmp_path):
            pytest.fail("two hold it")
    process.communicate("")
    with RunLock(tmp_path):
        pass


def test_a_second_one_in_the_same_process_is_refused(tmp_path, start):
    with RunLock(tmp_path) as lock:
        with pytest.raises(RunError, match=f"process {os.getpid()} "), RunLock(tmp_path):
            pytest.fail("two hold it")
        with pytest.raises(RunError, match="in use"), lock:
            pytest.fail("it was entered twice")
        (tmp_path / ".lock").read_text()  # opening and closing the file must not free it either
        process, line = start(HOLD.replace("import os, sys, time", "import os, sys, time; sys.stderr = sys.stdout"))
        assert line == [] or "InUseError" in process.stdout.read()
        assert process.wait() == 1


def test_a_killed_holder_is_taken_over(tmp_path, start):
    process, _ = start(HOLD)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert (tmp_path / ".lock").exists()
    with RunLock(tmp_path):
        assert json.loads((tmp_path / ".lock").read_text())["pid"] == os.getpid()
    assert not (tmp_path / ".lock").exists()


def test_a_child_does_not_hold_it_for_a_killed_parent(tmp_path, start):
    process, (child, _, parent) = start(FORK)
    with pytest.raises(RunError, match=f"process {parent} "), RunLock(tmp_path):
        pytest.fail("forking gave it away")
    process.send_signal(signal.SIGKILL)
    process.wait()
    try:
        os.kill(int(child), 0)  # it is alive
        with RunLock(tmp_path):
            os.kill(int(child), 0)
    finally:
        os.kill(int(child), signal.SIGKILL)


def test_a_child_that_leaves_the_block_does_not_free_it(tmp_path, start):
    leave = FORK.replace("time.sleep(20)", "sys.exit()").replace(
        "    print(child", "    os.waitpid(child, 0)\n    print(child"
    )
    _, (_, _, parent) = start(leave)
    with pytest.raises(RunError, match=f"process {parent} "), RunLock(tmp_path):
        pytest.fail("the child freed it")


def test_never_two_inside(tmp_path):
    """Four processes take and leave it as fast as they can; the file comes and goes under their hands."""
    command = [sys.executable, "-c", CONTEND, str(tmp_path)]
    processes = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(4)]
    errors = [process.communicate(timeout=100)[1] for process in processes]
    assert errors == [""] * 4
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", ["", " {", "[" * 9000, " [1]", ' {"pid": 1}'])
def test_whatever_is_left_in_the_file(tmp_path, content):
    (tmp_path / ".lock").write_text(content)
    with RunLock(tmp_path):
        assert json.loads((tmp_path / ".lock").read_text())["pid"] == os.getpid()
        (tmp_path / ".lock").write_text(content)
        with pytest.raises(RunError, match=r"in use by process (\?|1) on \? since \?"), RunLock(tmp_path):
            pytest.fail("two hold it")


def test_a_link_is_not_followed(tmp_path):
    (tmp_path / "precious").write_text("mine")
    (tmp_path / ".lock").symlink_to(tmp_path / "precious")
    with pytest.raises(RunError, match="cannot lock"), RunLock(tmp_path):
        pass
    assert (tmp_path / "precious").read_text() == "mine"


def test_a_place_that_cannot_be_written_to(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match=r"cannot lock .*; expected a writable directory"), RunLock(tmp_path / "file"):
        pass


def test_a_directory_that_another_process_removes_meanwhile_is_made_again(tmp_path, monkeypatch):
    mkdir, removed = Path.mkdir, []

    def make_and_remove(self, *words, **options):
        mkdir(self, *words, **options)
        if len(removed) < 3:
            removed.append(self.rmdir())

    monkeypatch.setattr(Path, "mkdir", make_and_remove)
    with RunLock(tmp_path / "run"):
        assert (tmp_path / "run" / ".lock").is_file() and len(removed) == 3


def test_a_lock_file_that_somebody_else_made_is_left(tmp_path):
    with RunLock(tmp_path):
        (tmp_path / ".lock").unlink()
        (tmp_path / ".lock").write_text("theirs")
    assert (tmp_path / ".lock").read_text() == "theirs"


def test_a_file_system_without_locks(tmp_path, monkeypatch):
    def refuse(descriptor, how):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", refuse)
    with pytest.warns(UserWarning, match="cannot be locked: No locks available"), RunLock(tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []
