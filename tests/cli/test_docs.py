"""
What the page on the command line shows can be typed as it stands.
"""

import asyncio
import json
import re
import shlex
import sys
from pathlib import Path

import pytest

from tests.cli.programs import serve_demo
from tests.processes import COMMANDS, ROOT, START_S, environment

PAGE = (ROOT / "docs" / "cli.md").read_text()
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
LINES = [line for language, text in BLOCKS if language in ("", "sh") for line in text.splitlines()]


@pytest.mark.parametrize("line", LINES)
def test_command_shown_takes_what_it_is_shown_with(line: str, tmp_path: Path) -> None:
    words = shlex.split(line.rpartition("| ")[2])
    assert words[0] == "agent-harness"
    [name] = [name for name in COMMANDS if words[1 : 1 + len(name.split())] == name.split()]

    COMMANDS[name].make_context(name, words[1 + len(name.split()) :])


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_command_is_told_with_each_of_its_options(name: str) -> None:
    part = PAGE.partition(f"\n## {name.split()[0]}")[2] if name not in ("demo", "mock-llm") else PAGE
    for parameter in COMMANDS[name].params:
        for option in parameter.opts:
            if option.startswith("-"):
                assert re.search(rf"(?<![\w-]){re.escape(option)}\b", part), option


async def test_blocks_that_are_run_end_well_one_after_another(tmp_path: Path) -> None:
    """
    In one shell, against a server with the demo model.
    """
    command = f'agent-harness() {{ {shlex.quote(sys.executable)} -P -W error -m agent_harness "$@"; }}\n'
    script = command + "".join(
        text.replace("agent-harness sessions list\n", "SESSION=$(first_session)\nagent-harness sessions list\n")
        for language, text in BLOCKS
        if language == "sh"
    )
    find = f"first_session() {{ agent-harness sessions list --json | {shlex.quote(sys.executable)} -c "
    find += shlex.quote("import json, sys; print(json.load(sys.stdin)[-1]['id'])") + "; }\n"
    with serve_demo() as url:
        shell = await asyncio.create_subprocess_exec(
            "bash", "-e", "-u", "-o", "pipefail", "-c", find + script,
            cwd=tmp_path, env=environment(AGENT_HARNESS_URL=url), stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        try:
            async with asyncio.timeout(START_S * 3):
                output, errors = await shell.communicate()
        finally:
            if shell.returncode is None:
                shell.kill()
                await shell.communicate()

    assert shell.returncode == 0, errors.decode()
    assert output.decode().count("You said: 'What is a harness?") >= 6
    exported = [json.loads(line) for line in (tmp_path / "transcript.jsonl").read_text().splitlines()]
    assert [item["role"] for item in exported] == ["user", "assistant"]


def test_the_program_shown_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [program] = [text for language, text in BLOCKS if language == "python"]
    names: dict[str, object] = {}
    monkeypatch.chdir(tmp_path)
    exec(program, names)

    tools = names["tools"]
    assert isinstance(tools, tuple)
    assert set(re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)) >= {tool.__name__ for tool in tools}
