"""Names the fixture modules and keeps the caller's environment out of the tests."""

import gc
import os
import signal
from collections.abc import Iterator
from typing import Any

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


# Fixtures of the session that start processes, and the group of xdist whose tests share them.
_SHARED = {
    "shared_stage": "worker on {kind}",
    "quick_stage": "quick worker on {kind}",
    "crew_stage": "crew worker on {kind}",
    "shared_scene": "faults on {kind}",
    "stack": "stack",
}


# Their tests take several seconds each. xdist hands out groups first, then what is in none in this order.
_LONG = {
    *("test_architecture", "test_bench", "test_benchcache", "test_benchmodel", "test_consumer"),
    *("test_control", "test_demo", "test_doctor", "test_engine", "test_hung", "test_isolation"),
    *("test_lifecycle", "test_lifecycle_machine", "test_lora", "test_queue_overhead", "test_serve"),
    *("test_stack", "test_stop", "test_up"),
}


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Iterator[None]:
    """Keep the tests that share processes or a fixture of their module in one process of xdist.

    Long ones come first, after all shuffling: none is alone at the end while the other processes wait for it.
    """
    for item in items:
        if not item.get_closest_marker("xdist_group") and (group := _group_to_be(item)):
            item.add_marker(pytest.mark.xdist_group(group))
    yield
    items.sort(key=lambda item: item.path.stem not in _LONG)


def _fixtures(item: pytest.Item) -> dict[str, Any]:
    return {name: made[-1] for name, made in getattr(item, "_fixtureinfo").name2fixturedefs.items()}  # noqa: B009


def _group_to_be(item: pytest.Item) -> str | None:
    made = _fixtures(item)
    for name in _SHARED.keys() & made.keys():
        return _SHARED[name].format(kind=getattr(item, "callspec").params.get("database_kind"))  # noqa: B009
    return str(item.path) if any(each.scope == "module" for each in made.values()) else None


def _group(item: pytest.Item | None) -> object:
    marker = item.get_closest_marker("xdist_group") if item else None
    return marker and (marker.args or marker.kwargs)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """End what a group shared after its last test: beside the others it would keep half a core busy."""
    yield
    if hasattr(item.config, "workerinput") and _group(item) != _group(nextitem):
        for name, made in _fixtures(item).items():
            if name in _SHARED:
                made.finish(getattr(item, "_request"))  # noqa: B009 - pytest names it so
