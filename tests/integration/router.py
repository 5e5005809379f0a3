"""
The router of ``examples/router``, as it is shipped: addresses are put in, and nothing else is changed.
"""

import asyncio
import os
import re
import shutil
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.processes import ROOT, START_S

__all__ = ["command", "require_nginx", "routing", "write_router"]

SHIPPED = ROOT / "examples" / "router"
FILES = ("nginx.conf", "agent-harness.conf")

# Where it is installed, it often stands where only root looks.
NGINX = shutil.which("nginx", path=os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin")))


def require_nginx() -> str:
    """
    The program; without it the test is skipped.
    """
    if NGINX is None:
        pytest.skip("nginx, the router of the example, is not installed")
    return NGINX


def write_router(folder: Path, router: int, nodes: Mapping[str, int]) -> None:
    """
    The shipped files in *folder*, with the ports of the *router* and of the *nodes* ``a`` and ``b``.
    """
    ports = {"8080": router, "8801": nodes["a"], "8802": nodes["b"]}
    for name in FILES:
        text = (SHIPPED / name).read_text()
        (folder / name).write_text(re.sub(r"(?<=127\.0\.0\.1:)\d+", lambda port: str(ports[port[0]]), text))


def command(folder: Path) -> list[str]:
    """
    The command that the shipped file names, for *folder*.
    """
    words = [require_nginx(), "-p", str(folder), "-e", "stderr", "-c", "nginx.conf"]
    # Started by root its workers would be somebody who may not enter the folders of tests.
    return words + (["-g", "user root;"] if os.geteuid() == 0 else [])


@asynccontextmanager
async def routing(folder: Path, router: int, nodes: Mapping[str, int]) -> AsyncIterator[str]:
    """
    The router's address, while it runs; at the end it must stop well.
    """
    write_router(folder, router, nodes)
    process = await asyncio.create_subprocess_exec(
        *command(folder), stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE, start_new_session=True
    )
    try:
        assert process.stderr is not None
        said = b"begin"
        async with asyncio.timeout(START_S):
            # It listens before it starts those that answer.
            while said and b"start worker process " not in said:
                said = await process.stderr.readline()
        assert said, "nginx did not start"
        yield f"http://127.0.0.1:{router}"
        process.terminate()
        async with asyncio.timeout(START_S):
            await process.communicate()
        assert process.returncode == 0
    finally:
        if process.returncode is None:
            # Killed alone, it would leave its workers behind.
            os.killpg(process.pid, signal.SIGKILL)
            await process.communicate()
