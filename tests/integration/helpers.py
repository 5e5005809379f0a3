"""
What journeys do with a turn; see ``agent_harness.testing.journey``.
"""

from agent_harness.testing.journey import all_message_text, failure_detail, run_turn

__all__ = ["all_message_text", "failure_detail", "run_turn"]
