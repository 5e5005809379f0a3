"""
What one message of the soak makes the model do, written into the message itself: the model server needs no script.

A plan is drawn by the client, travels as the text ``soak {…}``, and is read by the upstream from the last user message
of a request. Which of its rounds a request asks for follows from the calls that stand behind that message.
"""

import json
import random
from collections.abc import Sequence
from typing import Any

import attrs

__all__ = ["AGENT", "Plan", "draw_plan", "find_step", "name_of"]

PREFIX = "soak "

DEADLINE_S = 1.0
"""How long a call of the tool ``leave`` stays open, in seconds."""

ACTS = {
    "ok": 30,
    "error": 4,
    "parts": 3,
    "twice": 8,  # the same result again
    "differ": 6,  # another result for a call that has one
    "wrong": 6,  # results that must be refused, then a good one
    "batch": 12,
    "late": 3,  # after the deadline
    "missing": 2,  # never
    "unknown": 2,  # a tool that was not offered: the harness answers
    "shapeless": 2,  # arguments that are no object: the harness answers
}
"""What the client does with a call, and how often."""

FAULTS = {
    "": 140,
    "429": 8,
    "500": 8,
    "reset": 8,  # before the first byte
    "silence": 2,  # no byte for longer than the idle limit
    "cut": 8,  # a reset inside the answer
    "stall": 2,  # silence inside the answer
}

LASTING = 9
"""A fault that comes this often outlasts every retry."""

AGENT: dict[str, Any] = {
    "instructions": "Do as the message says.",
    "tools": [
        {"type": "function", "name": "work", "parameters": {"type": "object"}, "timeout_s": 120},
        {"type": "function", "name": "leave", "parameters": {"type": "object"}, "timeout_s": DEADLINE_S},
    ],
}


@attrs.frozen(kw_only=True)
class Plan:
    """
    One turn.

    Args:
        key: tells this plan from all others of its session.
        rounds: for each answer of the model but the last one, what becomes of its calls (see `ACTS`).
        fault, fault_round, fault_times: what the upstream does wrong (see `FAULTS`), in which answer, how often.
        words, pace_s: how long the last answer is, and seconds between its pieces.
        reasoning: whether answers begin with reasoning.
        interrupt_s: when the client interrupts, counted from its message; None for never.
        extra: ``delivery`` of a second message into the running turn, or "".
        streamed: whether the message is posted with ``?stream=true``; ``left`` is after how many frames the client
            leaves that stream, 0 for not at all.
        repeated: whether the message is posted twice with one Idempotency-Key.
    """

    key: str
    rounds: tuple[tuple[str, ...], ...] = ()
    fault: str = ""
    fault_round: int = 0
    fault_times: int = 1
    words: int = 5
    pace_s: float = 0.0
    reasoning: bool = False
    interrupt_s: float | None = None
    extra: str = ""
    streamed: bool = False
    left: int = 0
    repeated: bool = False

    def text(self) -> str:
        """
        The message.
        """
        told = {
            "key": self.key, "rounds": self.rounds, "fault": self.fault, "fault_round": self.fault_round,
            "fault_times": self.fault_times, "words": self.words, "pace_s": self.pace_s, "reasoning": self.reasoning,
        }  # fmt: skip
        return PREFIX + json.dumps(told)


def draw(rng: random.Random, weights: dict[str, int]) -> str:
    return rng.choices(list(weights), list(weights.values()))[0]


def draw_plan(rng: random.Random, key: str) -> Plan:
    """
    A turn at random.
    """
    rounds = tuple(
        tuple(draw(rng, ACTS) for _ in range(rng.choice((1, 1, 2, 3, 5)))) for _ in range(rng.choice((0, 1, 1, 2)))
    )
    fault = draw(rng, FAULTS)
    streamed = rng.random() < 0.15
    slow = rng.random() < 0.15
    return Plan(
        key=key,
        rounds=rounds,
        fault=fault,
        fault_round=rng.randrange(len(rounds) + 1),
        fault_times=rng.choice((1, 1, 1, LASTING)),
        words=rng.choice((1, 5, 20)),
        pace_s=0.05 if slow else 0.0,
        reasoning=rng.random() < 0.3,
        interrupt_s=rng.random() * 0.6 if rng.random() < 0.12 else None,
        extra=rng.choice(("queue", "steer", "reject")) if rng.random() < 0.12 else "",
        streamed=streamed,
        left=rng.choice((0, 2, 5)) if streamed else 0,
        repeated=not streamed and rng.random() < 0.1,
    )


def name_of(act: str) -> str:
    """
    The tool that a call is made to.
    """
    if act in ("late", "missing"):
        return "leave"
    return "nobody_offered" if act == "unknown" else "work"


def find_step(items: Sequence[dict[str, Any]]) -> tuple[dict[str, Any], int]:
    """
    The plan that a request's items ask for, and which of its rounds comes next (``len(rounds)`` is the closing text).
    """
    place = max(index for index, item in enumerate(items) if item.get("role") == "user")
    content = items[place]["content"]
    text = content if isinstance(content, str) else "".join(part.get("text", "") for part in content)
    plan: dict[str, Any] = json.loads(text.removeprefix(PREFIX))
    made = sum(item.get("type") == "function_call" for item in items[place:])
    for number, calls in enumerate(plan["rounds"]):
        if made <= 0:
            return plan, number
        made -= len(calls)
    return plan, len(plan["rounds"])
