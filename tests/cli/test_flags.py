"""Policy flags: one table, explicit means present, every mistake at once."""

import json

import pytest
import typer
from typer.testing import CliRunner

from cli.exits import CliError
from cli.explain import known_variables
from cli.flags import ACCEPT_UNKNOWN, Flags, as_arguments, read_unknown, with_policy_flags
from policy.options import OPTIONS
from tests.cli.conftest import Run


def given(*arguments: str) -> Flags:
    """The flags that a command with policy flags gets."""
    caught: list[Flags] = []

    @with_policy_flags
    def command(*, flags: Flags) -> None:
        caught.append(flags)

    app = typer.Typer()
    app.command(context_settings=ACCEPT_UNKNOWN)(command)
    result = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return caught[0]


def test_without_flags_nothing_is_explicit() -> None:
    assert given() == {}


def test_a_flag_equal_to_the_default_is_explicit_all_the_same() -> None:
    assert given("--no-compile", "--cache", "--microbatch", "1") == {
        "compile": False,
        "cache": True,
        "microbatch": "1",
    }


def test_every_option_of_the_table_has_its_flag() -> None:
    for option in OPTIONS.values():
        value = [] if option.negative_flag else ["x"]
        assert list(given(option.flag, *value)) == [option.name]
        if option.negative_flag:
            assert given(option.negative_flag) == {option.name: False}


def test_unknown_flags_are_kept_for_the_resolver_to_name() -> None:
    assert given("--compil", "--cache-preste", "fast", "--dtyp=float32") == {
        "compil": "",
        "cache_preste": "fast",
        "dtyp": "float32",
    }


def test_a_stray_word_is_no_flag() -> None:
    with pytest.raises(CliError, match="unexpected argument 'fast'"):
        read_unknown(["fast"])


def test_flags_survive_the_way_to_another_command_line() -> None:
    arguments = ["--no-cache", "--compile", "--cache-preset=fast", "--warmup-sizes=64x64,32x32"]
    assert as_arguments(given(*arguments)) == ["--compile", "--no-cache", *arguments[2:]]
    assert given(*as_arguments(given(*arguments))) == given(*arguments)


def test_explain_gives_value_source_and_reason_of_every_option(renderq: Run) -> None:
    environment = {"RENDERQ_CACHE_PRESET": "fast", "RENDERQ_COMPILE": "true"}
    result = renderq("policy", "explain", "tiny", "--no-compile", "--json", env=environment)
    answer = json.loads(result.stdout)
    assert answer["model"] == "tiny"
    assert set(answer["options"]) == set(OPTIONS)
    assert answer["options"]["compile"]["value"] is False
    assert answer["options"]["compile"]["source"] == "flag"
    assert answer["options"]["cache_preset"]["value"] == "fast"
    assert answer["options"]["cache_preset"]["source"] == "env"
    assert answer["options"]["microbatch"]["source"] == "default"
    assert all(option["reason"] for option in answer["options"].values())


def test_explain_shows_a_line_for_every_option(renderq: Run) -> None:
    lines = renderq("policy", "explain", "tiny", "--compile").stdout.splitlines()
    assert len(lines) == 1 + len(OPTIONS)
    assert any(line.split()[:3] == ["compile", "true", "flag"] for line in lines)


@pytest.mark.parametrize("command", [("policy", "explain", "tiny"), ("worker", "--model", "tiny"), ("up",)])
def test_every_mistake_is_named_before_anything_starts(renderq: Run, command: tuple[str, ...]) -> None:
    result = renderq(*command, "--cache-preset", "speedy", "--nope", "--dtype", "int3")
    assert result.exit_code == 2
    for words in ("speedy", "--nope is not an option", "int3"):
        assert words in result.stderr


def test_a_model_that_is_not_offered_is_answered_with_those_that_are(renderq: Run) -> None:
    result = renderq("policy", "explain", "tinny")
    assert result.exit_code == 2
    assert 'did you mean "tiny"?' in result.stderr


def test_an_unknown_flag_before_the_model_is_not_taken_for_the_model(renderq: Run) -> None:
    result = renderq("policy", "explain", "--nope", "tiny")
    assert result.exit_code == 2
    assert "unknown option --nope" in result.stderr


def test_variables_of_other_parts_are_no_slips(renderq: Run) -> None:
    assert known_variables() >= {"RENDERQ_DATA_DIR", "RENDERQ_LEASE_S", "RENDERQ_URL"}
    result = renderq("policy", "explain", "tiny", env={"RENDERQ_URL": "http://x", "RENDERQ_LEASE_S": "30"})
    assert result.exit_code == 0
