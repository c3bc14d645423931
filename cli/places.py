"""Where a process that measures finds the operator's models."""


def places(model: str) -> list[str]:
    """Where the operator's model files and local weights are."""
    from core.settings import get_settings

    settings = get_settings()
    catalogue = ["--catalogue-dir", str(settings.catalogue_dir)] if settings.catalogue_dir else []
    local = settings.models_dir / model if settings.models_dir else None
    return [*catalogue, *(["--source", str(local)] if local and local.is_dir() else [])]
