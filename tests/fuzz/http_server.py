"""
The server that ``scripts/fuzz-http`` lets schemathesis at: the demo's model, one key, and turns that end soon, so that
no stream stays open.

    python tests/fuzz/http_server.py KEY
"""

import asyncio
import logging
import sys

from agent_harness.config import Limits
from agent_harness.engine.harness import Harness
from agent_harness.llm.scripted import DemoModel
from agent_harness.server import Access, make_app
from agent_harness.server.auth import LOOPBACK_HOSTS
from agent_harness.serving import serve_app

LIMITS = Limits(turn_s=1.0, ping_s=0.5)


def tell(url: str) -> None:
    """
    The first line of output is the server's URL.
    """
    sys.stdout.write(f"{url}\n")
    sys.stdout.flush()


async def main(key: str) -> None:
    logging.basicConfig(level=logging.WARNING)
    async with Harness({"default": DemoModel()}, limits=LIMITS) as harness:
        app = make_app(harness, Access(keys={"fuzz": key}, hosts=LOOPBACK_HOSTS))
        await serve_app(app, "127.0.0.1", 0, on_listening=tell)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
