"""Settings of one process: environment variables ``RENDERQ_...``, read once, frozen, checked together.

A worker's options (``policy.options``) share the prefix and are read by ``policy.resolve``, not here.
"""

import os
from collections.abc import Collection, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, ValidationError, ValidationInfo, field_validator, model_validator
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, SettingsConfigDict
from sqlalchemy import make_url
from sqlalchemy.exc import ArgumentError

from core.errors import InvalidSettings
from policy.options import OPTIONS
from policy.wording import closest, quote

PREFIX = "RENDERQ_"
OTHERS = frozenset({"url", "debug"})
"""Names with the prefix that only the command reads."""
_SHOULD_BE = "Input should be "
_PLAIN = frozenset(
    {
        *("greater_than", "greater_than_equal", "less_than", "less_than_equal", "literal_error"),
        *("float_parsing", "int_parsing", "bool_parsing", "int_from_float", "finite_number"),
    }
)
"""What pydantic calls a problem of a value that cannot be a secret."""
NEAR_MISS = 0.8
DAY_S = 86400.0
"""How alike a name must be to a setting's to count as a slip of it; 1 is the same."""


def default_data_dir() -> Path:
    """Return the folder of the embedded stack, by the XDG rule."""
    base = os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    return Path(base) / "renderq"


def cuda_visible_devices() -> str | None:
    """Return ``CUDA_VISIBLE_DEVICES``, None when it is not set."""
    return os.environ.get("CUDA_VISIBLE_DEVICES")


def s3_allows_http() -> bool:
    """Return whether ``AWS_ALLOW_HTTP`` permits a store without TLS, as on a private network."""
    return os.environ.get("AWS_ALLOW_HTTP", "").lower() in ("1", "true")


class Settings(BaseSettings):
    """One object per process. A URL that is not given points into ``data_dir``."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="ignore", validate_default=True)

    data_dir: Path = Field(default_factory=default_data_dir)
    database_url: str = ""
    """``sqlite:////absolute/file.db`` or ``postgresql://user:password@host/name``."""
    redis_url: str = ""
    """``redis://``, ``rediss://`` or ``redis+socket:///path``."""
    artifacts_url: str = ""
    """``file:///folder``, ``s3://bucket/prefix`` or, for tests, ``memory://``."""
    catalogue_dir: Path | None = None
    """Operator's folder of model files, which may add to the bundled ones or replace them."""
    models_dir: Path | None = None
    """Folder of local weights."""
    compile_cache_dir: Path | None = None
    """Folder of what compilers made, which workers of one machine share; default: in ``data_dir``."""
    compile_cache_gb: float = Field(4.0, gt=0, le=10_000)
    """Most gigabytes of it that are kept there, and the most that one archive may have."""
    public_url: str | None = None
    """How callers reach the API; default: as they called it."""
    lease_s: float = Field(30.0, gt=0, le=DAY_S)
    """How long a worker may be silent before its job is taken back."""
    heartbeat_s: float = Field(5.0, gt=0, le=DAY_S)
    upkeep_interval_s: float = Field(5.0, gt=0, le=DAY_S)
    max_attempts: int = Field(3, ge=1, le=100)
    file_life_s: float = Field(7 * DAY_S, ge=3600.0, le=366 * DAY_S)
    """How long a picture that was sent is kept after it was last sent or last named by a new job."""
    flower_basic_auth: SecretStr | None = None
    """``user:password`` that Flower asks for; without it Flower answers on loopback only."""
    log_format: Literal["auto", "console", "json"] = "auto"
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    @model_validator(mode="before")
    @classmethod
    def _fill_urls(cls, given: dict[str, Any]) -> dict[str, Any]:
        """Derive the URLs that are not given; an empty variable counts as not given."""
        given = {name: value for name, value in given.items() if value != ""}
        folder = Path(given.get("data_dir") or default_data_dir()).expanduser().absolute()
        return _urls(folder) | given | {"data_dir": folder}

    @property
    def compile_cache_folder(self) -> Path:
        """Return where what compilers made is kept."""
        return self.compile_cache_dir or self.data_dir / "compile-cache"

    @field_validator("catalogue_dir", "models_dir", "compile_cache_dir")
    @classmethod
    def _expand(cls, folder: Path | None) -> Path | None:
        return None if folder is None else folder.expanduser().absolute()

    @field_validator("database_url")
    @classmethod
    def _check_database(cls, url: str) -> str:
        try:
            kind = make_url(url).get_backend_name()
        except ArgumentError:
            kind = ""
        if kind not in ("sqlite", "postgresql", "postgres"):
            raise ValueError("must start with sqlite:/// or postgresql://")
        return url

    @field_validator("redis_url")
    @classmethod
    def _check_redis(cls, url: str) -> str:
        return _check_scheme(url, "redis", "rediss", "redis+socket")

    @field_validator("artifacts_url")
    @classmethod
    def _check_artifacts(cls, url: str) -> str:
        return _check_scheme(url, "file", "s3", "memory")

    @field_validator("public_url")
    @classmethod
    def _check_public(cls, url: str | None) -> str | None:
        return None if url is None else _check_scheme(url, "http", "https").rstrip("/")

    @field_validator("flower_basic_auth")
    @classmethod
    def _check_credentials(cls, credentials: SecretStr | None) -> SecretStr | None:
        if credentials is not None:
            words = credentials.get_secret_value()
            user, _, password = words.partition(":")
            # Browsers do not agree on the encoding of anything else.
            if not (user and password and words.isascii() and words.isprintable()):
                raise ValueError("must be user:password in printable ASCII characters, neither part empty")
        return credentials

    @field_validator("heartbeat_s")
    @classmethod
    def _check_heartbeat(cls, heartbeat_s: float, seen: ValidationInfo) -> float:
        lease_s = seen.data.get("lease_s")
        if lease_s is not None and heartbeat_s > lease_s / 2:
            raise ValueError(
                f"must be at most half of lease_s ({lease_s:g}), so that one lost beat loses no job"
            )
        return heartbeat_s

    @classmethod
    def load(cls, **given: object) -> Self:
        """Read the environment, under the values given here; every problem is reported together.

        Raises:
            InvalidSettings: Names each variable that is wrong and what it may be.
        """
        values: dict[str, Any] = given
        problems = tuple(_slips(cls.model_fields))
        try:
            settings = cls(**values)
        except ValidationError as error:
            problems += tuple(_sentence(problem) for problem in error.errors())
        if problems:
            raise InvalidSettings(problems)
        return settings

    @classmethod
    def for_data_dir(cls, folder: Path, **given: object) -> Self:
        """Return the settings of the embedded stack in ``folder``.

        Its database, broker and files lie in the folder whatever the environment says, so that a demo
        started in a shell that is set up for production touches nothing of it.
        """
        return cls.load(**({"data_dir": folder} | _urls(folder.expanduser().absolute()) | given))


@lru_cache(maxsize=1)
def get_settings() -> Settings:
    """Return the process's settings, read at the first call."""
    return Settings.load()


def _urls(folder: Path) -> dict[str, Any]:
    return {
        "database_url": f"sqlite:///{folder}/renderq.db",
        "redis_url": f"redis+socket://{folder}/valkey/valkey.sock",
        "artifacts_url": (folder / "artifacts").as_uri(),
    }


def _slips(fields: Collection[str]) -> Iterator[str]:
    """Tell of the variables that look like misspelt settings, whose values would otherwise do nothing.

    A slip in the name of an option of the policy is told where the options are resolved.
    """
    known = {*fields, *OPTIONS, *OTHERS}
    given = {name.upper() for name in os.environ if name.upper().startswith(PREFIX)}
    for name in sorted(given):
        word = name.removeprefix(PREFIX).lower()
        nearest = None if word in known else closest(word, known, NEAR_MISS)
        if nearest in fields:
            yield f"{name} is not a setting; did you mean {PREFIX}{str(nearest).upper()}?"


def _check_scheme(url: str, *schemes: str) -> str:
    if urlsplit(url).scheme not in schemes:
        raise ValueError("must start with " + " or ".join(f"{scheme}://" for scheme in schemes))
    return url


def _sentence(problem: ErrorDetails) -> str:
    """Tell of one problem; of the value only where it is a number or a word from a list, and no password."""
    name = "".join(str(part) for part in problem["loc"][:1])
    where, words = f"{PREFIX}{name.upper()} ({name})", problem["msg"].removeprefix("Value error, ")
    if not words.startswith(_SHOULD_BE):
        return f"{where}: {words[:1].lower()}{words[1:]}."
    wanted = words.removeprefix(_SHOULD_BE).partition(", unable")[0]
    given = f", not {quote(problem['input'])}" if problem["type"] in _PLAIN else ""
    return f"{where} must be {wanted}{given}."
