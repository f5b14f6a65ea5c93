import math
from typing import Any

import pytest

from app.engine.errors import OptionError
from app.engine.options import MAX_SEED, LoadOptions, parse_ids, parse_load_options, parse_options
from app.engine.sampling import Rules


def test_defaults_change_nothing() -> None:
    options = parse_options({})
    assert (options.prompt, options.ids, options.stop, options.sampler) == (None, None, (), "auto")
    assert options.rules == Rules()
    assert (options.logprobs, options.top) == (False, 0)


def test_none_counts_as_not_given() -> None:
    assert parse_options({"prompt": "a", "ids": None, "temperature": None}).prompt == "a"


def test_a_missing_seed_is_drawn_anew_and_small_enough_to_be_typed() -> None:
    seeds = {parse_options({}).seed for _ in range(20)}
    assert len(seeds) > 15
    assert all(0 <= seed < 2**32 for seed in seeds)


def test_everything_arrives() -> None:
    options = parse_options(
        {
            "ids": [1, 2],
            "max_new_tokens": 7,
            "temperature": 0,
            "top_k": 5,
            "top_p": 0.5,
            "min_p": 0.1,
            "repetition_penalty": 1.2,
            "seed": MAX_SEED,
            "stop": "end",
            "logprobs": 3,
            "sampler": "python",
        }
    )
    assert options.ids == (1, 2)
    assert options.max_new_tokens == 7
    assert options.rules == Rules(temperature=0, top_k=5, top_p=0.5, min_p=0.1, repetition_penalty=1.2)
    assert options.seed == MAX_SEED
    assert options.stop == ("end",)
    assert (options.logprobs, options.top) == (True, 3)


def test_logprobs_may_be_true_or_a_number() -> None:
    assert (parse_options({"logprobs": True}).logprobs, parse_options({"logprobs": True}).top) == (True, 0)
    assert not parse_options({"logprobs": False}).logprobs
    assert parse_options({"logprobs": 0}).logprobs


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("prompt", 5),
        ("ids", "abc"),
        ("ids", 5),
        ("ids", [1.5]),
        ("ids", [True]),
        ("ids", [-1]),
        ("max_new_tokens", 0),
        ("max_new_tokens", 1.5),
        ("max_new_tokens", "10"),
        ("max_new_tokens", True),
        ("max_new_tokens", 10**7),
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("temperature", "hot"),
        ("top_k", -1),
        ("top_k", 2.5),
        ("top_p", 1.1),
        ("min_p", -1),
        ("repetition_penalty", 0),
        ("seed", -1),
        ("seed", 2**53),
        ("seed", 0.5),
        ("stop", [""]),
        ("stop", [5]),
        ("stop", 5),
        ("stop", ["x"] * 17),
        ("logprobs", -1),
        ("logprobs", "all"),
        ("logprobs", 101),
        ("sampler", "dice"),
    ],
)
def test_a_bad_value_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(OptionError, match=f"^{name} ") as refused:
        parse_options({name: value})
    assert len(str(refused.value)) < 300


def test_an_unknown_option_is_refused_by_name() -> None:
    with pytest.raises(OptionError, match=r"'max_tokens'.*max_new_tokens"):
        parse_options({"max_tokens": 5})
    with pytest.raises(OptionError, match=r"'repo'.*model"):
        parse_load_options({"repo": "a/b"})


@pytest.mark.parametrize("raw", [None, "text", 5, ["a"]])
def test_options_must_be_an_object(raw: object) -> None:
    for parse in (parse_options, parse_load_options):
        with pytest.raises(OptionError, match="must be an object"):
            parse(raw)


def test_prompt_ids_and_messages_exclude_each_other() -> None:
    given: dict[str, Any] = {"prompt": "", "ids": [], "messages": [{"role": "user", "content": ""}]}
    for left_out in given:
        with pytest.raises(OptionError, match="not several"):
            parse_options({name: value for name, value in given.items() if name != left_out})


def test_messages_are_checked() -> None:
    talk = [{"role": "system", "content": ""}, {"role": "user", "content": "x" * 1000}]
    assert parse_options({"messages": talk}).messages == tuple(talk)
    bad: list[tuple[Any, str]] = [
        ([], "1 to 1000"),
        ("user: hi", "1 to 1000"),
        (talk * 501, "1 to 1000"),
        ([{"role": "user"}], "role, content"),
        ([{"role": "user", "content": "x", "name": "y"}], "role, content"),
        (["x"], "role, content"),
        ([{"role": "", "content": "x"}], "role must be"),
        ([{"role": "<|im_end|>", "content": "x"}], "role must be"),
        ([{"role": "user\n", "content": "x"}], "role must be"),
        ([{"role": 7, "content": "x"}], "role must be"),
        ([{"role": "user", "content": None}], "content must be"),
        ([{"role": "user", "content": "x" * 600_000}] * 2, "longer than"),
    ]
    for value, says in bad:
        with pytest.raises(OptionError, match=says):
            parse_options({"messages": value})


def test_ids_are_checked_against_the_vocabulary() -> None:
    assert parse_ids("ids", [0, 9], 10) == (0, 9)
    with pytest.raises(OptionError, match="from 0 to 9 for this model, not 10"):
        parse_ids("ids", [10], 10)


def test_load_options() -> None:
    assert parse_load_options({}) == LoadOptions()
    assert parse_load_options({"model": "a/b", "precision": "f16", "hub": None}).precision == "f16"
    for name, value in (("precision", "f64"), ("backend", "cuda"), ("limits", "none"), ("model", 5), ("hub", 1)):
        with pytest.raises(OptionError, match=f"^{name} must be"):
            parse_load_options({name: value})
