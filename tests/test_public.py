import os
import subprocess
import sys

import pencil


def test_every_public_name_is_there():
    for name in pencil.__all__:
        assert getattr(pencil, name) is not None
    assert set(pencil.__all__) <= set(dir(pencil))


def test_import_does_not_bring_torch():
    code = "import pencil, pencil.cli, sys; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_help_is_fast():
    """Under 0.5 s of CPU time, which a busy machine does not change; the best of five."""
    seconds = []
    for _ in range(5):
        start = os.times()
        subprocess.run([sys.executable, "-m", "pencil", "--help"], check=True, capture_output=True)
        end = os.times()
        seconds.append(end.children_user - start.children_user + end.children_system - start.children_system)
    assert min(seconds) < 0.5
