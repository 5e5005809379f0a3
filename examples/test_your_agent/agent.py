"""
A small agent: it answers questions about orders, with one tool.
"""

from collections.abc import Callable

from agent_harness import Harness

__all__ = ["AgentError", "answer_question"]

INSTRUCTIONS = "You answer questions about orders. Look an order up before you speak of it."


class AgentError(Exception):
    """
    The agent could not answer.
    """


async def answer_question(harness: Harness, question: str, find_order: Callable[[int], str]) -> str:
    """
    Answer one question; *find_order* gives an order's state.

    Raises:
        AgentError: the turn failed; the message is for the user.
    """

    def look_up_order(number: int) -> str:
        """
        Look up the state of an order.

        Args:
            number: the order's number.
        """
        return find_order(number)

    session = await harness.create_session({"instructions": INSTRUCTIONS})
    said = ""
    async for event in session.run(question, tools=[look_up_order]):
        if event.type == "response.output_text.delta":
            said += event.delta
        elif event.type == "response.failed":
            raise AgentError("I cannot answer now. Please try again later.")
    return said
