"""
The agent's tests: `pytest examples/test_your_agent`. The fixtures come with agent-harness; there is nothing to import.
"""

import asyncio

import pytest
from agent import AgentError, answer_question

ORDERS = {7: "shipped on Monday"}


async def test_the_answer_is_made_of_the_order_that_was_looked_up(harness, mock_llm):
    mock_llm.call("look_up_order", {"number": 7}, call_id="call_1")
    mock_llm.reply("Your order was shipped on Monday.")

    answer = await answer_question(harness, "Where is order 7?", ORDERS.__getitem__)

    assert answer == "Your order was shipped on Monday."
    first, second = mock_llm.requests
    assert first.tools == ["look_up_order"]
    assert "Look an order up" in first.body["instructions"]
    assert second.outputs == {"call_1": "shipped on Monday"}


async def test_an_order_that_is_not_there_is_told_to_the_model(harness, mock_llm):
    mock_llm.call("look_up_order", {"number": 8}, call_id="call_1")
    mock_llm.reply("There is no such order.")

    await answer_question(harness, "Where is order 8?", ORDERS.__getitem__)

    assert mock_llm.requests[-1].outputs == {"call_1": "Error: KeyError: 8"}


async def test_two_orders_are_looked_up_in_one_answer(harness, mock_llm):
    mock_llm.call("look_up_order", {"number": 7}, call_id="a").call("look_up_order", {"number": 9}, call_id="b")
    mock_llm.reply("Both are on their way.")

    await answer_question(harness, "Where are 7 and 9?", lambda number: f"order {number} is packed")

    assert mock_llm.requests[-1].outputs == {"a": "order 7 is packed", "b": "order 9 is packed"}


async def test_a_model_server_out_of_order_gives_the_user_a_friendly_error(harness, mock_llm):
    mock_llm.fail(429, message="slow down")

    with pytest.raises(AgentError, match="try again later"):
        await answer_question(harness, "Where is order 7?", ORDERS.__getitem__)


async def test_two_questions_are_answered_at_the_same_time(harness, mock_llm):
    slow = mock_llm.block().reply("slow")
    asked = asyncio.create_task(answer_question(harness, "first", ORDERS.__getitem__))
    await slow.parked()

    mock_llm.reply("quick")
    assert await answer_question(harness, "second", ORDERS.__getitem__) == "quick"

    slow.release()
    assert await asked == "slow"
