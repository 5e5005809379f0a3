"""
Frozen values with some fields changed.
"""

import attrs
import pytest

from agent_harness.protocol.changed import changed
from agent_harness.protocol.items import FunctionCall, InputText, Message, Provenance, Reasoning, Usage
from agent_harness.protocol.turns import Turn

VALUES = [
    Message(id="msg_1", role="user", content=(InputText("a"),), origin="client", status="queued", created_at=1),
    FunctionCall(
        id="fc_1",
        call_id="c",
        name="f",
        arguments="{}",
        status="action_required",
        created_at=1,
        provenance=Provenance("p", "m", {"id": "x"}),
    ),
    Reasoning(id="rs_1", status="in_progress", created_at=1),
    Turn(id="resp_1", status="queued", created_at=1, usage=Usage(1, 2, 3)),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_a_changed_value_is_what_attrs_would_make(value: Message | FunctionCall | Reasoning | Turn) -> None:
    assert changed(value, status="completed", id="other") == attrs.evolve(value, status="completed", id="other")
    assert changed(value) == value and changed(value) is not value


def test_a_field_that_is_none_is_set_to_none() -> None:
    call = VALUES[1]
    assert isinstance(call, FunctionCall)
    assert changed(call, provenance=None).provenance is None
