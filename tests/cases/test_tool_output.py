"""
Outputs of tools, from the client's result to the model's request.
"""

import json
from typing import Any

import pytest

from agent_harness.testing.strict import Dialect
from tests.cases.rig import DIALECTS, Case, calling

both = pytest.mark.parametrize("dialect", DIALECTS)
ANSWER = {"text": "done"}
PIXEL = "data:image/png;base64,iVBORw0KGgo="
PARTS = [{"type": "input_text", "text": "t"}, {"type": "input_image", "image_url": PIXEL}]


async def park(case: Case) -> None:
    await case.send()
    await case.waiting()


def result(call_id: str, output: Any) -> dict[str, Any]:
    return {"type": "function_call_output", "data": {"call_id": call_id, "output": output}}


@both
async def test_an_image_in_an_output_is_shown_as_the_dialect_can(play: Any, dialect: Dialect) -> None:
    """
    B061: parts in the Responses API; in Chat Completions text where the output stands, and the image in a user message
    directly behind the outputs. The image's data stands in the request once, and only as an image.
    """
    case = await play(dialect, calling("c1"), ANSWER, ANSWER)
    await park(case)
    await case.result("c1", PARTS)
    assert await case.rests() == "idle"
    assert (await case.says())["status"] == "completed"
    for request in (await case.requests())[1:]:
        assert request.status == 200
        [(call_id, output)] = request.of("output")
        assert call_id == "c1"
        assert json.dumps(request.body).count(PIXEL) == 1
        if dialect == "responses":
            assert output == PARTS
            continue
        assert output == "t\n[image 1 of the output of c1: see the user message below]"
        shown = request.said[request.said.index(("output", "c1", output)) + 1]
        assert shown == (
            "user",
            [
                {"type": "text", "text": "[image 1 of the output of c1]"},
                {"type": "image_url", "image_url": {"url": PIXEL}},
            ],
        )


@both
async def test_a_server_that_takes_only_text_is_never_sent_an_image_once_it_is_set_so(
    play: Any, dialect: Dialect
) -> None:
    """
    B061, B062: with ``tool_output_parts = false`` the model reads a line in the image's place.
    """
    strict = {"refuse_output_parts": True}
    case = await play(dialect, calling("c1"), ANSWER, ANSWER, provider={"tool_output_parts": False}, strict=strict)
    await park(case)
    await case.result("c1", PARTS)
    assert await case.rests() == "idle"
    assert (await case.says())["status"] == "completed"
    for request in (await case.requests())[1:]:
        [(_, output)] = request.of("output")
        assert output.startswith("t\n[")
        assert "base64" not in json.dumps(request.body)


@both
async def test_a_server_that_refuses_an_image_is_asked_again_with_text(play: Any, dialect: Dialect) -> None:
    """
    B062, without that setting: the request that is refused is sent once more without the image, which is told as a
    retry; from then on the session's requests go out so, and what ``GET …/request`` shows is what is sent.
    """
    refusal = {"error": "images are not supported", "status_code": 400}
    case = await play(dialect, calling("c1"), refusal, ANSWER, calling("c2"), ANSWER)
    await park(case)
    await case.result("c1", PARTS)
    assert await case.rests() == "idle"
    assert PIXEL not in json.dumps(await case.request_body())
    await park(case)
    await case.result("c2", PARTS)
    assert await case.rests() == "idle"
    requests = await case.requests()
    assert [request.status for request in requests] == [200, 400, 200, 200, 200]
    assert [PIXEL in json.dumps(request.body) for request in requests] == [False, True, False, False, False]
    assert [output[:3] for _, output in requests[-1].of("output")] == ["t\n["] * 2
    (retry,) = [frame.data for frame in case.stream.frames if frame.event == "response.retrying"]
    assert "images are not supported" in retry["reason"]


@both
async def test_a_refusal_that_has_nothing_to_do_with_the_image_is_told_once(play: Any, dialect: Dialect) -> None:
    """
    B062: when the request without the image is refused too, the turn fails with the first refusal's words.
    """
    refusals = [{"error": words, "status_code": 400} for words in ("first words", "second words")]
    case = await play(dialect, calling("c1"), *refusals, ANSWER)
    await park(case)
    await case.result("c1", PARTS)
    assert await case.rests() == "failed"
    error = (await case.snapshot())["last_error"]
    assert error["code"] == "provider_rejected"
    assert "first words" in error["message"]
    assert (await case.says())["status"] == "completed"


async def test_a_server_that_takes_no_lists_serves_the_session(play: Any) -> None:
    """
    B062, to the letter: any output that is a list is refused by the server itself.
    """
    case = await play("responses", calling("c1"), ANSWER, ANSWER, strict={"refuse_output_parts": True})
    await park(case)
    await case.result("c1", PARTS)
    assert await case.rests() == "idle"
    assert (await case.says())["status"] == "completed"
    assert [request.status for request in await case.requests()] == [200, 400, 200, 200]


@both
async def test_a_large_output_is_taken_and_one_over_the_limit_leaves_its_call_open(play: Any, dialect: Dialect) -> None:
    """
    B066: 1.5 MiB passes; a string over 10,000,000 characters and a body over 16 MiB are refused with a JSON 413 that
    names the limit.
    """
    case = await play(dialect, calling("c1", "c2"), ANSWER)
    await park(case)
    large = "x" * 1_572_864
    await case.result("c1", large)
    path = f"{case.path}/events"
    for length, limit in ((10_000_001, "10,000,000"), (17_000_000, "16777216")):
        answer = await case.api.ask("POST", path, json=result("c2", "y" * length))
        assert (answer.status, answer.body["error"]["code"]) == (413, "request_too_large")
        assert limit.replace(",", "") in answer.body["error"]["message"].replace(",", "")
        assert [action["call_id"] for action in (await case.snapshot())["required_actions"]] == ["c2"]
    await case.result("c2", "small")
    assert await case.rests() == "idle"
    assert (await case.requests())[1].of("output") == [("c1", large), ("c2", "small")]


@both
async def test_nul_is_replaced_in_everything_a_client_sends_and_the_rest_is_kept(play: Any, dialect: Dialect) -> None:
    """
    B068: upstream refuses any NUL; tabs, line ends and escape codes stay.
    """
    nasty, kept = "a\0b\x1b[31mred\t\r\n", "a\ufffdb\x1b[31mred\t\r\n"
    wide, kept_wide = f"\u00e9{nasty}", f"\u00e9{kept}"
    case = await play(dialect, calling("c1", "c2"), ANSWER, strict={"refuse_nul": True}, agent={"instructions": nasty})
    await case.send(wide)
    await case.waiting()
    await case.result("c1", nasty)
    await case.result("c2", [{"type": "input_text", "text": wide}])
    assert await case.rests() == "idle"
    request = (await case.requests())[1]
    assert request.status == 200
    assert request.of("user") == [(kept_wide,)]
    first, second = (output for _, output in request.of("output"))
    assert first == kept
    assert second == (kept_wide if dialect == "chat" else [{"type": "input_text", "text": kept_wide}])


@both
@pytest.mark.parametrize("output", ['{"x":NaN}', "NaN", '[{"type":"input_text","text":Infinity}]', "-Infinity"])
async def test_nan_is_refused_and_the_call_stays_open(play: Any, dialect: Dialect, output: str) -> None:
    """
    B069: 400 ``invalid_json``. That every frame is strict JSON is checked by the reader of each test here.
    """
    case = await play(dialect, calling("c1"), ANSWER)
    await park(case)
    body = f'{{"type":"function_call_output","data":{{"call_id":"c1","output":{output}}}}}'
    headers = {"Content-Type": "application/json"}
    await case.api.refused(
        "POST", f"{case.path}/events", status=400, code="invalid_json", data=body.encode(), headers=headers
    )
    assert [action["call_id"] for action in (await case.snapshot())["required_actions"]] == ["c1"]
    await case.result("c1", "1")
    assert await case.rests() == "idle"
    assert (await case.requests())[1].of("output") == [("c1", "1")]


@both
async def test_an_error_reaches_the_model_as_one_and_the_turn_goes_on(play: Any, dialect: Dialect) -> None:
    """
    B071: a result that is an error answers its call, an empty one too.
    """
    case = await play(dialect, calling("c1", "c2", "c3"), ANSWER)
    await park(case)
    await case.result("c1", "boom", is_error=True)
    await case.result("c2", "", is_error=True)
    await case.result("c3", PARTS[:1], is_error=True)
    assert await case.rests() == "idle"
    outputs = dict((await case.requests())[1].of("output"))
    assert (outputs["c1"], outputs["c2"]) == ("Error: boom", "Error: ")
    if dialect == "chat":
        assert outputs["c3"] == "Error: t"
    else:
        assert [part["text"] for part in outputs["c3"]] == ["Error: ", "t"]


@both
async def test_an_empty_output_is_an_answer_and_the_next_one_arrives(play: Any, dialect: Dialect) -> None:
    """
    B072: ``""`` and null are both the empty string for the model, never null.
    """
    case = await play(dialect, calling("c1", "c2"), calling("c3"), ANSWER, strict={"refuse_null_content": True})
    await park(case)
    await case.result("c1", "")
    await case.result("c2", None)
    await case.waiting()
    await case.result("c3", "real")
    assert await case.rests() == "idle"
    requests = await case.requests()
    assert [request.status for request in requests] == [200] * 3
    assert requests[2].of("output") == [("c1", ""), ("c2", ""), ("c3", "real")]
