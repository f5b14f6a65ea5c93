"""The autotuner: picks the fastest variant, remembers it, and can be told otherwise."""

import pytest

from tests.browser.lab_page import Lab

pytestmark = pytest.mark.browser


def test_the_fastest_variant_is_taken_and_remembered(lab: Lab) -> None:
    result = lab.call("tuning", "choose", times={"lanes": 0.5, "matvec_threads": 0.8}, n_layer=3)
    assert result["lanes"] == 64
    assert result["same"]
    assert result["source"] == ["measured", "remembered"]
    assert result["measured"][0] == result["measured"][1] > 3
    assert result["shares"]["lanes=64"] == 0.5
    # another model is measured anew
    assert lab.call("tuning", "choose", times={}, n_layer=4)["source"][0] == "measured"


def test_what_is_within_noise_changes_nothing(lab: Lab) -> None:
    result = lab.call("tuning", "choose", times={"lanes": 0.99}, n_layer=5)
    assert result["lanes"] != 64


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("lanes=64", 64),
        ("", 32),
        ("lanes = 8, tile=32", 8),
        ("nonsense=1", "the names are"),
        ("lanes=x", "the names are"),
        ("lanes=24", "powers of two"),
        ("lanes=256", "powers of two"),
        ("tile=33", "multiple"),
        ("subgroup_size=64", "own"),
    ],
)
def test_a_given_tuning_is_checked(lab: Lab, text: str, wanted: int | str) -> None:
    result = lab.call("tuning", "parse", text=text)
    assert result == wanted if isinstance(wanted, int) else wanted in result


def test_software_adapters_are_left_alone(lab: Lab, lab_url: str) -> None:
    result = lab.call("tuning", "on_a_model", url=f"{lab_url}fixtures/parity/plain-f32/")
    assert result == {"source": "default", "finite": True}
