"""
Settings from flags and the environment: what wins, what is refused, and what is never printed.
"""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from agent_harness.config import DEFAULT_BASE_URL, DEFAULT_MODEL, Limits, ProviderSettings, Settings, load_settings
from agent_harness.errors import ConfigError


def load(environ: dict[str, str] | None = None, **flags: Any) -> Settings:
    return load_settings(environ=environ or {}, **flags)


def load_provider(environ: dict[str, str] | None = None, **flags: Any) -> ProviderSettings:
    (provider,) = load(environ, **flags).providers
    return provider


def test_nothing_given_means_the_defaults() -> None:
    settings = load()

    assert settings == Settings()
    assert (settings.host, settings.port, settings.default_provider) == ("127.0.0.1", 8787, "default")
    (provider,) = settings.providers
    assert (provider.name, provider.api, provider.base_url) == ("default", "responses", DEFAULT_BASE_URL)
    assert (provider.model, provider.api_key, provider.needs_key) == (DEFAULT_MODEL, None, True)


def test_limits_are_those_of_the_contract() -> None:
    assert Limits() == Limits(
        body_bytes=16 * 1024 * 1024,
        sessions=10_000,
        queued_messages=100,
        replay_events=1_000,
        replay_idle_s=600,
        ping_s=10,
    )


def test_environment_gives_key_and_url() -> None:
    provider = load_provider({"OPENAI_API_KEY": "k", "OPENAI_BASE_URL": "http://127.0.0.1:9/v1"})

    assert (provider.api_key, provider.base_url) == ("k", "http://127.0.0.1:9/v1")


def test_process_environment_is_read_where_none_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    monkeypatch.setenv("OPENAI_BASE_URL", "https://example.test/v1")

    (provider,) = load_settings().providers

    assert (provider.api_key, provider.base_url) == ("k", "https://example.test/v1")


@pytest.mark.parametrize("name", ["OPENAI_API_KEY", "OPENAI_BASE_URL"])
def test_empty_variable_is_the_same_as_none(name: str) -> None:
    assert load({name: ""}) == load()


@pytest.mark.parametrize("given", ["http://h/v1/", "http://h/v1//", "http://h/v1"])
def test_url_has_no_slash_at_its_end(given: str) -> None:
    assert load_provider({"OPENAI_BASE_URL": given}).base_url == "http://h/v1"


@pytest.mark.parametrize("api", ["responses", "chat"])
def test_flags_name_model_and_dialect(api: str) -> None:
    provider = load_provider(model="m", api=api)

    assert (provider.model, provider.api) == ("m", api)


def test_flags_name_host_port_and_bound_on_sessions() -> None:
    settings = load(host="0.0.0.0", port=0, max_sessions=1)

    assert (settings.host, settings.port) == ("0.0.0.0", 0)
    assert settings.limits == attrs.evolve(Limits(), sessions=1)


@pytest.mark.parametrize("name", ["a", "eu-west-1", "0", "a" * 32])
def test_flag_names_the_node(name: str) -> None:
    assert load(node=name).node == name
    assert load(base=Settings(node="b")).node == "b"
    assert load(base=Settings(node="b"), node=name).node == name


@pytest.mark.parametrize(
    "environ, flags, named",
    [
        ({}, {"api": "completions"}, "--api is 'completions'"),
        ({}, {"api": ""}, "--api"),
        ({}, {"max_sessions": 0}, "--max-sessions is 0"),
        ({}, {"max_sessions": -1}, "--max-sessions is -1"),
        *(
            ({}, {"node": name}, f"The node is called {name!r}")
            for name in ("", "a_b", "A", "a/b", "ä", "a\n", "a" * 33)
        ),
        ({"OPENAI_BASE_URL": "127.0.0.1:9"}, {}, "OPENAI_BASE_URL is '127.0.0.1:9'"),
        ({"OPENAI_BASE_URL": "ftp://h/v1"}, {}, "http:// or https://"),
    ],
)
def test_value_that_cannot_be_used_is_refused_by_its_name(environ: Any, flags: Any, named: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(environ, **flags)

    assert named in str(caught.value)


def test_key_given_wins_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "from the environment")

    assert ProviderSettings(api_key="given").key() == "given"
    assert ProviderSettings().key() == "from the environment"


def test_key_is_read_anew_from_the_variable_it_is_said_to_be_in(monkeypatch: pytest.MonkeyPatch) -> None:
    provider = ProviderSettings(api_key_env="TEAM_KEY")
    monkeypatch.delenv("TEAM_KEY", raising=False)
    assert provider.key() is None

    monkeypatch.setenv("TEAM_KEY", "first")
    assert provider.key() == "first"
    monkeypatch.setenv("TEAM_KEY", "second")
    assert provider.key() == "second"


def test_empty_key_is_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEAM_KEY", "")

    assert ProviderSettings(api_key="", api_key_env="TEAM_KEY").key() is None


def test_provider_without_a_variable_reads_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "k")

    assert ProviderSettings(api_key_env=None, needs_key=False).key() is None


def test_secrets_are_never_printed() -> None:
    provider = ProviderSettings(api_key="secret-key", headers={"x-token": "secret-header"})

    assert "secret" not in repr(provider)
    assert "secret" not in repr(Settings(providers=(provider,)))


@pytest.mark.parametrize("value", [Settings(), Limits(), ProviderSettings()])
def test_settings_cannot_be_changed(value: Any) -> None:
    field = attrs.fields(type(value))[0].name

    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        setattr(value, field, None)
