"""
What an event costs by the number of those who follow: the harness, and a bare broadcaster.

One answer of many pieces, followed by one and by many. The mock model sends the next piece when every follower has the
one before (lock-step): so each event is read, encoded and written by itself, on any machine, and nobody waits for
timers. CPU time is that of the server's process, from the first piece to the last, shared out over the events.
"""

from bench_client import Connection, Crowd, make_request
from bench_processes import Server
from bench_rig import Plan, Rig, start_baseline
from bench_rows import Row
from bench_targets import HarnessTarget

__all__ = ["measure_followers"]

MARK = b"event: response.output_text.delta\n"
WARM_EVENTS = 20


def measure_followers(rig: Rig, plan: Plan) -> list[Row]:
    """
    CPU time for an event with one follower and with many, and for each further one.
    """
    many = plan.followers
    alone = Row("event_followers_1", "CPU of a streamed delta, 1 follower", "µs", baseline_name="broadcaster")
    crowded = Row(
        "event_followers_many", f"CPU of a streamed delta, {many} followers", "µs", baseline_name="broadcaster"
    )
    further = Row("event_follower_further", "CPU of a streamed delta, each further follower", "µs")
    further.baseline_name = "broadcaster"
    with start_baseline("broadcaster", f"{rig.mock.url}/step/v1", rig.cores.server, plan) as other:
        for _ in range(plan.rounds):
            for side, server in (("baseline", other), ("harness", rig.harness)):
                costs = [measure(rig, server, followers, plan.events) for followers in (1, many)]
                getattr(alone, side).append(1e6 * costs[0])
                getattr(crowded, side).append(1e6 * costs[1])
                getattr(further, side).append(1e6 * (costs[1] - costs[0]) / (many - 1))
    return [alone, crowded, further]


class Ears:
    """
    All followers of a stream: how many events reached them, in all.
    """

    def __init__(self, crowd: Crowd, url: str, path: str, followers: int) -> None:
        self.count = 0
        self.followers = followers
        self._crowd = crowd
        for _ in range(followers):
            self._follow(Connection(url), make_request(url, f"GET {path}"))

    def wait_for(self, events: int) -> None:
        """
        Wait until every follower has so many events.
        """
        self._crowd.listen(lambda: self.count >= events * self.followers)

    def _follow(self, connection: Connection, request: bytes) -> None:
        connection.send(request)
        rest = b""
        while b"\n\n" not in rest.partition(b"\r\n\r\n")[2]:
            # Whoever has the first frame follows.
            rest += connection.receive()

        def hear(data: bytes) -> None:
            nonlocal rest
            data = rest + data
            self.count += data.count(MARK)
            rest = data[1 - len(MARK) :]

        rest = rest[1 - len(MARK) :]
        connection.on_data = hear
        self._crowd.add(connection)


def measure(rig: Rig, server: Server, followers: int, events: int) -> float:
    """
    CPU seconds of *server* for one event.
    """
    harness = HarnessTarget(server.url, "step")
    is_harness = server is rig.harness
    with Connection(rig.mock.url) as mock, Connection(server.url) as control, Crowd() as crowd:
        session = harness.open(control, 1)[0] if is_harness else ""
        ears = Ears(crowd, server.url, f"/v1/sessions/{session}/stream" if is_harness else "/stream", followers)
        begun = count_answers(mock, rig)
        start = harness.send_message(session) if is_harness else make_request(server.url, "POST /start", b"{}")
        control.ask_json(start)
        while count_answers(mock, rig) == begun:
            server.check()
        step = make_request(rig.mock.url, "POST /step")

        def send(first: int, last: int) -> None:
            for number in range(first, last):
                mock.ask(step)
                ears.wait_for(number + 1)

        send(0, WARM_EVENTS)
        cpu = server.cpu()
        send(WARM_EVENTS, WARM_EVENTS + events)
        cpu = server.cpu() - cpu
        mock.ask(make_request(rig.mock.url, "POST /end"))
        if is_harness:
            harness.close(control, [session])
    server.check()
    return cpu / events


def count_answers(mock: Connection, rig: Rig) -> int:
    count: int = mock.ask_json(make_request(rig.mock.url, "GET /stats"))["answers"]
    return count
