"""
``python -m agent_harness``.
"""

from agent_harness.cli import main

if __name__ == "__main__":
    main()
