"""
OpenAI's Responses API, stateless: the whole transcript in each request, nothing stored there, encrypted reasoning asked
for and given back. Many servers imitate it; what they leave out or change is met in `responses_events`.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing

import attrs

from agent_harness.config import ProviderSettings
from agent_harness.llm.base import Delta, Request, RequestCache
from agent_harness.llm.responses_events import AnswerReader
from agent_harness.llm.responses_input import build_body
from agent_harness.llm.upstream import Upstream, finish, with_retries
from agent_harness.llm.upstream_errors import CUT
from agent_harness.llm.upstream_retries import has_output_parts, with_text_outputs

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
        return build_body(request, self._settings)

    def stream(self, request: Request) -> AsyncGenerator[Delta, None]:
        """
        Answer *request*, as the contract in `agent_harness.llm.base` says.

        Raises:
            ModelError: the call failed.
        """
        body = self.body(request)
        deltas = self._try(body, request)
        if self._settings.tool_output_parts and has_output_parts(request):
            return with_text_outputs(
                self._settings, lambda: deltas, lambda: self._try(self._text_body(request), request)
            )
        return deltas

    async def aclose(self) -> None:
        """
        Close the connections.
        """
        await self._upstream.aclose()

    def _text_body(self, request: Request) -> bytes:
        settings = attrs.evolve(self._settings, tool_output_parts=False)
        return build_body(attrs.evolve(request, cache=RequestCache()), settings)

    def _try(self, body: bytes, request: Request) -> AsyncGenerator[Delta, None]:
        return with_retries(self._settings, lambda: self._ask(body, request.session_id))

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
