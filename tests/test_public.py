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


def test_help_imports_nothing_heavy():
    """What makes a command slow to answer is its imports; seconds would depend on the machine."""
    code = """
import sys
sys.argv = ["pencil", "--help"]
from pencil.cli import main
try:
    main()
except SystemExit:
    pass
heavy = {"torch", "pyarrow", "numpy", "pydantic", "matplotlib", "sklearn", "scipy", "PIL"} & sys.modules.keys()
sys.exit(str(heavy) if heavy else 0)
"""
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
