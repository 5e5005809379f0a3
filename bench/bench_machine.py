"""
What the figures were taken on.
"""

import os
import platform
import re
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

__all__ = ["describe_machine"]

ROOT = Path(__file__).parents[1]
PACKAGES = ("aiohttp", "openai", "orjson", "uvloop")


def describe_machine() -> dict[str, Any]:
    """
    Processor, cores, versions and commit; ``line`` says all of it.
    """
    found: dict[str, Any] = {
        "cpu": find_cpu(),
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "packages": {name: find_version(name) for name in PACKAGES},
        "commit": find_commit(),
    }
    packages = ", ".join(f"{name} {number}" for name, number in found["packages"].items() if number)
    found["line"] = (
        f"{found['cpu']}, {found['cores']} cores, {found['system']}, Python {found['python']}, {packages}, "
        f"commit {found['commit']}"
    )
    return found


def find_cpu() -> str:
    try:
        named = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        named = None
    return named[1].strip() if named else platform.processor() or platform.machine()


def find_version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def find_commit() -> str:
    """
    The commit that is checked out, with ``+dirty`` if files differ from it; "unknown" outside of a repository.
    """
    commit = ask_git("rev-parse", "--short=12", "HEAD")
    if commit is None:
        return "unknown"
    return commit + ("+dirty" if ask_git("status", "--porcelain") else "")


def ask_git(*arguments: str) -> str | None:
    try:
        asked = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return asked.stdout.strip()
