"""ipywidgets: what code says on comms reaches the front end, and what the front end says reaches the code."""

from __future__ import annotations

import pytest

from .conftest import type_of

pytest.importorskip("ipywidgets", reason="needs ipywidgets: the dependency group `clients`")

SLIDER = """
import ipywidgets
slider = ipywidgets.IntSlider(value=3, min=0, max=10)
slider.observe(lambda change: print("moved to", change.new), names="value")
slider
"""


def of_kind(messages, kind):
    return [message for message in messages if type_of(message) == kind]


@pytest.mark.parametrize("v1", [False, True], ids=["default", "v1"])
def test_a_slider_is_shown_and_moved(gateway, v1):
    channels = gateway.connect(gateway.start(), v1=v1)
    messages = channels.run(SLIDER)
    (result,) = of_kind(messages, "execute_result")
    view = result["content"]["data"]["application/vnd.jupyter.widget-view+json"]
    opened = {message["content"]["comm_id"]: message for message in of_kind(messages, "comm_open")}
    slider = opened[view["model_id"]]
    state = slider["content"]["data"]["state"]

    assert slider["content"]["target_name"] == "jupyter.widget"
    assert (state["value"], state["max"]) == (3, 10)
    assert slider["metadata"]["version"]

    listed = channels.ask("comm_info_request", {"target_name": "jupyter.widget"})
    assert set(listed["comms"]) == set(opened)

    data = {"method": "update", "state": {"value": 7}, "buffer_paths": []}
    moved = channels.answers(channels.send("comm_msg", {"comm_id": view["model_id"], "data": data}))
    assert [message["content"]["text"] for message in of_kind(moved, "stream")] == ["moved to 7\n"]
    assert "7" in str(of_kind(channels.run("slider.value"), "execute_result")[0]["content"]["data"])


@pytest.mark.parametrize("v1", [False, True], ids=["default", "v1"])
def test_binary_parts_go_both_ways(gateway, v1):
    channels = gateway.connect(gateway.start(), v1=v1)
    messages = channels.run(
        "import ipywidgets\npicture = ipywidgets.Image(value=b'\\x00\\xff\\x01')\npicture"
    )
    (picture,) = [message for message in of_kind(messages, "comm_open") if message["buffers"]]
    assert picture["buffers"] == [b"\x00\xff\x01"]
    assert picture["content"]["data"]["buffer_paths"] == [["value"]]

    data = {"method": "update", "state": {}, "buffer_paths": [["value"]]}
    comm_id = picture["content"]["comm_id"]
    channels.answers(channels.send("comm_msg", {"comm_id": comm_id, "data": data}, buffers=[b"\x02\x00\xfe"]))
    (value,) = of_kind(channels.run("bytes(picture.value)"), "execute_result")
    assert value["content"]["data"]["text/plain"] == repr(b"\x02\x00\xfe")


def test_a_front_end_opens_a_comm(channels):
    channels.run(
        "from comm import get_comm_manager\n"
        "def opened(comm, message):\n"
        "    comm.on_msg(lambda said: comm.send({'echo': said['content']['data']}))\n"
        "get_comm_manager().register_target('echo', opened)"
    )
    channels.answers(channels.send("comm_open", {"comm_id": "mine", "target_name": "echo", "data": {}}))
    answers = channels.answers(channels.send("comm_msg", {"comm_id": "mine", "data": {"n": 1}}))
    assert [message["content"] for message in of_kind(answers, "comm_msg")] == [
        {"comm_id": "mine", "data": {"echo": {"n": 1}}}
    ]
    channels.answers(channels.send("comm_close", {"comm_id": "mine", "data": {}}))
    assert channels.ask("comm_info_request", {})["comms"] == {}
