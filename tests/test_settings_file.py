"""
The settings file: what it sets, and how its mistakes are told.
"""

from pathlib import Path

import pytest

from agent_harness.config import load_settings
from agent_harness.engine.harness import Harness
from agent_harness.errors import ConfigError, NotFound
from agent_harness.llm.scripted import ScriptedModel
from agent_harness.protocol.requests import read_create
from agent_harness.settings_file import read_settings_file

GOOD = """
default_provider = "local"

[server]
port = 9000
node = "a"

[limits]
sessions = 12
ping_s = 2.5

[providers.local]
api = "chat"
base_url = "http://127.0.0.1:8080/v1/"
needs_key = false
model = "gemma"
merge_user_messages = true
headers = { "x-team" = "blue" }
extra_body = { seed = 7 }

[providers.openai]
api_key_env = "TEAM_KEY"

[agents.coder]
model = "gemma"
instructions = "Write code."
tool_timeout_s = inf
tools = [{ type = "function", name = "read_file" }]
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "agent-harness.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_file_sets_providers_agents_limits_and_the_address(tmp_path: Path) -> None:
    settings = read_settings_file(write(tmp_path, GOOD))
    local, other = settings.providers
    assert (local.name, local.api, local.base_url, local.model) == (
        "local",
        "chat",
        "http://127.0.0.1:8080/v1",
        "gemma",
    )
    assert local.merge_user_messages and not local.needs_key
    assert (local.headers, local.extra_body) == ({"x-team": "blue"}, {"seed": 7})
    assert (other.name, other.api_key_env) == ("openai", "TEAM_KEY")
    assert (settings.default_provider, settings.port, settings.host) == ("local", 9000, "127.0.0.1")
    assert settings.node == "a"
    assert (settings.limits.sessions, settings.limits.ping_s, settings.limits.queued_messages) == (12, 2.5, 100)
    agent = settings.agents["coder"]
    assert (agent.instructions, agent.tool_timeout_s, agent.tools[0].name) == ("Write code.", None, "read_file")


def test_flags_win_over_the_file_and_speak_of_its_default_provider(tmp_path: Path) -> None:
    base = read_settings_file(write(tmp_path, GOOD))
    settings = load_settings(base, model="other", api="responses", port=0, max_sessions=3)
    assert (settings.providers[0].model, settings.providers[0].api) == ("other", "responses")
    assert settings.providers[1] == base.providers[1]
    assert (settings.port, settings.limits.sessions, settings.host) == (0, 3, "127.0.0.1")


async def test_a_session_names_an_agent_and_gets_a_copy_of_it(tmp_path: Path) -> None:
    settings = read_settings_file(write(tmp_path, GOOD))
    async with Harness({"local": ScriptedModel()}, default_provider="local", agents=settings.agents) as harness:
        session = harness.create(read_create({"agent_id": "coder"}, 0))
        assert session.agent == settings.agents["coder"]
        with pytest.raises(NotFound, match="it has: coder") as refused:
            harness.create(read_create({"agent_id": "nobody"}, 0))
        assert (refused.value.code, refused.value.param) == ("unknown_agent", "agent_id")


@pytest.mark.parametrize(
    "text, line, key",
    [
        ("[server]\nprt = 1\n", 2, "server.prt"),
        ('[server]\n\nport = "x"\n', 3, "server.port"),
        ("[server]\nport = 70000\n", 2, "server.port"),
        ('[server]\nnode = "a_b"\n', 2, "server.node"),
        ("[limits]\nsessions = 0\n", 2, "limits.sessions"),
        ("[limits]\nsessions = true\n", 2, "limits.sessions"),
        ('[providers.a]\napi = "soap"\n', 2, "providers.a.api"),
        ('[providers.a]\nbase_url = "localhost"\n', 2, "providers.a.base_url"),
        ("[providers.a]\nheaders = { x = 1 }\n", 2, "providers.a.headers"),
        ('default_provider = "b"\n[providers.a]\n', 1, "default_provider"),
        ("[agents.x]\nmax_model_calls = 0\n", 2, "agents.x.max_model_calls"),
        ('[agents.x]\ntools = [{ type = "function", name = "a b" }]\n', 2, "agents.x.tools[0].name"),
        ('[agents.x]\nprovider = "b"\n[providers.a]\n', 2, "agents.x.provider"),
        ("[agent.x]\n", 1, "agent"),
    ],
)
def test_a_mistake_is_told_with_file_key_and_line(tmp_path: Path, text: str, line: int, key: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ConfigError) as refused:
        read_settings_file(path)
    assert str(refused.value).startswith(f"{path}, line {line}: {key}: "), refused.value


@pytest.mark.parametrize(
    "content, words", [(b"x = [", "not valid TOML"), (b"x = '\xff'", "not UTF-8"), (None, "cannot be read")]
)
def test_a_file_that_cannot_be_read_says_why(tmp_path: Path, content: bytes | None, words: str) -> None:
    path = tmp_path / "odd.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=words):
        read_settings_file(path)
