"""``python -m pencil`` is the command line."""

import os
import sys

from pencil.cli import main


def run_rank() -> None:
    """Run the command line as one of several processes, and end without the clean-up of the interpreter.

    Everything is written by then. Threads of the process group may still run, and abort a process that shuts down
    around them: a run that was saved would end with the exit code of a crash.
    """
    code: object = 0
    try:
        main()
    except SystemExit as ended:
        code = ended.code
    if isinstance(code, str):
        sys.stderr.write(f"{code}\n")
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code if isinstance(code, int) else 0 if code is None else 1)


if "PENCIL_LAUNCHER_PID" in os.environ:  # set by `pencil train --processes`, see pencil.training.distributed
    run_rank()
else:
    main()
