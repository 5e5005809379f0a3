"""
``agent-harness`` whose house-keeping comes four times a second, for memory: it forgets events (every minute otherwise)
and gives free memory back to the system (every 5 seconds otherwise) so soon that a measurement need not wait for
minutes. What is done is the same.
"""

__all__ = ["PERIOD_S"]

PERIOD_S = 0.25

if __name__ == "__main__":
    from agent_harness import memory
    from agent_harness.cli import main
    from agent_harness.engine import harness

    # Who renames them finds out here, and not by waiting for ever.
    assert hasattr(memory, "CARE_S")
    assert hasattr(harness, "SWEEP_S")
    memory.CARE_S = harness.SWEEP_S = PERIOD_S
    main()
