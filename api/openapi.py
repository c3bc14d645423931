"""Writes the OpenAPI document: ``python -m api.openapi > docs/openapi.json``."""

import json
import sys
import tempfile
from pathlib import Path

from api.app import create_app
from core.settings import Settings


def write_document() -> str:
    """Return the document as it stands in the repository; needs no database and no Redis."""
    with tempfile.TemporaryDirectory() as folder:
        document = create_app(Settings.for_data_dir(Path(folder))).openapi()
    return json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    sys.stdout.write(write_document())
