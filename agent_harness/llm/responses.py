"""
OpenAI's Responses API, stateless: the whole transcript in each request, nothing stored there, encrypted reasoning asked
for and given back. Many servers imitate it; what they leave out or change is met in `responses_events`.
"""

from collections.abc import AsyncGenerator

from agent_harness.config import ProviderSettings
from agent_harness.llm.base import Delta, Request
from agent_harness.llm.responses_events import AnswerReader
from agent_harness.llm.responses_input import build_body, find_model
from agent_harness.llm.upstream import Upstream, with_retries
from agent_harness.llm.upstream_errors import CUT
from agent_harness.llm.upstream_retries import Batches, TextOutputs, one_by_one

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
        return one_by_one(
            self._text_outputs.ask(request, self._settings, lambda settings: self._try(request, settings))
        )

    async def aclose(self) -> None:
        """
        Close the connections; not those of an upstream that was handed in.
        """
        if self._owns_upstream:
            await self._upstream.aclose()

    def _try(self, request: Request, settings: ProviderSettings) -> Batches:
        body = build_body(request, settings)
        return with_retries(settings, lambda: self._ask(body, request.session_id))

    async def _ask(self, body: bytes, session_id: str) -> Batches:
        reader = AnswerReader()
        stream = await self._upstream.open("/responses", body, session_id)
        try:
            while (events := await stream.next()) is not None:
                yield reader.read_all(events)
                if reader.failure is not None:
                    raise reader.failure
                if reader.ended is not None:
                    # Before the last delta, since whoever reads it may go.
                    await stream.finish()
                    yield [reader.ended]
                    return
        finally:
            await stream.aclose()
        raise CUT.error("The model server's answer stopped before its end.")
