"""
The benchmark runs, in its smallest form: that it says what it measures, and says in one line when it cannot.

What it finds is no matter here. With ``AGENT_HARNESS_LOAD=full`` memory is measured too, which waits for half a minute.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
IS_FULL = os.environ.get("AGENT_HARNESS_LOAD") == "full"

NAMES = {
    "latency": {"turn_latency", "result_to_delta"},
    "throughput": {
        *(f"turns_per_s_{load}" for load in ("1", "32", "32_burst")),
        *(f"cpu_per_turn_{load}" for load in ("1", "1_paced", "32", "32_burst", "32_openai")),
        *(f"busy_{load}" for load in ("32", "32_burst")),
    },
    "followers": {"event_followers_1", "event_followers_many", "event_follower_further"},
    "growth": {"turn_1", "turn_3", "request_bytes_1", "request_bytes_3"},
    "start": {f"{figure}{sdk}" for figure in ("start", "first_turn", "memory_started") for sdk in ("", "_openai")},
    "import": {"import"},
    "memory": {
        "memory_idle",
        "memory_idle_total",
        "memory_finished",
        "memory_dropped_at_once",
        "memory_dropped",
        "memory_parked",
    },
    "adapters": {
        f"adapter_{dialect}_{transport}_{arrival}"
        for dialect in ("responses", "chat")
        for transport in ("aiohttp", "openai")
        for arrival in ("burst", "paced")
    },
    "layers": {
        "layers",
        *(f"layer_{name}" for name in ("upstream", "sse", "dialect", "request", "engine", "encode", "routes")),
        *(f"layer_{name}" for name in ("http", "loop", "other")),
    },
}
"""The rows of each measurement, in its smallest form."""

ALONE = {"import", "request_bytes_1", "request_bytes_3", *NAMES["memory"], *NAMES["layers"]}
"""Rows that are compared with nothing."""

SHARES = NAMES["layers"] - {"layers"}
"""Rows of a profile so small that nothing may have been found in a layer."""

DIFFERENCES = {"event_follower_further", "import", *NAMES["memory"]}
"""Rows that a busy machine can make negative, since they are what is left of two figures."""

RUN_S = 100.0

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the benchmark reads processes as Linux has them")


def run_bench(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(root / "bench" / "bench.py"), "--smallest", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=RUN_S)


def check_spread(spread: dict[str, Any], name: str) -> None:
    assert spread["min"] <= spread["median"] <= spread["max"]
    assert spread["min"] > 0 or name in DIFFERENCES or name in SHARES


def test_each_measurement_gives_its_rows_in_one_json_document() -> None:
    measured = [name for name in NAMES if IS_FULL or name != "memory"]

    result = run_bench(ROOT, "--json", "--only", ",".join(measured))

    assert result.returncode == 0, result.stderr
    document = json.loads(result.stdout)
    rows = {row["name"]: row for row in document["rows"]}
    assert set(rows) == set().union(*(NAMES[name] for name in measured))
    assert {"cpu", "cores", "python", "packages", "commit", "line"} <= set(document["machine"])
    for name, row in rows.items():
        assert row["title"] and row["unit"]
        check_spread(row["harness"], name)
        assert len(row["harness"]["rounds"]) == 1
        assert (row["baseline"] is None) == (row["ratio"] is None) == (name in ALONE)
        if row["baseline"] is not None:
            check_spread(row["baseline"], name)
            check_spread(row["ratio"], name)
    assert {name for name, row in rows.items() if row["bound"]} >= {"turn_latency", "result_to_delta", "start"}


def test_the_table_has_a_line_for_each_row_and_check_tells_of_a_bound_that_does_not_hold() -> None:
    result = run_bench(ROOT, "--only", "latency", "--check")

    assert "| tool turn, one at a time, frames back to back, ms " in result.stdout
    assert "| result to the next delta, frames back to back, ms " in result.stdout
    assert result.returncode == ("BROKEN" in result.stdout), result.stderr


@pytest.mark.parametrize(
    "line, broken, told",
    [
        ("def serve() -> None:\n", 'def serve() -> None:\n    raise SystemExit("tired")\n', "did not start: tired"),
        (
            "self.count += 1\n",
            'self.count += 1\n        if self.count > 20: raise SystemExit("tired")\n',
            "ended with 1",
        ),
    ],
    ids=["start", "turn"],
)
def test_a_process_that_fails_is_told_in_one_line(tmp_path: Path, line: str, broken: str, told: str) -> None:
    shutil.copytree(ROOT / "bench", tmp_path / "bench")
    (tmp_path / "agent_harness").symlink_to(ROOT / "agent_harness")
    mock = tmp_path / "bench" / "bench_mock.py"
    text = mock.read_text()
    assert line in text
    mock.write_text(text.replace(line, broken))

    result = run_bench(tmp_path, "--only", "latency")

    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.startswith("scripts/bench: the mock model ")
    assert told in result.stderr and result.stderr.count("\n") == 1


def test_a_measurement_that_is_none_is_told_with_those_that_are() -> None:
    result = run_bench(ROOT, "--only", "latency,beauty")

    assert (result.returncode, result.stdout) == (2, "")
    assert "there is no measurement 'beauty'; there are latency, throughput" in result.stderr
