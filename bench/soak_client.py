"""
The clients of the soak: each drives one session through its turns and holds the server to what it promised.
"""

import asyncio
import collections
import io
import itertools
import random
from collections.abc import Coroutine
from typing import Any

import aiohttp
import attrs
import orjson
from soak_follower import Follower, Tally
from soak_plan import AGENT, Plan, draw_plan

__all__ = ["Client", "Doors"]

STUCK_S = 45.0
"""A turn, or anything else, that has not ended after this many seconds is stuck."""

SIZES, SIZES_HEAVY = (0, 40, 400), (400, 20_000)
"""Characters of a tool's output."""

LAST_TRIES = 5
"""How often a session's last turn is tried; on a busy machine an upstream may seem silent without being told to."""

KNOWN_ENDS = {"rate_limited", "provider_unavailable", "upstream_disconnected", "upstream_idle"}
"""Codes of failed turns that the upstream's faults explain."""


@attrs.frozen
class Doors:
    """
    Where to knock. ``slow`` is for followers that read slowly: its sockets hold little.
    """

    http: aiohttp.ClientSession
    slow: aiohttp.ClientSession
    server: str
    upstream: str


class Client:
    """
    One session from its making to its deletion.
    """

    def __init__(self, doors: Doors, tally: Tally, rng: random.Random, number: int) -> None:
        self.doors, self.tally, self.rng = doors, tally, rng
        self.id = ""
        self._heavy = number % 20 == 0
        self._plans: dict[str, Plan] = {}
        self._responses: list[str] = []
        self._ends: collections.defaultdict[str, list[str]] = collections.defaultdict(list)
        self._ended: collections.defaultdict[str, asyncio.Event] = collections.defaultdict(asyncio.Event)
        self._closed: collections.defaultdict[str, asyncio.Event] = collections.defaultdict(asyncio.Event)
        self._accepted: dict[str, tuple[Any, bool]] = {}
        self._items: dict[str, dict[str, Any]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._batched: set[str] = set()

    # One life.

    async def live(self, until: float, think_s: float, stop: asyncio.Event) -> None:
        """
        Play turns until the event loop's time is *until*, or *stop* is set; then check everything and delete the
        session.
        """
        followers: list[Follower] = []
        reading: list[asyncio.Task[None]] = []
        try:
            status, answer = await self._ask("POST", "/v1/sessions", {"agent": AGENT})
            if status != 201:
                self.tally.faults.append(f"no session: {status} {answer}")
                return
            self.id = answer["id"]
            self.tally.counts["sessions"] += 1
            followers = self._make_followers()
            reading = [asyncio.create_task(follower.read()) for follower in followers]
            time = asyncio.get_running_loop().time
            for number in itertools.count():
                if stop.is_set() or time() >= until:
                    break
                await self._play(draw_plan(self.rng, str(number)))
                think = min(self.rng.random() * 2 * think_s, max(0.0, until - time()))
                try:
                    await asyncio.wait_for(stop.wait(), think)
                except TimeoutError:
                    pass
            await self._finish(followers[0])
            for follower in followers:
                follower.deleting = True
            status, _ = await self._ask("DELETE", f"/v1/sessions/{self.id}")
            self._expect("delete", status, 200)
            async with asyncio.timeout(STUCK_S):
                await asyncio.gather(*reading)
        except TimeoutError:
            self.tally.stuck.append(await self._describe(followers))
        except (aiohttp.ClientError, KeyError, ValueError) as error:
            self.tally.faults.append(f"{self.id}: {error!r}")
        finally:
            for task in (*self._tasks, *reading):
                task.cancel()
            await asyncio.gather(*self._tasks, *reading, return_exceptions=True)

    async def _describe(self, followers: list[Follower]) -> str:
        """
        How far everyone is, for people.
        """
        waiting = [one for one in self._responses if one not in self._ends]
        doing = [task.get_name() for task in self._tasks]
        _, snapshot = await self._ask("GET", f"/v1/sessions/{self.id}?include_items=false")
        told = {key: snapshot.get(key) for key in ("status", "seq", "response_id", "required_actions", "queued")}
        read = {follower.name: follower.last for follower in followers}
        return f"{self.id}: ends to come {waiting}; client does {doing}; followers {read}; server {told}"

    def _make_followers(self) -> list[Follower]:
        url = f"{self.doors.server}/v1/sessions/{self.id}/stream"
        stays = (3, 60) if self.rng.random() < 0.4 else None
        made = [Follower(self.doors.http, url, "main", self.tally, self.rng, hear=self._hear, stays=stays)]
        if self.rng.random() < 0.3:
            made.append(Follower(self.doors.http, url, "fickle", self.tally, self.rng, stays=(1, 20)))
        if self._heavy or self.rng.random() < 0.1:
            made.append(Follower(self.doors.slow, url, "slow", self.tally, self.rng, pause_s=1.0))
        return made

    # One turn.

    async def _play(self, plan: Plan) -> None:
        self._plans[plan.key] = plan
        response_id = await (self._stream(plan) if plan.streamed else self._post_message(plan))
        started = [response_id]
        if plan.interrupt_s is not None:
            self._start(self._interrupt(response_id, plan.interrupt_s))
        if plan.extra:
            await asyncio.sleep(self.rng.random() * 0.2)
            other = attrs.evolve(plan, key=f"{plan.key}+", rounds=(), fault="", streamed=False, repeated=False)
            self._plans[other.key] = other
            if second := await self._post_message(other, plan.extra):
                started.append(second)
        async with asyncio.timeout(STUCK_S):
            for one in started:
                await self._ended[one].wait()
            while self._tasks:
                await asyncio.wait(set(self._tasks))

    async def _post_message(self, plan: Plan, delivery: str = "queue") -> str:
        body = {"type": "message", "data": {"content": plan.text()}, "delivery": delivery}
        headers = {"Idempotency-Key": f"message-{plan.key}"}
        status, answer = await self._post(body, headers)
        if delivery == "reject" and status == 409:
            self.tally.counts["rejected"] += 1
            return ""
        self._expect("message", status, 202, answer)
        if plan.repeated:
            again, same = await self._post(body, headers)
            self._expect("repeated message", (again, same), (202, answer))
        return self._note(answer["response_id"])

    def _note(self, response_id: str) -> str:
        if response_id not in self._responses:
            self._responses.append(response_id)
            self.tally.counts["turns"] += 1
        return response_id

    async def _stream(self, plan: Plan) -> str:
        """
        Post a message with ``?stream=true`` and give its response's id; the stream is read in a task of its own.
        """
        heard: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        async def read() -> None:
            url = f"{self.doors.server}/v1/sessions/{self.id}/events?stream=true"
            body = {"type": "message", "data": {"content": plan.text()}}
            async with self.doors.http.post(url, json=body) as response:
                self._expect("streamed message", response.status, 200)
                frames, rest = 0, bytearray()
                while chunk := await response.content.readany():
                    rest += chunk
                    frames = rest.count(b"\n\n")
                    if frames and not heard.done():
                        heard.set_result(orjson.loads(rest.split(b"data: ", 1)[1].split(b"\n", 1)[0])["response_id"])
                    if 0 < plan.left <= frames:
                        return
                if not rest.endswith(b"data: [DONE]\n\n"):
                    self.tally.losses.append(f"{self.id}: a turn's stream ended without [DONE]: {bytes(rest[-300:])!r}")

        self._start(read())
        async with asyncio.timeout(STUCK_S):
            return self._note(await heard)

    async def _interrupt(self, response_id: str, after_s: float) -> None:
        await asyncio.sleep(after_s)
        data = {"response_id": response_id, "clear_queue": self.rng.random() < 0.5}
        status, answer = await self._post({"type": "interrupt", "data": data})
        self._expect("interrupt", status, 202, answer)
        self.tally.counts["interrupts"] += bool(answer.get("interrupted"))

    # What the session's events set off.

    def _hear(self, kind: str, event: dict[str, Any]) -> None:
        response = event.get("response")
        if response is not None and kind != "response.created":
            self._hear_end(response)
        elif kind == "session.item":
            self._items[event["item"]["id"]] = event["item"]
            if event["item"]["status"] == "cancelled":
                del self._items[event["item"]["id"]]
        elif kind == "response.output_item.done":
            item = event["item"]
            self._items[item["id"]] = item
            if item["type"] == "function_call" and item["status"] != "action_required":
                self._closed[item["call_id"]].set()
            elif item["type"] == "function_call":
                act = orjson.loads(item["arguments"])["act"]
                if act == "batch":
                    self._batched.add(item["call_id"])
                elif act != "missing":
                    self._start(self._answer(item["call_id"], act))
        elif kind == "session.status" and self._batched:
            self._start(self._answer_batch(sorted(self._batched)))
            self._batched = set()

    def _hear_end(self, response: dict[str, Any]) -> None:
        ends = self._ends[response["id"]]
        ends.append(response["status"])
        if len(ends) > 1:
            self.tally.losses.append(f"{self.id}: {response['id']} ended more than once: {ends}")
        self._ended[response["id"]].set()
        code = (response.get("error") or response.get("incomplete_details") or {}).get("code", "")
        self.tally.outcomes[f"{response['status']} {code}".strip()] += 1
        if response["status"] in ("failed", "incomplete") and code not in KNOWN_ENDS:
            self.tally.faults.append(f"{self.id}: a turn ended so: {response}")

    # Results.

    async def _answer(self, call_id: str, act: str) -> None:
        if act == "late":
            async with asyncio.timeout(STUCK_S):
                await self._closed[call_id].wait()
            status, answer = await self._post_result(call_id, "too late")
            self._expect("late result", (status, read_code(answer)), (409, "call_closed"))
            return
        if self.rng.random() < 0.5:
            await asyncio.sleep(self.rng.random() * 0.1)
        if act == "wrong":
            await self._post_wrong(call_id)
        output: Any = f"result of {call_id} " + "x" * self._size()
        if act == "parts":
            output = [{"type": "input_text", "text": output}]
        is_taken = await self._post_good(call_id, output, is_error=act == "error")
        if is_taken and act == "twice":
            status, answer = await self._post_result(call_id, output)
            self._expect("duplicate", (status, answer.get("duplicate")), (202, True))
            self.tally.counts["duplicates"] += 1
        if is_taken and act == "differ":
            status, answer = await self._post_result(call_id, "something else")
            self._expect("other result", (status, read_code(answer)), (409, "call_already_answered"))

    def _size(self) -> int:
        return self.rng.choice(SIZES_HEAVY if self._heavy else SIZES)

    async def _post_good(self, call_id: str, output: Any, *, is_error: bool) -> bool:
        status, answer = await self._post_result(call_id, output, is_error)
        if status == 202 and answer["duplicate"] is False:
            self._accept(call_id, output, is_error)
            return True
        self._expect_closed(status, answer)
        return False

    def _accept(self, call_id: str, output: Any, is_error: bool) -> None:
        self.tally.counts["results"] += 1
        if call_id in self._accepted:
            self.tally.losses.append(f"{self.id}: two results of {call_id} were accepted")
        self._accepted[call_id] = (output, is_error)

    def _expect_closed(self, status: int, answer: Any) -> None:
        """
        A good result was refused: only an interrupt may have closed its call.
        """
        closed_by = answer["error"].get("closed_by") if status == 409 else None
        self._expect("result", (status, read_code(answer), closed_by), (409, "call_closed", "interrupt"))
        self.tally.counts["overtaken"] += 1

    async def _post_wrong(self, call_id: str) -> None:
        status, answer = await self._post_result(f"{call_id}_", "x")
        self._expect("result of no call", (status, read_code(answer)), (404, "unknown_call"))
        status, answer = await self._post_result(call_id, 42)
        self._expect("result of a wrong type", (status, read_code(answer)), (400, "invalid_value"))
        status, answer = await self._post({"events": [result_of(call_id, "x"), result_of("nothing", "x")]})
        if read_code(answer) != "call_closed":
            self._expect("batch with a wrong result", (status, read_code(answer)), (404, "unknown_call"))
        self.tally.counts["refused"] += 3

    async def _answer_batch(self, call_ids: list[str]) -> None:
        outputs = {call_id: f"result of {call_id}" for call_id in call_ids}
        status, answer = await self._post({"events": [result_of(*pair) for pair in outputs.items()]})
        if status != 202:
            self._expect_closed(status, answer)
            return
        for one in answer["results"]:
            self._accept(one["call_id"], outputs[one["call_id"]], False)

    async def _post_result(self, call_id: str, output: Any, is_error: bool = False) -> tuple[int, Any]:
        return await self._post(result_of(call_id, output, is_error))

    # The end.

    async def _finish(self, main: Follower) -> None:
        """
        One turn without faults, so that the upstream is sent all there is; then compare what everyone knows.
        """
        for number in range(LAST_TRIES):
            await self._play(Plan(key=f"end{number}"))
            if self._ends[self._responses[-1]] == ["completed"]:
                break
        _, snapshot = await self._ask("GET", f"/v1/sessions/{self.id}")
        async with asyncio.timeout(STUCK_S):
            while main.last < snapshot["seq"]:  # noqa: ASYNC110 - it comes with the next event that is read
                await asyncio.sleep(0.01)
        rest = (snapshot["status"], snapshot["required_actions"], snapshot["queued"])
        self._expect("rest", rest, ("idle", [], []))
        items = {item["id"]: item for item in snapshot["items"]}
        if items != self._items:
            wrong = [item_id for item_id in {*items, *self._items} if items.get(item_id) != self._items.get(item_id)]
            self.tally.losses.append(f"{self.id}: stream and snapshot differ in {wrong}")
        self._check_ends()
        async with self.doors.http.post(f"{self.doors.upstream}/soak/forget", params={"session": self.id}) as response:
            sent = await response.json()
        self._check_results(snapshot["items"], sent)

    def _check_ends(self) -> None:
        for response_id in self._responses:
            if len(self._ends[response_id]) != 1:
                self.tally.losses.append(f"{self.id}: {response_id} ended {self._ends[response_id]}")

    def _check_results(self, items: list[dict[str, Any]], sent: dict[str, Any]) -> None:
        kept: collections.defaultdict[str, list[Any]] = collections.defaultdict(list)
        for item in items:
            if item["type"] == "function_call_output":
                kept[item["call_id"]].append((item["output"], item["is_error"]))
        for call_id, (output, is_error) in self._accepted.items():
            if kept[call_id] != [(output, is_error)]:
                self.tally.losses.append(f"{self.id}: accepted result of {call_id} is not what was kept")
            expected = f"Error: {output}" if is_error else output
            if sent.get(call_id) != expected:
                self.tally.losses.append(f"{self.id}: accepted result of {call_id} is not what was sent upstream")

    # Talking to the server.

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(self._guard(work), name=getattr(work, "__name__", None))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _guard(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception as error:
            self.tally.faults.append(f"{self.id}: {error!r}")

    def _expect(self, what: str, got: Any, wanted: Any, answer: Any = None) -> None:
        if got != wanted:
            self.tally.faults.append(f"{self.id}: {what}: got {got} instead of {wanted} {answer or ''}"[:600])

    async def _post(self, body: Any, headers: dict[str, str] | None = None) -> tuple[int, Any]:
        return await self._ask("POST", f"/v1/sessions/{self.id}/events", body, headers)

    async def _ask(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> tuple[int, Any]:
        told = {"Content-Type": "application/json", **(headers or {})}
        data = None if body is None else io.BytesIO(orjson.dumps(body))
        async with asyncio.timeout(STUCK_S):
            async with self.doors.http.request(method, self.doors.server + path, data=data, headers=told) as response:
                answer = orjson.loads(await response.read())
        if response.status >= 500:
            self.tally.counts["500s"] += 1
            self.tally.faults.append(f"{self.id}: {method} {path} answered {response.status}: {answer}"[:600])
        return response.status, answer


def result_of(call_id: str, output: Any, is_error: bool = False) -> dict[str, Any]:
    """
    The event that hands over a result.
    """
    return {
        "type": "function_call_output",
        "data": {"call_id": call_id, "output": output, "is_error": is_error},
    }


def read_code(answer: Any) -> str:
    """
    The code of a refusal, "" of anything else.
    """
    return str(answer.get("error", {}).get("code", ""))
