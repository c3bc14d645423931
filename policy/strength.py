"""How much of a picture that is given is drawn anew, and how many steps that takes.

The picture is noised as far as `strength` says and denoised from there: at 1 nothing of it is left and every
step is run, at 0.5 the last half of them, and never less than one.
"""

LEAST = 0.001
"""A strength that any number of steps runs one at; less only means that one, until rounding leaves none."""


def executed_steps(steps: int, strength: float | None) -> int:
    """Returns the steps that are really run; all of them when no picture is given.

    The arithmetic is that of diffusers' pipelines, rounding and all: they run what this says.
    """
    if strength is None:
        return steps
    return steps - int(max(steps - min(steps * strength, steps), 0))
