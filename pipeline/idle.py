"""Warms one shape while there is nothing else to do: compile what a request of it needs, then check.

What was compiled before an interruption stays and is used; what was being compiled is begun again the next
time. The compiler's state is compared before and after: one that does not come to rest would spoil every
later job, so the process has to end then.
"""

from collections.abc import Callable

from pipeline.compilation import compiler_state, new_shape, no_silent_limit
from pipeline.errors import CompilerUnsound, PipelineError
from pipeline.interruption import Interrupted, Interruption


def warm_shape(run_pass: Callable[[], object], interruption: Interruption) -> str | None:
    """Runs a pass that may compile, and the same again, which must find everything compiled.

    Args:
        run_pass: Runs a short pass of the shape, and can be left by the interruption.
        interruption: Tells whether it was.

    Returns:
        Why the shape cannot be warmed; None: it is warm.

    Raises:
        Interrupted: It was left.
        CompilerUnsound: The compiler is not at rest after that.
    """
    before = compiler_state()
    try:
        problem = _warm(run_pass)
    except Interrupted:
        _check_rest(before)
        raise
    except Exception as error:
        _check_rest(before)
        if interruption.struck:  # whatever it became on its way out
            raise Interrupted from error
        problem = _words(error)
    if interruption.struck:
        raise Interrupted
    return problem


def _warm(run_pass: Callable[[], object]) -> str | None:
    with no_silent_limit():
        run_pass()
    with new_shape("eager") as fallbacks:
        run_pass()
    if fallbacks.count:
        return f"{fallbacks.count} calls of a second pass still found nothing compiled"
    return None


def _check_rest(before: tuple[object, ...]) -> None:
    after = compiler_state()
    if after != before:
        raise CompilerUnsound(f"the compiler is not at rest after it was left: {after}, not {before}")


def _words(error: Exception) -> str:
    words = error.message if isinstance(error, PipelineError) else f"{type(error).__name__}: {error}"
    return " ".join(words.split())[:300]
