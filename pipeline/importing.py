"""Imports the GPU stack as fast as it can be: most of a worker's start goes there.

5.3 s of processor time as the libraries import themselves, 4.6 s while the collector sleeps, 4.1 s without
torchao as well (torch 2.13, diffusers 0.42, two cores).
"""

import gc
import sys
from types import ModuleType

# Where it is installed, diffusers and transformers import all of it whether it is used or not, and it writes
# notes into the log.
_TO_QUANTISE = "torchao"


def import_engine(*, quantise: bool) -> ModuleType:
    """Returns `pipeline.engine`, with everything below it imported.

    A million objects come with it and stay: no later collection looks at them, which would take a third of a
    second in the middle of a job.

    Args:
        quantise: Whether this process quantises. It cannot any more after an import without.
    """
    if not quantise:
        sys.modules.setdefault(_TO_QUANTISE, None)  # type: ignore[arg-type]  # Python's way to say: not here
    collects = gc.isenabled()
    gc.disable()
    try:
        from pipeline import engine  # noqa: PLC0415 (what this module is for)
    finally:
        gc.freeze()
        if collects:
            gc.enable()
    return engine
