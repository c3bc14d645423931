"""Settings are read once, checked together, and told in words."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from core.errors import InvalidSettings
from core.settings import Settings, cuda_visible_devices, default_data_dir, get_settings


@pytest.fixture(autouse=True)
def fresh_settings() -> None:
    get_settings.cache_clear()


def problems(**given: object) -> tuple[str, ...]:
    with pytest.raises(InvalidSettings) as caught:
        Settings.load(**given)
    return caught.value.problems


def test_everything_lies_in_the_data_folder_by_default(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path)
    assert settings.database_url == f"sqlite:///{tmp_path}/renderq.db"
    assert settings.redis_url == f"redis+socket://{tmp_path}/valkey/valkey.sock"
    assert settings.artifacts_url == f"file://{tmp_path}/artifacts"
    assert (settings.lease_s, settings.heartbeat_s, settings.max_attempts) == (30, 5, 3)


def test_the_data_folder_follows_the_xdg_rule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert Settings.load().data_dir == default_data_dir() == tmp_path / "renderq"
    monkeypatch.delenv("XDG_DATA_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert Settings.load().data_dir == tmp_path / ".local" / "share" / "renderq"


def test_folders_are_made_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    settings = Settings.load(data_dir="~/here", catalogue_dir="models", models_dir="~/weights")
    assert settings.data_dir == tmp_path / "here"
    assert settings.database_url == f"sqlite:///{tmp_path}/here/renderq.db"
    assert (settings.catalogue_dir, settings.models_dir) == (tmp_path / "models", tmp_path / "weights")


def test_the_environment_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RENDERQ_LEASE_S", "60")
    monkeypatch.setenv("RENDERQ_DATABASE_URL", "postgresql://ann:pw@db/renderq")
    monkeypatch.setenv("RENDERQ_PUBLIC_URL", "https://pictures.example/")
    settings = get_settings()
    assert (settings.lease_s, settings.database_url) == (60, "postgresql://ann:pw@db/renderq")
    assert settings.public_url == "https://pictures.example"


def test_what_is_given_is_stronger_than_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RENDERQ_LEASE_S", "60")
    assert Settings.load(lease_s=90).lease_s == 90


def test_an_empty_variable_counts_as_not_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RENDERQ_DATABASE_URL", "")
    monkeypatch.setenv("RENDERQ_PUBLIC_URL", "")
    monkeypatch.setenv("RENDERQ_DATA_DIR", str(tmp_path))
    settings = Settings.load()
    assert settings.database_url == f"sqlite:///{tmp_path}/renderq.db"
    assert settings.public_url is None


def test_variables_of_the_policy_are_no_business_of_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RENDERQ_COMPILE", "true")
    Settings.load()


@pytest.mark.parametrize(
    ("slip", "meant"),
    [("DATABSE_URL", "DATABASE_URL"), ("REDIS_URI", "REDIS_URL"), ("MODEL_DIR", "MODELS_DIR")],
)
def test_a_misspelt_variable_is_told_with_the_right_name(
    monkeypatch: pytest.MonkeyPatch, slip: str, meant: str
) -> None:
    monkeypatch.setenv(f"RENDERQ_{slip}", "secret")
    told = problems(lease_s=0)
    assert f"RENDERQ_{slip} is not a setting; did you mean RENDERQ_{meant}?" in told
    assert len(told) == 2, "with every other problem"
    assert "secret" not in "".join(told)


@pytest.mark.parametrize("name", ["URL", "DEBUG", "CACHE_PRESET", "COMPILE_SCPE", "TEST_POSTGRES", "X"])
def test_a_variable_that_is_no_slip_of_a_setting_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(f"RENDERQ_{name}", "1")
    Settings.load()


def test_settings_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    first = get_settings()
    monkeypatch.setenv("RENDERQ_LEASE_S", "60")
    assert get_settings() is first


def test_settings_do_not_change(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="frozen"):
        Settings(data_dir=tmp_path).lease_s = 5  # type: ignore[misc]


def test_all_problems_are_told_together() -> None:
    told = problems(
        database_url="mysql://x",
        redis_url="amqp://x",
        artifacts_url="/a/folder",
        public_url="pictures.example",
        lease_s=0,
        max_attempts="many",
        log_format="xml",
    )
    assert len(told) == 7
    assert "RENDERQ_DATABASE_URL (database_url): must start with sqlite:/// or postgresql://." in told
    assert "RENDERQ_REDIS_URL (redis_url): must start with redis:// or rediss:// or redis+socket://." in told
    assert "RENDERQ_LEASE_S (lease_s) must be greater than 0, not 0." in told
    assert "RENDERQ_LOG_FORMAT (log_format) must be 'auto', 'console' or 'json', not \"xml\"." in told


def test_a_heartbeat_must_leave_room_for_one_that_is_lost() -> None:
    (told,) = problems(lease_s=8, heartbeat_s=5)
    assert told.startswith("RENDERQ_HEARTBEAT_S (heartbeat_s): must be at most half of lease_s (8)")
    assert Settings.load(lease_s=10, heartbeat_s=5).heartbeat_s == 5


def test_a_password_is_never_told() -> None:
    assert "secret" not in "".join(
        problems(database_url="mysql://ann:secret@db/x", redis_url="x://:secret@r")
    )


def test_a_text_that_is_no_url_is_told(tmp_path: Path) -> None:
    assert "RENDERQ_DATABASE_URL" in problems(database_url=str(tmp_path))[0]


def test_the_embedded_stack_touches_nothing_outside_its_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("RENDERQ_DATABASE_URL", "postgresql://production/renderq")
    monkeypatch.setenv("RENDERQ_REDIS_URL", "redis://production")
    monkeypatch.setenv("RENDERQ_ARTIFACTS_URL", "s3://production")
    monkeypatch.setenv("RENDERQ_LEASE_S", "60")
    settings = Settings.for_data_dir(tmp_path, max_attempts=5)
    assert settings == Settings(data_dir=tmp_path, max_attempts=5, **_urls_in(tmp_path))
    assert settings.lease_s == 60


def _urls_in(folder: Path) -> dict:
    return {
        "database_url": f"sqlite:///{folder}/renderq.db",
        "redis_url": f"redis+socket://{folder}/valkey/valkey.sock",
        "artifacts_url": f"file://{folder}/artifacts",
    }


def test_the_visible_gpus_are_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert cuda_visible_devices() is None
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert cuda_visible_devices() == ""


@pytest.mark.parametrize("name", ["lease_s", "heartbeat_s", "upkeep_interval_s"])
def test_a_time_that_never_ends_is_refused(name: str) -> None:
    assert name in str(problems(**{name: float("inf")}))
