"""
Sessions made again from what was written down of them.
"""

from typing import TYPE_CHECKING

from agent_harness.engine.ledger import Ledger
from agent_harness.engine.session import Session
from agent_harness.protocol.agents import Agent
from agent_harness.protocol.events import Event
from agent_harness.protocol.reviving import revive_transcript
from agent_harness.store.base import StoredSession

if TYPE_CHECKING:
    from agent_harness.engine.replies import SessionHost

__all__ = ["make_session"]


def make_session(host: "SessionHost", stored: StoredSession, agent: Agent) -> tuple[Session, list[Event]]:
    """
    The session that *stored* is of, ready to `Session.resume`, and the events of what was cut; *agent* is the stored
    one, or its equal. Its event numbers begin above all that were given away.
    """
    head = stored.head
    transcript, told = revive_transcript(head, stored.offer, stored.items, stored.turns, stored.waiting)
    session = Session(host, agent, dict(stored.agent.metadata), transcript, stored.id)
    session.created_at, session.updated_at = stored.agent.created_at, head.updated_at
    session.usage, session.last_error = head.usage, head.last_error
    session.feed.go_on(stored.reserved)
    session.feed.held = True
    session.ledger = Ledger(
        session,
        reserved=stored.reserved,
        entered=transcript.entered,
        waiting=transcript.waiting,
        offer=stored.offer,
    )
    return session, told
