import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from app.engine import backends
from app.engine.backends import NumpyBackend, WebGpuBackend, open_webgpu
from app.engine.engine import Engine
from app.engine.errors import (
    BusyError,
    CancelledError,
    DeviceLostError,
    GpuUnavailableError,
    ModelFileError,
    NotFoundError,
    NotLoadedError,
    OptionError,
    UnsupportedModelError,
)
from app.engine.models.config import Config
from app.engine.ops.eager import EagerRunner, NumpySink
from app.engine.runner import Runner
from app.engine.weights.precision import Mixed
from tests.engine.weights.http_transport import HttpTransport
from tests.hub_double import COMMIT, Hub, hub_double
from tests.models import STORY, write_story, write_tiny

PARAMETERS = 289_664


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """me/tiny, me/other (the same with other weights), me/half (f16) and me/story."""
    folder = tmp_path_factory.mktemp("hub")
    write_tiny(folder / "me" / "tiny")
    write_tiny(folder / "me" / "other", seed=1)
    write_tiny(folder / "me" / "half", dtype="F16")
    write_story(folder / "me" / "story")
    return folder


@pytest.fixture(scope="module")
def running_hub(models: Path) -> Iterator[Hub]:
    with hub_double(models) as running:
        yield running


@pytest.fixture
def hub(running_hub: Hub, models: Path) -> Hub:
    running_hub.reset(models)
    return running_hub


class Events:
    """What an engine emitted."""

    def __init__(self) -> None:
        self.all: list[tuple[str, dict[str, Any]]] = []

    def __call__(self, event: str, data: dict[str, Any]) -> None:
        self.all.append((event, data))

    def of(self, event: str) -> list[dict[str, Any]]:
        return [data for name, data in self.all if name == event]

    def states(self) -> list[str]:
        return [data["state"] for data in self.of("status")]


@pytest.fixture
async def transport() -> AsyncIterator[HttpTransport]:
    made = HttpTransport()
    yield made
    await made.client.aclose()


@pytest.fixture
def events() -> Events:
    return Events()


@pytest.fixture
def engine(transport: HttpTransport, events: Events) -> Engine:
    return Engine(emit=events, transport=transport, site=None)


@pytest.fixture
def tiny(hub: Hub) -> dict[str, Any]:
    return {"model": "me/tiny", "hub": hub.url}


async def test_info_tells_what_there_is(engine: Engine) -> None:
    info = await engine.info()
    assert info["backend"] == "numpy"
    assert info["gpu"] is None
    assert "only there in a browser" in info["reason"]
    assert info["numpy"] == np.__version__


async def test_load_reports_the_model(engine: Engine, events: Events, tiny: dict[str, Any]) -> None:
    report = await engine.load(tiny)
    assert report.pop("seconds") > 0
    assert report.pop("memory")["weights"] == 4 * PARAMETERS
    assert report.pop("heap") is None
    assert report.pop("downloaded") > 4 * PARAMETERS
    assert report == {
        "model": "me/tiny",
        "revision": "main",
        "commit": COMMIT,
        "family": "gpt2",
        "parameters": PARAMETERS,
        "precision": "f32",
        "precisions": {"f32": 8192 * 32 + 2 * 12 * 32 * 32},
        "chat": False,
        "backend": "numpy",
        "tuning": None,
        "context": 64,
        "vocab": 8192,
        "cached": 0,
        "storage": {"kept": False, "reason": None},
        "peaks": {"files": 4 * PARAMETERS, "gpu": None},
    }
    assert events.states() == ["loading", "loading", "ready"]
    progress = events.of("progress")
    assert progress[-1]["loaded"] == progress[-1]["total"] == 4 * PARAMETERS
    assert {data["model"] for data in progress} == {"me/tiny"}
    assert events.of("status")[-1]["model"]["model"] == "me/tiny"
    assert engine.memory()["weights"] == 4 * PARAMETERS


async def test_the_story_model_writes_what_its_reference_says(engine: Engine, hub: Hub) -> None:
    reference = json.loads((STORY / "reference.json").read_text())["prompts"]
    await engine.load({"model": f"{hub.url}me/story/resolve/main"})
    for prompt in reference:
        result = await engine.complete({"prompt": prompt["text"], "temperature": 0, "max_new_tokens": 24})
        assert result["prompt_ids"] == prompt["ids"]
        assert result["ids"] == prompt["greedy_ids"]
        assert result["text"] == prompt["greedy_text"]


async def test_complete_and_stream_agree(engine: Engine, tiny: dict[str, Any]) -> None:
    await engine.load(tiny)
    options = {"prompt": "Once upon a time", "max_new_tokens": 6, "seed": 3, "logprobs": 2}
    result = await engine.complete(options)
    streamed = [event async for event in engine.stream(options)]
    *groups, last = streamed
    assert isinstance(last, dict)
    tokens = [token for group in groups if isinstance(group, list) for token in group]
    measured = {"timings", "logprobs", "top"}  # the second run reads less of the prompt anew, and rounds otherwise
    assert {k: v for k, v in last.items() if k not in measured} == {
        k: v for k, v in result.items() if k not in measured
    }
    assert last["logprobs"] == pytest.approx(result["logprobs"], abs=1e-4)
    assert [token["id"] for token in tokens] == result["ids"]
    assert "".join(token["text"] for token in tokens) == result["text"]
    assert [token["logprob"] for token in tokens] == last["logprobs"]
    assert [token["top"] for token in tokens] == last["top"]
    assert set(result["top"][0][0]) == {"id", "text", "logprob"}
    assert result["top"][0][0]["text"] == engine.decode([result["top"][0][0]["id"]])
    json.dumps(streamed)  # plain data all through


async def test_logits_are_those_that_generation_sees(engine: Engine, tiny: dict[str, Any]) -> None:
    await engine.load(tiny)
    logits = await engine.logits({"ids": [5, 6, 7]})
    assert logits.shape == (8192,)
    result = await engine.complete({"ids": [5, 6, 7], "temperature": 0, "max_new_tokens": 1, "logprobs": True})
    assert result["ids"] == [int(np.argmax(logits))]
    exact = logits.astype(np.float64)
    log_softmax = exact.max() - (exact.max() + np.log(np.exp(exact - exact.max()).sum()))
    assert result["logprobs"][0] == pytest.approx(log_softmax, abs=1e-6)


@pytest.mark.parametrize("given", [{}, {"ids": []}, {"ids": [8192]}, {"ids": [1] * 65}, {"ids": [1], "more": 1}])
async def test_logits_refuses_what_it_cannot_compute(engine: Engine, tiny: dict[str, Any], given: Any) -> None:
    await engine.load(tiny)
    with pytest.raises(OptionError, match="ids"):
        await engine.logits(given)


async def test_text_and_ids(engine: Engine, tiny: dict[str, Any]) -> None:
    await engine.load(tiny)
    text = "A fox 🎉<|endoftext|>"
    ids = engine.encode(text)
    assert 8191 not in ids
    assert engine.decode(ids) == text
    tokens = engine.tokens("A fox")
    assert [token["id"] for token in tokens] == engine.encode("A fox")
    assert "".join(token["text"] for token in tokens) == "A fox"
    from_a_page: list[Any] = [5, None, {"role": "user"}, ["a"]]
    for bad in from_a_page:
        with pytest.raises(OptionError, match=r"text must be a string|messages"):
            engine.encode(bad)
    with pytest.raises(OptionError, match="ids"):
        engine.decode([9000])


async def test_without_a_model_every_call_says_so(engine: Engine) -> None:
    with pytest.raises(NotLoadedError, match="Load one"):
        await engine.complete({})
    with pytest.raises(NotLoadedError):
        await engine.logits({"ids": [1]})
    with pytest.raises(NotLoadedError):
        engine.encode("a")
    assert engine.memory() == {}
    engine.stop()
    await engine.unload()


async def test_one_thing_at_a_time(engine: Engine, tiny: dict[str, Any]) -> None:
    await engine.load(tiny)
    async with aclosing(engine.stream({"prompt": "a", "max_new_tokens": 20})) as events:
        await anext(events)
        with pytest.raises(BusyError, match="generating"):
            await engine.complete({"prompt": "b"})
        with pytest.raises(BusyError):
            await engine.logits({"ids": [1]})
        with pytest.raises(BusyError):
            await engine.load(tiny)
        assert engine.encode("a")  # what needs no cache works
    result = await engine.complete({"prompt": "b", "max_new_tokens": 2})
    assert len(result["ids"]) == 2


async def test_stop_ends_a_generation_and_the_next_one_works_at_once(engine: Engine, tiny: dict[str, Any]) -> None:
    await engine.load(tiny)
    groups = 0
    async for event in engine.stream({"prompt": "a", "max_new_tokens": 40}):
        if isinstance(event, dict):
            assert (event["finish"], len(event["ids"])) == ("cancelled", 3)
        else:
            groups += 1
            if groups == 3:
                engine.stop()
    assert groups == 3
    assert (await engine.complete({"prompt": "a", "max_new_tokens": 3}))["finish"] == "length"


async def test_a_failed_generation_leaves_the_engine_usable(engine: Engine, tiny: dict[str, Any]) -> None:
    await engine.load(tiny)
    with pytest.raises(OptionError, match="temperature"):
        await engine.complete({"temperature": -1})
    assert (await engine.complete({"prompt": "a", "max_new_tokens": 1}))["ids"]


async def test_another_model_frees_the_one_before(
    engine: Engine, events: Events, tiny: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    freed: list[int] = []
    free = EagerRunner.free

    def count(runner: EagerRunner) -> None:
        freed.append(id(runner))
        free(runner)

    monkeypatch.setattr(EagerRunner, "free", count)
    await engine.load(tiny)
    first = await engine.complete({"prompt": "a", "seed": 1, "max_new_tokens": 5})
    await engine.load(tiny | {"model": "me/other"})
    assert len(freed) == 1
    second = await engine.complete({"prompt": "a", "seed": 1, "max_new_tokens": 5})
    assert second["ids"] != first["ids"]
    await engine.unload()
    assert len(freed) == 2
    assert engine.memory() == {}
    assert events.of("status")[-1] == {"state": "idle", "text": "No model is loaded", "model": None}


async def test_a_load_that_fails_leaves_no_model(
    engine: Engine, events: Events, hub: Hub, tiny: dict[str, Any]
) -> None:
    await engine.load(tiny)
    with pytest.raises(NotFoundError, match="me/nothing"):
        await engine.load(tiny | {"model": "me/nothing"})
    assert events.states()[-1] == "idle"
    with pytest.raises(NotLoadedError):
        await engine.complete({})
    await engine.load(tiny)
    hub.fail("config.json", "lfs-pointer", times=1)
    with pytest.raises(Exception, match="LFS"):
        await engine.load(tiny)
    await engine.load(tiny)
    assert (await engine.complete({"prompt": "a", "max_new_tokens": 1}))["ids"]


async def test_bad_load_options_leave_the_model_alone(engine: Engine, tiny: dict[str, Any]) -> None:
    await engine.load(tiny)
    with pytest.raises(OptionError, match="precision"):
        await engine.load(tiny | {"precision": "f8"})
    for name in ("asdf qwerty!!", "http://", "no/such/thing/here", "../x"):
        with pytest.raises(OptionError):
            await engine.load(tiny | {"model": name})
        assert engine.encode("a"), name


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.01)


async def test_stop_cancels_a_load_cleanly(
    engine: Engine, events: Events, transport: HttpTransport, hub: Hub, tiny: dict[str, Any]
) -> None:
    hub.fail("model.safetensors", "slow")
    loading = asyncio.ensure_future(engine.load(tiny))
    await until(lambda: events.of("progress"))
    engine.stop()
    with pytest.raises(CancelledError, match="cancelled"):
        await loading
    assert transport.running == 0
    assert events.states()[-1] == "idle"
    hub.heal()
    assert (await engine.load(tiny))["model"] == "me/tiny"


async def test_generating_while_loading_is_refused(engine: Engine, hub: Hub, tiny: dict[str, Any]) -> None:
    hub.latency_s = 0.05
    loading = asyncio.ensure_future(engine.load(tiny))
    await asyncio.sleep(0.01)
    with pytest.raises(BusyError, match="loading a model"):
        await engine.complete({"prompt": "a"})
    await loading


async def test_a_second_load_of_the_same_joins_the_first(engine: Engine, hub: Hub, tiny: dict[str, Any]) -> None:
    first, second = await asyncio.gather(engine.load(tiny), engine.load(dict(tiny)))
    assert first is second
    assert len(hub.requests("config.json")) == 1


async def test_a_load_of_something_else_takes_over(engine: Engine, hub: Hub, tiny: dict[str, Any]) -> None:
    hub.latency_s = 0.05
    first = asyncio.ensure_future(engine.load(tiny))
    await asyncio.sleep(0.01)
    assert (await engine.load(tiny | {"model": "me/other"}))["model"] == "me/other"
    with pytest.raises(CancelledError):
        await first
    assert (await engine.complete({"prompt": "a", "max_new_tokens": 1}))["ids"]


async def test_unload_stops_what_runs(engine: Engine, hub: Hub, tiny: dict[str, Any]) -> None:
    await engine.load(tiny)

    async def write() -> dict[str, Any]:
        return await engine.complete({"prompt": "a", "max_new_tokens": 60})

    writing = asyncio.ensure_future(write())
    await asyncio.sleep(0.01)
    await engine.unload()
    assert (await writing)["finish"] == "cancelled"
    with pytest.raises(NotLoadedError):
        await engine.complete({})
    hub.latency_s = 0.05
    loading = asyncio.ensure_future(engine.load(tiny))
    await asyncio.sleep(0.01)
    await engine.unload()
    with pytest.raises(CancelledError):
        await loading
    assert engine.memory() == {}


async def test_numpy_has_no_f16(engine: Engine, tiny: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedModelError, match="f16 needs WebGPU"):
        await engine.load(tiny | {"precision": "f16"})


async def test_running_out_of_memory_is_said_plainly(
    engine: Engine, tiny: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def no_room(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(NumpySink, "write", no_room)
    with pytest.raises(UnsupportedModelError, match="not enough memory"):
        await engine.load(tiny)


async def test_a_model_that_contradicts_its_config_is_refused(engine: Engine, hub: Hub, models: Path) -> None:
    write_tiny(models / "me" / "liar")
    config = models / "me" / "liar" / "config.json"
    config.write_text(config.read_text().replace('"n_layer": 2', '"n_layer": 3'))
    with pytest.raises(ModelFileError, match=r"h\.2"):
        await engine.load({"model": "me/liar", "hub": hub.url})


class FakeDevice:
    """As much of a GPU device as the engine itself looks at."""

    def __init__(self) -> None:
        self.lost: str | None = None
        self.destroyed = False

    def info(self) -> dict[str, Any]:
        return {"vendor": "acme", "architecture": "", "features": [], "limits": {}}

    def destroy(self) -> None:
        self.destroyed = True


class FakeGpu(WebGpuBackend):
    """Computes in NumPy, but chooses its precision and is opened, lost and closed like the real one."""

    def __init__(self, limits: str) -> None:
        self.fake = FakeDevice()
        super().__init__(cast(Any, self.fake), limits)
        self.made: list[str] = []

    async def make(
        self,
        config: Config,
        precision: str,
        fill: backends.Fill,
        compiling: Callable[[], None],
        kept: Mixed | None = None,
    ) -> Runner:
        self.made.append(precision)
        compiling()
        return await NumpyBackend().make(config, "f32", fill, compiling)


class Gpus:
    """Opens fake GPUs and remembers them; `missing` says why there is none."""

    def __init__(self) -> None:
        self.opened: list[FakeGpu] = []
        self.missing = ""

    async def __call__(self, limits: str) -> WebGpuBackend:
        if self.missing:
            raise GpuUnavailableError(self.missing)
        await asyncio.sleep(0.01)  # others run while a browser opens one
        self.opened.append(FakeGpu(limits))
        return self.opened[-1]


@pytest.fixture
def gpus() -> Gpus:
    return Gpus()


@pytest.fixture
def gpu_engine(transport: HttpTransport, events: Events, gpus: Gpus) -> Engine:
    return Engine(emit=events, transport=transport, site=None, open_gpu=gpus)


async def test_auto_takes_the_gpu(gpu_engine: Engine, gpus: Gpus, events: Events, tiny: dict[str, Any]) -> None:
    info = await gpu_engine.info()
    assert (info["backend"], info["gpu"]["vendor"], info["reason"]) == ("webgpu", "acme", None)
    report = await gpu_engine.load(tiny)
    assert (report["backend"], report["precision"]) == ("webgpu", "f32")
    assert len(gpus.opened) == 1
    assert events.states() == ["loading", "loading", "compiling", "ready"]


async def test_asking_and_loading_at_once_open_one_gpu(gpu_engine: Engine, gpus: Gpus, tiny: dict[str, Any]) -> None:
    info, report = await asyncio.gather(gpu_engine.info(), gpu_engine.load(tiny))
    assert (info["backend"], report["backend"]) == ("webgpu", "webgpu")
    assert len(gpus.opened) == 1


async def test_auto_falls_back_and_keeps_the_reason(gpu_engine: Engine, gpus: Gpus, tiny: dict[str, Any]) -> None:
    gpus.missing = "This browser has no WebGPU."
    assert (await gpu_engine.load(tiny))["backend"] == "numpy"
    assert (await gpu_engine.info())["reason"] == "This browser has no WebGPU."
    with pytest.raises(GpuUnavailableError, match="no WebGPU"):
        await gpu_engine.load(tiny | {"backend": "webgpu"})
    assert (await gpu_engine.load(tiny | {"backend": "numpy"}))["backend"] == "numpy"


async def test_precision_on_the_gpu(gpu_engine: Engine, gpus: Gpus, tiny: dict[str, Any]) -> None:
    await gpu_engine.load(tiny)
    await gpu_engine.load(tiny | {"model": "me/half"})
    await gpu_engine.load(tiny | {"precision": "f16"})
    await gpu_engine.load(tiny | {"model": "me/half", "precision": "f32"})
    assert gpus.opened[0].made == ["f32", "f16", "f16", "f32"]
    # A large model is halved even where its checkpoint is f32.
    assert gpus.opened[0].precision("auto", {"F32"}, 124_000_000) == "f16"
    assert gpus.opened[0].precision("auto", {"BF16"}, 1_000) == "f16"


async def test_other_limits_need_another_device(gpu_engine: Engine, gpus: Gpus, tiny: dict[str, Any]) -> None:
    await gpu_engine.load(tiny)
    await gpu_engine.load(tiny | {"limits": "default"})
    await gpu_engine.load(tiny | {"limits": "default", "model": "me/other"})
    assert [gpu.limits for gpu in gpus.opened] == ["adapter", "default"]
    assert [gpu.fake.destroyed for gpu in gpus.opened] == [True, False]


class Losing:
    """Lets the GPU be lost at the first `times` steps from number `after` on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, after: int = 0, times: int = 1) -> None:
        self._left, self._after, self._run = times, after, EagerRunner.run
        losing = self

        def run(runner: EagerRunner, ids: Sequence[int], ops: Any) -> Any:
            losing._after -= 1
            if losing._after < 0 and losing._left:
                losing._left -= 1
                raise DeviceLostError("The GPU device was lost (test).")
            return losing._run(runner, ids, ops)

        monkeypatch.setattr(EagerRunner, "run", run)


@pytest.mark.parametrize("after", [0, 1, 5])
async def test_a_generation_goes_on_after_a_loss(
    gpu_engine: Engine,
    gpus: Gpus,
    events: Events,
    tiny: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    after: int,
) -> None:
    await gpu_engine.load(tiny)
    options = {"ids": [5, 6, 7], "max_new_tokens": 8, "temperature": 1, "seed": 3}
    whole = await gpu_engine.complete(options)
    Losing(monkeypatch, after=after, times=2)
    again = await gpu_engine.complete(options)
    assert (again["ids"], again["text"], again["finish"]) == (whole["ids"], whole["text"], whole["finish"])
    assert len(gpus.opened) == 3
    assert any("starting it again" in data["text"] for data in events.of("status"))
    assert events.states()[-1] == "ready"
    assert (await gpu_engine.complete(options))["ids"] == whole["ids"]


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("logits", {"ids": [5, 6]}),
        ("inspect", {"ids": [5, 6]}),
        ("profile", {"ids": [5, 6], "new_tokens": 2}),
        ("bench", {"prompt_tokens": 2, "new_tokens": 2, "runs": 1}),
    ],
)
async def test_whatever_else_computes_begins_anew_after_a_loss(
    gpu_engine: Engine,
    gpus: Gpus,
    events: Events,
    tiny: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    options: dict[str, Any],
) -> None:
    await gpu_engine.load(tiny)
    compute = getattr(gpu_engine, method)
    whole = await compute(options)
    Losing(monkeypatch)
    again = await compute(options)
    assert len(gpus.opened) == 2
    assert events.states()[-1] == "ready"
    if method == "logits":
        assert np.array_equal(again, whole)
    else:
        assert again.keys() == whole.keys()


async def test_a_gpu_that_is_lost_again_and_again_is_given_up(
    gpu_engine: Engine, gpus: Gpus, events: Events, tiny: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    await gpu_engine.load(tiny)
    Losing(monkeypatch, times=4)
    with pytest.raises(DeviceLostError, match=r"lost 4 times while generating.*smaller model or precision.*numpy"):
        await gpu_engine.complete({"prompt": "a"})
    assert events.states()[-1] == "idle"
    with pytest.raises(NotLoadedError):
        await gpu_engine.complete({"prompt": "a"})
    await gpu_engine.load(tiny)
    assert len(gpus.opened) == 5


async def test_without_another_gpu_it_says_so(
    gpu_engine: Engine, gpus: Gpus, events: Events, tiny: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    await gpu_engine.load(tiny)
    Losing(monkeypatch)
    gpus.missing = "The adapter is gone."
    with pytest.raises(GpuUnavailableError, match=r"there is no other: The adapter is gone\..*numpy"):
        await gpu_engine.complete({"prompt": "a"})
    assert events.states()[-1] == "idle"
    assert (await gpu_engine.load(tiny))["backend"] == "numpy"


async def test_a_loss_between_two_loads_is_noticed(gpu_engine: Engine, gpus: Gpus, tiny: dict[str, Any]) -> None:
    await gpu_engine.load(tiny)
    gpus.opened[0].fake.lost = "while nobody looked"
    await gpu_engine.load(tiny)
    assert len(gpus.opened) == 2


async def test_a_loss_while_loading_starts_the_load_again(
    gpu_engine: Engine, gpus: Gpus, tiny: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    make, left = FakeGpu.make, 2

    async def lost(self: FakeGpu, *arguments: Any) -> Runner:
        nonlocal left
        left -= 1
        if left >= 0:
            raise DeviceLostError("The GPU device was lost (test).")
        return await make(self, *arguments)

    monkeypatch.setattr(FakeGpu, "make", lost)
    assert (await gpu_engine.load(tiny))["backend"] == "webgpu"
    assert len(gpus.opened) == 3
    left = 9
    with pytest.raises(DeviceLostError, match="4 times while loading"):
        await gpu_engine.load(tiny)


async def test_stop_ends_a_recovery(
    gpu_engine: Engine, gpus: Gpus, events: Events, tiny: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    await gpu_engine.load(tiny)
    Losing(monkeypatch)

    async def never(*_: Any) -> Any:
        await asyncio.sleep(60)

    monkeypatch.setattr(FakeGpu, "make", never)
    going = asyncio.ensure_future(gpu_engine.complete({"prompt": "a"}))
    while len(gpus.opened) < 2:
        await asyncio.sleep(0.01)
    gpu_engine.stop()
    with pytest.raises(CancelledError, match=r"lost.*stopped"):
        await going
    assert events.states()[-1] == "idle"


async def test_webgpu_needs_a_browser() -> None:
    with pytest.raises(GpuUnavailableError, match="browser"):
        await open_webgpu("adapter")


def test_numpy_refuses_what_wasm_cannot_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    assert NumpyBackend().precision("auto", {"F32"}, 1_557_611_200) == "f32"
    monkeypatch.setattr(backends, "IN_BROWSER", True)
    assert NumpyBackend().precision("auto", {"F16"}, 354_823_168) == "f32"
    with pytest.raises(UnsupportedModelError, match=r"6\.2 GB"):
        NumpyBackend().precision("auto", {"F32"}, 1_557_611_200)
