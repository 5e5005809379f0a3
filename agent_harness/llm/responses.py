"""
OpenAI's Responses API, stateless: the whole transcript in each request, nothing stored there, encrypted reasoning asked
for and given back. Many servers imitate it; what they leave out or change is met in `responses_events`.
"""

from collections.abc import AsyncGenerator, Sequence

from agent_harness.config import ProviderSettings
from agent_harness.llm.base import Delta, Request
from agent_harness.llm.responses_events import AnswerReader
from agent_harness.llm.responses_input import build_body, find_model
from agent_harness.llm.upstream import AnswerStream, Upstream
from agent_harness.llm.upstream_errors import CUT
from agent_harness.llm.upstream_retries import TextOutputs, ask_until_told

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
        return ask_until_told(
            request, self._settings, self._text_outputs, lambda settings: self._ask(request, settings)
        )

    async def aclose(self) -> None:
        """
        Close the connections; not those of an upstream that was handed in.
        """
        if self._owns_upstream:
            await self._upstream.aclose()

    async def _ask(self, request: Request, settings: ProviderSettings) -> "ResponsesAnswer":
        body = build_body(request, settings)
        return ResponsesAnswer(await self._upstream.open("/responses", body, request.session_id))


class ResponsesAnswer:
    """
    One answer: an `agent_harness.llm.upstream_retries.Attempt`.
    """

    __slots__ = ("_over", "_reader", "_stream")

    def __init__(self, stream: AnswerStream) -> None:
        self._stream, self._reader = stream, AnswerReader()
        self._over = False

    async def next(self) -> Sequence[Delta] | None:
        """
        The next deltas; `Ended` alone. The stream is let go of before that, since whoever reads it may go.

        Raises:
            UpstreamError: the answer failed, or stopped before its end.
        """
        reader = self._reader
        if self._over:
            return None
        if reader.failure is not None:
            raise reader.failure
        if reader.ended is not None:
            self._over = True
            await self._stream.finish()
            return [reader.ended]
        events = await self._stream.next()
        if events is None:
            raise CUT.error("The model server's answer stopped before its end.")
        return reader.read_all(events)

    async def aclose(self) -> None:
        """
        Let go of the stream.
        """
        await self._stream.aclose()
