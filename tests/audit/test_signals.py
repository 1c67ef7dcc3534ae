"""The pages of review and audit end by any signal as by Ctrl-C: the lock goes away, and an audit prints its results."""

import os
import signal
import subprocess
import sys
import urllib.request

import pytest
import typer
from audit_runs import answer_all, make_run

from pencil.cli.serving import ended_by_signals
from pencil.runs.directory import RunReader

COMMAND = "import sys; sys.argv[0] = 'pencil'; from pencil.cli import main; main()"
CASES = [
    ("review", signal.SIGTERM, 143),
    pytest.param("review", signal.SIGHUP, 129, marks=pytest.mark.slow),
    pytest.param("review", signal.SIGINT, 130, marks=pytest.mark.slow),
    ("audit", signal.SIGHUP, 0),
    pytest.param("audit", signal.SIGTERM, 0, marks=pytest.mark.slow),
    pytest.param("audit", signal.SIGINT, 0, marks=pytest.mark.slow),
]


@pytest.fixture(autouse=True)
def _signals_as_in_a_terminal():
    """Whoever runs the tests may ignore SIGHUP, as nohup does, and a child inherits that."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize(("command", "number", "code"), CASES)
def test_the_lock_goes_away_whatever_ends_a_page(command, number, code, tmp_path):
    run = tmp_path / "run"
    answer_all(run, make_run(run))
    words = [sys.executable, "-c", COMMAND, command, str(run), "--no-browser"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(words, **pipes, env={**os.environ, "OMP_NUM_THREADS": "1"})
    try:
        address = process.stdout.readline().strip()
        assert address.startswith("http://127.0.0.1:")
        urllib.request.build_opener(urllib.request.HTTPCookieProcessor()).open(address).read()  # it is served
        assert (run / ".lock").exists()
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
        process.communicate()
    assert (process.returncode, (run / ".lock").exists()) == (code, False), err
    assert "Traceback" not in err
    if command == "audit":
        assert out.startswith("audited: ") and RunReader(run).summary.audit.rows == 100
    elif number != signal.SIGINT:
        assert "stopped" in err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_leaves_every_block_and_handlers_are_as_before(number):
    left, before = [], [signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGHUP)]
    with pytest.raises(typer.Exit) as ended, ended_by_signals():
        try:
            signal.raise_signal(number)
        finally:
            left.append(True)
    assert left and ended.value.exit_code == 128 + number
    assert [signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGHUP)] == before


def test_an_ignored_signal_stays_ignored():
    """As SIGHUP under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with ended_by_signals():
            signal.raise_signal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)
