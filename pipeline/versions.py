"""Versions of what shapes a picture, read from the installed packages without importing any of them."""

import platform
from importlib import metadata

PACKAGES = ("renderq", "torch", "diffusers", "cache-dit", "transformers")


def collect() -> dict[str, str]:
    """Version of Python and of each package that is installed here; a missing one is left out."""
    found = {name: version for name in PACKAGES if (version := _version(name)) is not None}
    return found | {"python": platform.python_version()}


def software() -> str:
    """The name that files carry as the software that made them."""
    return f"renderq {_version('renderq') or 'unknown'}"


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
