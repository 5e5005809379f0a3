"""
OpenAI's Responses API, stateless: the whole transcript in each request, nothing stored there, encrypted reasoning asked
for and given back. Many servers imitate it; what they leave out or change is met in `responses_events`.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from agent_harness.config import ProviderSettings
from agent_harness.llm.base import Delta, Request
from agent_harness.llm.responses_events import AnswerReader
from agent_harness.llm.responses_input import build_body, find_model
from agent_harness.llm.upstream import Upstream, finish, with_retries
from agent_harness.llm.upstream_errors import CUT
from agent_harness.llm.upstream_retries import TextOutputs

__all__ = ["ResponsesModel"]


class ResponsesModel:
    """
    A `Model` over ``POST {base_url}/responses``.

    Args:
        settings: the provider.
        upstream: its connections, if something else shares them; else they are made here.
    """

    def __init__(self, settings: ProviderSettings, upstream: Upstream | None = None) -> None:
        self._settings = settings
        self._upstream = Upstream(settings) if upstream is None else upstream
        self._owns_upstream = upstream is None
        self._text_outputs = TextOutputs()

    @property
    def default_model(self) -> str | None:
        """
        What a request without a model asks for.
        """
        return self._settings.model

    def body(self, request: Request) -> bytes:
        """
        The JSON body that `stream` sends.

        Raises:
            ModelError: no model is named.
        """
        return build_body(request, self._text_outputs.settings_for(request, self._settings))

    def stream(self, request: Request) -> AsyncGenerator[Delta, None]:
        """
        Answer *request*, as the contract in `agent_harness.llm.base` says.

        Raises:
            ModelError: the call failed.
        """
        find_model(request, self._settings)
        return self._text_outputs.ask(request, self._settings, lambda settings: self._try(request, settings))

    async def aclose(self) -> None:
        """
        Close the connections; not those of an upstream that was handed in.
        """
        if self._owns_upstream:
            await self._upstream.aclose()

    def _try(self, request: Request, settings: ProviderSettings) -> AsyncGenerator[Delta, None]:
        body = build_body(request, settings)
        return with_retries(settings, lambda: self._ask(body, request.session_id))

    async def _ask(self, body: bytes, session_id: str) -> AsyncGenerator[Delta, None]:
        reader = AnswerReader()
        async with aclosing(self._upstream.events("/responses", body, session_id)) as events:
            async for name, event in events:
                for delta in reader.read(name, event):
                    yield delta
                if reader.ended is not None:
                    # Before the last delta, since whoever reads it may go.
                    await finish(events)
                    yield reader.ended
                    return
        raise CUT.error("The model server's answer stopped before its end.")
