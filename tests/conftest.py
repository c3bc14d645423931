"""Names the fixture modules and keeps the caller's environment out of the tests."""

import gc
import os
import signal
from collections.abc import Iterator

import pytest
from hypothesis import settings

settings.register_profile("thorough", max_examples=1000)

for _name in [name for name in os.environ if name.startswith("RENDERQ_")]:
    del os.environ[_name]
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

# A shell that starts us in the background has these ignored, and every process that a test starts would too.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGQUIT, signal.SIG_DFL)

pytest_plugins = [
    "tests.fixtures.database",
    "tests.fixtures.models",
    "tests.fixtures.redis",
]


@pytest.fixture(autouse=True)
def no_renderq_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("RENDERQ_")]:
        monkeypatch.delenv(name)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Import the tests and the GPU stack with them without a look for garbage, then or ever after."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


# Fixtures of the session that cost the start of a worker: whoever takes one runs where it is.
_STAGES = {"shared_stage": "worker on {}", "quick_stage": "quick worker on {}"}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the tests that share a stage or a fixture of their module in one process of xdist."""
    for item in items:
        if not item.get_closest_marker("xdist_group") and (group := _group_of(item)):
            item.add_marker(pytest.mark.xdist_group(group))


def _group_of(item: pytest.Item) -> str | None:
    assert isinstance(item, pytest.Function)
    made = item._fixtureinfo.name2fixturedefs
    for stage in _STAGES.keys() & made.keys():
        return _STAGES[stage].format(item.callspec.params["database_kind"])
    return str(item.path) if any(each[-1].scope == "module" for each in made.values()) else None
