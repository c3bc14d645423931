"""Names the fixture modules and keeps the caller's environment out of the tests."""

import os

import pytest

for _name in [name for name in os.environ if name.startswith("RENDERQ_")]:
    del os.environ[_name]
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

pytest_plugins = [
    "tests.fixtures.database",
    "tests.fixtures.models",
    "tests.fixtures.redis",
]


@pytest.fixture(autouse=True)
def no_renderq_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("RENDERQ_")]:
        monkeypatch.delenv(name)
