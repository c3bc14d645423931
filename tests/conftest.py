"""Names the fixture modules and keeps the caller's environment out of the tests."""

import os
import signal

import pytest

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


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the tests that share a fixture of their module in one process of xdist: it is made once."""
    for item in items:
        made = getattr(item, "_fixtureinfo").name2fixturedefs.values()  # noqa: B009 - pytest names it so
        if any(each[-1].scope == "module" for each in made) and not item.get_closest_marker("xdist_group"):
            item.add_marker(pytest.mark.xdist_group(str(item.path)))
