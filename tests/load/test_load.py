"""
Many at once: sessions that wait, followers, one that reads nothing, a server that stops in the middle of it.

Each server is a process of its own, its model server the strict mock in this one. The forms here are short; with
``AGENT_HARNESS_LOAD=full`` they are those of docs/load.md, which also has the command. What is measured is
printed (``-s``).
"""

import asyncio
import gc
import os
import random
import re
import signal
import socket
import sys
import time
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
from aiohttp import ClientSession, ClientTimeout, TCPConnector
from yarl import URL

from agent_harness.engine.harness import Harness
from agent_harness.llm.scripted import ScriptedModel, call, say
from agent_harness.server import make_app
from agent_harness.testing.app_server import AppServer
from agent_harness.testing.mock_llm import make_mock_app
from tests.processes import Program, start
from tests.support import DONE, TOOL, WAIT_S, Api, Frame, Stream, user

IS_FULL = os.environ.get("AGENT_HARNESS_LOAD") == "full"

SESSIONS, FOLLOWERS, RESUMED, PROBES = (5_000, 1_000, 1_000, 1_000) if IS_FULL else (500, 100, 60, 60)

HEALTH_P99_S = 0.05 if IS_FULL else 1.0
"""In the short form only a bound on nonsense: tests that run beside it share the machine."""

AT_ONCE = 10
"""How many sessions are worked on at once."""

SESSION_MAX_BYTES = 200_000
"""A bound on nonsense again: what a parked session may take, its task and connection buffers included."""

GRACE_S = 1.0
MARGIN_S = 4.0
"""How long a server may take beyond its grace time, its interpreter's end included."""

LAST_WORD_S = 5.0
"""How long a follower that reads nothing keeps its connection after it was given up."""

EVENT_CHARS, EVENTS = (200_000, 1_000) if IS_FULL else (200_000, 250)

FLAT_BYTES = 16_000_000
"""What memory may go up and down by: what is kept, what is on its way, each a few times."""

LOOK: dict[str, Any] = {"tool_calls": [{"name": "look_up", "arguments": '{"widget_id": 1}'}]}

only_where_memory_is_told = pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")


def report(line: str) -> None:
    sys.stdout.write(f"\n{line}")


@attrs.frozen
class Site:
    """
    A server, its model server, and a client of both.
    """

    program: Program
    mock: AppServer
    http: ClientSession

    async def ask(self, method: str, path: str, body: Any = None, *, status: int) -> Any:
        """
        One request; the body of its answer.
        """
        async with asyncio.timeout(WAIT_S):
            async with self.http.request(method, URL(self.program.url + path), json=body) as response:
                assert response.status == status, await response.text()
                return await response.json()

    async def script(self, responses: list[dict[str, Any]], fallback: dict[str, Any] | None = None) -> None:
        """
        Tell the model server what to answer: *responses* in turn, then *fallback* for ever.
        """
        async with self.http.post(
            self.mock.make_url("/mock/configure"), json={"key": "default", "responses": responses}
        ):
            pass
        async with self.http.post(self.mock.make_url("/mock/set_fallback"), json={"response": fallback}):
            pass

    async def create(self) -> str:
        """
        A new session; its path.
        """
        return (
            f"/v1/sessions/{(await self.ask('POST', '/v1/sessions', {'agent': {'tools': [TOOL]}}, status=201))['id']}"
        )

    async def follow(self, path: str, **query: str) -> Stream:
        """
        Follow a session; its stream, behind the first frame.
        """
        async with asyncio.timeout(WAIT_S):
            response = await self.http.get(URL(f"{self.program.url}{path}/stream").with_query(query))
        assert response.status == 200
        stream = Stream(response)
        await stream.next()
        return stream

    async def park(self) -> tuple[str, str]:
        """
        A session that waits for a result: its path, and the call's id.
        """
        path = await self.create()
        async with asyncio.timeout(WAIT_S):
            response = await self.http.post(f"{self.program.url}{path}/events?stream=true", json=user("look it up"))
        stream = Stream(response)
        frames = await stream.until_status("waiting")
        stream.close()
        return path, frames[-1].data["required_actions"][0]["call_id"]

    async def post_result(self, path: str, call_id: str) -> int:
        """
        Hand over a result; the number of the newest event before it.
        """
        body = {"type": "function_call_output", "data": {"call_id": call_id, "output": "teal"}}
        answer = await self.ask("POST", f"{path}/events", body, status=202)
        assert answer["accepted"] is True and answer["duplicate"] is False
        seq: int = answer["seq"]
        return seq

    async def resume(self, path: str, call_id: str) -> None:
        """
        Hand over a result and see the turn to its end.
        """
        seq = await self.post_result(path, call_id)
        stream = await self.follow(path, after=str(seq), until="idle")
        frames = await stream.rest()
        assert [frame.event for frame in frames if frame.data != DONE][-2:] == ["response.completed", "session.status"]

    def read_memory(self) -> int:
        """
        The server's resident memory, in bytes.
        """
        found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{self.program.process.pid}/status").read_text())
        assert found is not None
        return int(found[1]) * 1024

    def count_sockets(self) -> int:
        """
        The server's open sockets.
        """
        folder = Path(f"/proc/{self.program.process.pid}/fd")
        found = 0
        for entry in folder.iterdir():
            try:
                found += os.readlink(entry).startswith("socket:")
            except FileNotFoundError:
                pass  # closed since it was listed
        return found


@asynccontextmanager
async def open_site(folder: Path, limits: str = "") -> AsyncIterator[Site]:
    """
    Start both servers.
    """
    mock = AppServer(make_mock_app())
    await mock.start_server()
    settings = folder / "load.toml"
    settings.write_text(
        f"[server]\nport = 0\n[limits]\ngrace_s = {GRACE_S}\n{limits}\n"
        f'[providers.mock]\napi = "responses"\nmodel = "mock"\nneeds_key = false\nbase_url = "{mock.make_url("/v1")}"\n'
    )
    try:
        async with start("serve", "--config", str(settings)) as program:
            connector = TCPConnector(limit=0)
            async with ClientSession(connector=connector, timeout=ClientTimeout(total=None)) as http:
                yield Site(program, mock, http)
    finally:
        await mock.close()


async def each(work: Callable[[Any], Awaitable[Any]], things: Iterable[Any]) -> list[Any]:
    """
    Do *work* with all *things*, `AT_ONCE` at a time; what came of it, in no particular order.
    """
    left, done = iter(things), []

    async def take() -> None:
        for thing in left:
            done.append(await work(thing))

    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(take())
    return done


@only_where_memory_is_told
async def test_many_sessions_park_at_once_and_a_result_resumes_any_of_them(tmp_path: Path) -> None:
    async with open_site(tmp_path) as site:
        await site.script([LOOK] * (SESSIONS + 1), {"text": "It is teal."})
        first = await site.park()
        before = site.read_memory()
        parked = await each(lambda _: site.park(), range(SESSIONS))
        each_bytes = (site.read_memory() - before) / SESSIONS
        report(f"{SESSIONS} parked sessions: {each_bytes / 1000:.1f} kB each, {site.read_memory() / 1e6:.0f} MB in all")

        chance = random.Random(5)
        followed = chance.sample(parked, FOLLOWERS)
        streams = dict(await each(lambda one: follow_parked(site, *one), followed))
        report(f"{FOLLOWERS} followers: {site.read_memory() / 1e6:.0f} MB in all")
        health = await site.ask("GET", "/health", status=200)
        assert (health["sessions"], health["running_turns"]) == (SESSIONS + 1, SESSIONS + 1)

        resting = await probe(site)
        pending = iter(chance.sample(parked, RESUMED))
        busy = await probe(site, lambda: resume_next(site, pending, streams))
        await site.resume(*first)
        for name, taken in (("nothing else happens", resting), ("results are posted", busy)):
            p50, p99 = taken[len(taken) // 2], taken[len(taken) * 99 // 100]
            report(f"/health while {name}: median {p50 * 1e3:.1f} ms, p99 {p99 * 1e3:.1f} ms, of {len(taken)}")
            assert p99 < HEALTH_P99_S
        assert each_bytes < SESSION_MAX_BYTES
        for stream in streams.values():
            stream.close()
        assert await site.program.end(signal.SIGTERM, within=SESSIONS / 100 + 10) == (0, "", "")


async def follow_parked(site: Site, path: str, call_id: str) -> tuple[str, Stream]:
    """
    Follow a session that waits, and be told of its open call again.
    """
    stream = await site.follow(path)
    told = await stream.next()
    assert told is not None and told.data["replayed"] is True and told.data["item"]["call_id"] == call_id
    return path, stream


async def resume_next(site: Site, pending: Any, streams: dict[str, Stream]) -> None:
    """
    Resume one session; whoever follows it hears of all of it.
    """
    path, call_id = next(pending)
    await site.resume(path, call_id)
    if path in streams:
        await streams[path].until("response.completed")


async def probe(site: Site, between: Callable[[], Awaitable[None]] | None = None) -> list[float]:
    """
    How long ``/health`` takes, in seconds, smallest first; with *between* done again and again at the same time.
    """
    taken: list[float] = []

    async def measure() -> None:
        for _ in range(PROBES):
            began = time.perf_counter()
            await site.ask("GET", "/health", status=200)
            taken.append(time.perf_counter() - began)

    async def work() -> None:
        for _ in range(RESUMED if between is not None else 0):
            assert between is not None
            await between()

    async with asyncio.TaskGroup() as group:
        group.create_task(measure())
        group.create_task(work())
    return sorted(taken)


@only_where_memory_is_told
async def test_a_follower_that_reads_nothing_is_cut_while_another_loses_nothing_and_memory_stays_flat(
    tmp_path: Path,
) -> None:
    limits = "replay_events = 1000\nreplay_bytes = 2000000"
    async with open_site(tmp_path, limits) as site:
        path = await site.create()
        reader = await site.follow(path, after="0")
        await site.ask("GET", "/health", status=200)  # over a connection that stays
        sockets = site.count_sockets()
        with connect_and_read_nothing(site.program.url, path) as deaf:
            assert (await count(site, "followers"), await count(site, "followers_lagged_total")) == (2, 0)
            warm = peak = 0
            for number in range(1, EVENTS + 1):
                # An event this large that leaves nothing in the transcript.
                agent = {"instructions": f"{number:06} " + "x" * EVENT_CHARS}
                await site.ask("PATCH", path, {"agent": agent}, status=200)
                check_update(await reader.next(), number, agent["instructions"])
                reader.frames.clear()
                reader.raw.clear()
                if number == EVENTS // 3:
                    warm = site.read_memory()
                elif number > EVENTS // 3:
                    peak = max(peak, site.read_memory())
            published = EVENTS * EVENT_CHARS
            report(
                f"a follower that reads nothing: {(peak - warm) / 1e6:+.1f} MB with {published / 1e6:.0f} MB of events"
            )
            assert (await count(site, "followers"), await count(site, "followers_lagged_total")) == (1, 1)
            assert peak - warm < FLAT_BYTES < (published - published // 3) // 2
            async with asyncio.timeout(LAST_WORD_S + WAIT_S):
                while site.count_sockets() > sockets:
                    await site.ask("GET", "/health", status=200)
            assert read_to_the_end(deaf).startswith(b"HTTP/1.1 200 OK\r\n")
        await site.ask("DELETE", path, status=200)
        assert [frame.data for frame in await reader.rest()][-1] == DONE
        assert await site.program.end(signal.SIGTERM) == (0, "", "")


def check_update(frame: Frame | None, number: int, instructions: str) -> None:
    """
    The next event, and nothing else, is what was just changed.
    """
    assert frame is not None and (frame.event, frame.id) == ("session.updated", number)
    assert frame.data["agent"]["instructions"] == instructions


def connect_and_read_nothing(url: str, path: str) -> socket.socket:
    """
    A follower that has read that it is one, and nothing more.
    """
    address = URL(url)
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    made.settimeout(WAIT_S)
    made.connect((address.host, address.port))
    made.sendall(f"GET {path}/stream HTTP/1.1\r\nHost: {address.host}:{address.port}\r\n\r\n".encode())
    assert made.recv(1, socket.MSG_PEEK)
    return made


def read_to_the_end(connection: socket.socket) -> bytes:
    """
    What a connection still holds; its end, of whatever kind, must be there.
    """
    read = bytearray()
    try:
        while piece := connection.recv(1 << 20):
            read += piece
    except ConnectionResetError:
        pass
    assert b"data: [DONE]" not in read
    return bytes(read)


async def count(site: Site, name: str) -> int:
    """
    One of the server's metrics.
    """
    async with site.http.get(f"{site.program.url}/metrics") as response:
        found = re.search(rf"^agent_harness_{name} (\S+)$", await response.text(), re.MULTILINE)
    assert found is not None, name
    return int(float(found[1]))


async def test_a_server_with_a_hundred_streams_and_twenty_turns_stops_in_time_and_tells_everybody(
    tmp_path: Path,
) -> None:
    async with open_site(tmp_path) as site:
        # Half of the turns wait for a result, half hang in the middle of the model's answer.
        talk = {"deltas": ["It ", "is ", "teal."], "block": 6}
        await site.script([LOOK] * 10)
        parked = [(await site.park())[0] for _ in range(10)]
        await site.script([talk] * 10)
        talking = [await site.create() for _ in range(10)]
        streams = {path: [await site.follow(path, after="0") for _ in range(5)] for path in parked + talking}
        for path in talking:
            await site.ask("POST", f"{path}/events", user("talk"), status=202)
            for stream in streams[path]:
                await stream.until("response.output_text.delta")
        health = await site.ask("GET", "/health", status=200)
        assert health["running_turns"] == 20

        began = time.monotonic()
        ending = asyncio.create_task(site.program.end(signal.SIGTERM, within=GRACE_S + MARGIN_S))
        ends = await asyncio.gather(*(stream.rest() for open_here in streams.values() for stream in open_here))
        assert await ending == (0, "", "")
        taken = time.monotonic() - began
        report(f"SIGTERM with {len(ends)} streams and 20 turns: {taken:.2f} s, {GRACE_S:g} s of them grace")
        for frames in ends:
            told = [frame.event for frame in frames]
            assert frames[-1].data == DONE and told.count("response.cancelled") == 1


async def test_a_deleted_session_leaves_nothing_behind(aiohttp_client: Any) -> None:
    model = ScriptedModel([call("look_up", '{"widget_id": 1}', "c1"), say("teal")])
    harness = Harness({"default": model})
    api = Api(await aiohttp_client(make_app(harness)), model)
    talk = await api.open(agent={"tools": [TOOL]})
    session = weakref.ref(harness.get(talk.id))
    result = {"type": "function_call_output", "data": {"call_id": "c1", "output": "teal"}}
    for body, status in ((user("look it up"), "waiting"), (result, "idle")):
        # Answers that are kept for repeats must not keep what they speak of.
        headers = {"Idempotency-Key": status}
        assert (await api.ask("POST", f"{talk.path}/events", json=body, headers=headers)).status == 202
        await talk.stream.until_status(status)
    assert (await api.ask("DELETE", talk.path)).status == 200
    await talk.stream.rest()
    model.requests.clear()
    async with asyncio.timeout(WAIT_S):
        while session() is not None:
            gc.collect()
            await api.get("/health")
