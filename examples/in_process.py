"""
An agent in this process, without HTTP: a Python function is its tool.

    python examples/in_process.py

With OPENAI_API_KEY set a real model answers; without it the built-in demo model, which needs neither key nor network.
"""

import asyncio

from agent_harness import Harness, load_settings, open_harness
from agent_harness.wiring import open_demo_harness


def look_up_widget(widget_id: int) -> dict[str, str]:
    """
    Look up a widget and return its color.

    Args:
        widget_id: the widget's id, e.g. 42.
    """
    return {"widget": f"number {widget_id}", "color": "teal"}


def open_either() -> Harness:
    settings = load_settings()
    return open_harness(settings) if settings.providers[0].key() else open_demo_harness(settings)


async def main() -> None:
    async with open_either() as harness:
        session = await harness.create_session({"instructions": "Answer in one sentence."})
        async for event in session.run("What color is widget 42?", tools=[look_up_widget]):
            if event.type == "response.output_text.delta":
                print(event.delta, end="", flush=True)
        print()
        # The second turn offers no tool: the session remembers.
        async for event in session.run("What color was it?"):
            if event.type == "response.output_text.delta":
                print(event.delta, end="", flush=True)
        print()


if __name__ == "__main__":
    asyncio.run(main())
