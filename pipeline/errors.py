"""What can go wrong in the pipeline, in words an operator can act on.

Each error carries a stable ``code`` (kept on the job and used by the retry rule) and whether another try can
help. This module is imported by processes that must not load the GPU stack, so it needs the standard library
only.
"""

from typing import ClassVar


class PipelineError(Exception):
    """The root of every failure the pipeline reports on purpose.

    Attributes:
        code: Stable word for the kind of failure.
        retryable: Whether another attempt of the same job can succeed.
        message: One line for a person, without a traceback.
    """

    code: ClassVar[str] = "pipeline_failed"
    retryable: ClassVar[bool] = False

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class OutOfMemory(PipelineError):
    """The device had too little memory; the memory of the attempt is free again."""

    code = "out_of_memory"
    retryable = True


class NotFinite(PipelineError):
    """The result holds NaN or infinity, or is one flat value."""

    code = "output_not_finite"
    retryable = True


class WeightsMissing(PipelineError):
    """The model's files are not where they were looked for."""

    code = "weights_missing"


class LoadFailed(PipelineError):
    """The model's files are there and cannot be used."""

    code = "load_failed"


class LoraFailed(PipelineError):
    """A LoRA's file is not the one meant, or cannot be added to this model."""

    code = "lora_failed"


class WarmupIncomplete(PipelineError):
    """The warm-up did not reach every path that requests will run."""

    code = "warmup_incomplete"


class FollowerLost(PipelineError):
    """Another rank of the worker died or failed alone; only new processes render again."""

    code = "follower_lost"
    retryable = True


class CompilerUnsound(PipelineError):
    """The compiler did not come to rest when it was left in the middle; only a new process renders again."""

    code = "compiler_unsound"
    retryable = True


class MountFailed(PipelineError):
    """Cache-DiT could not be mounted; the mount was undone."""

    code = "cache_mount_failed"
    retryable = True


class StepsMismatch(PipelineError):
    """A transformer executed another number of steps than the plan says."""

    code = "steps_mismatch"
    retryable = True


class Unsupported(PipelineError):
    """The plan or policy asks for something that this pipeline cannot do."""

    code = "unsupported"


class InputGone(PipelineError):
    """A picture that the job draws from is not kept any more."""

    code = "input_gone"


class InputDamaged(PipelineError):
    """A picture that the job draws from is not the one that was planned."""

    code = "input_damaged"


class PlanNotSupported(PipelineError):
    """The plan was made for another model or revision, or by a version that knows more than this one."""

    code = "plan_not_supported"
    retryable = True  # sent again, the request gets a plan of the models that are served now


class Stopped(PipelineError):
    """The job was told to stop.

    Attributes:
        step: Steps done before it stopped, over all pictures of the job.
    """

    code = "stopped"

    def __init__(self, step: int) -> None:
        super().__init__(f"stopped after step {step}")
        self.step = step
