"""
What an idle session keeps: nothing that can be made again, and what is made again is the same.
"""

import time
from collections.abc import AsyncIterator

from agent_harness.config import Limits, ProviderSettings
from agent_harness.engine.harness import Harness
from agent_harness.llm.base import Delta, Request
from agent_harness.llm.responses_input import build_body
from agent_harness.llm.scripted import ScriptedModel, Step, call, say, think
from agent_harness.protocol.commands import CreateSession
from tests.engine.rig import Rig

SETTINGS = ProviderSettings(model="m")
TURNS = 3


class EncodingModel(ScriptedModel):
    """
    Encodes each request, as an adapter does.
    """

    def __init__(self, steps: list[Step]) -> None:
        super().__init__(steps)
        self.bodies: list[bytes] = []

    async def stream(self, request: Request) -> AsyncIterator[Delta]:
        """
        As the script says.
        """
        self.bodies.append(build_body(request, SETTINGS).replace(request.session_id.encode(), b"SESSION"))
        async for delta in super().stream(request):
            yield delta


async def play(*, forget: bool) -> list[bytes]:
    hidden = {"id": "rs_1", "encrypted_content": "x"}
    script = [
        (think("hm", hidden) + call("look", "{}", f"c{number}"), say(f"done {number}")) for number in range(TURNS)
    ]
    model = EncodingModel([step for steps in script for step in steps])
    async with Harness({"default": model}, limits=Limits(replay_idle_s=1)) as harness:
        session = harness.create(CreateSession())
        rig = Rig(harness, session, model)
        for number in range(TURNS):
            rig.send(f"question {number}")
            assert await rig.waiting() == [f"c{number}"]
            parked = len(session.feed)
            harness._sweep()
            assert len(session.feed) == parked > 0, "a turn that waits keeps its replay"
            rig.result(f"c{number}")
            await rig.finished()
            if forget:
                session.updated_at = int(time.time()) - 10
                harness._sweep()
                assert len(session.feed) == 0 and session._cache is None
                assert session.transcript._closed_blocks == [] and session.transcript._open_block_start == 0
    return model.bodies


async def test_a_session_that_forgot_what_it_had_made_asks_its_model_with_the_same_bytes() -> None:
    """
    Rule 5: prompts keep their beginning, byte for byte, for ever.
    """
    kept = await play(forget=False)
    assert len(kept) == 2 * TURNS
    assert await play(forget=True) == kept
