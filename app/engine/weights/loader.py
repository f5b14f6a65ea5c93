"""From a model's files to its tensors: what there is, whether it fits the config, and its bytes in the wanted order."""

import asyncio
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from app.engine.errors import CancelledError, GgufError, ModelFileError, NotFoundError, UnsupportedModelError
from app.engine.models import family_of
from app.engine.models.config import Config, config_from_dict, parse_config
from app.engine.tokenizer import Tokenizer
from app.engine.weights import gguf_model
from app.engine.weights.compact import CODES, scheme_of, stored_specs
from app.engine.weights.files import ModelFiles
from app.engine.weights.gguf import READABLE, Gguf, read_gguf
from app.engine.weights.gguf_files import named_gguf, only_gguf
from app.engine.weights.plan import PIECE_BYTES, Piece, Request, plan
from app.engine.weights.safetensors import PREFIX, Header, TensorRef, header_stop, parse_header
from app.engine.weights.spec import Blob, Sink, WeightSpec

PARALLEL = 4
"""Ranges in flight at once. Against a double with 50 ms of latency and a line of 10 MB/s shared by all, 110 MB took
14.2 s with one, 11.6 with two, 11.2 with four, six or eight (11.0 at best); at 50 MB/s 6.1, 4.5, 2.9, 3.0 and 3.2 s."""
FREQUENCIES_BYTES = 1 << 16
"""Of the factors on rotary frequencies in a GGUF file."""
HEAD_BYTES = 1 << 16
"""What is asked for at first: enough for the header of all but the largest models."""
MAX_SHARDS = 1000
"""Files that an index may name."""

OnProgress = Callable[[int, int, str], None]
"""Told (bytes received, bytes in all, name of the tensor that is coming). Never falls, never passes the whole."""

_WEIGHTS, _INDEX, _PICKLED = "model.safetensors", "model.safetensors.index.json", "pytorch_model.bin"
_SHARD = re.compile(r"[A-Za-z0-9][\w.-]{0,200}\.safetensors", re.ASCII)
# Causal masks and rotary frequencies that old checkpoints carry along; the model makes its own.
_BUFFERS = re.compile(
    r"(h\.\d+\.)?attn\.(attention\.)?(masked_)?bias|layers\.\d+\.attention\.(masked_)?bias|([\w.]+\.)?rotary_emb\.inv_freq",
    re.ASCII,
)


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A model's tensors, found but not yet fetched."""

    config: Config
    """With `tied` as the files have it."""
    tensors: dict[str, TensorRef]
    """By name without the family's prefix, without mask buffers."""
    files: tuple[str, ...]
    total_bytes: int
    """Bytes of all `tensors`."""
    scheme: str | None = None
    """"q8" or "q4" if its matrices are stored so, see `compact`."""
    gguf: Gguf | None = None
    """The header of the GGUF file that all of this is in, if it is in one."""

    def stored(self, specs: Sequence[WeightSpec]) -> list[WeightSpec]:
        """Return the tensors that `specs` are read from."""
        if self.gguf is not None:  # where the rows of every matrix are output features
            return [
                replace(spec, kind="matrix", shape=spec.shape[::-1]) if spec.kind == "conv1d" else spec
                for spec in specs
            ]
        return stored_specs(specs, self.scheme, self.tensors)


async def open_checkpoint(source: ModelFiles) -> Checkpoint:
    """Read a model's config and the headers of its safetensors files, or of its GGUF file.

    Raises ModelFileError (damaged or contradictory files), UnsupportedModelError, or a HubError.
    """
    if (file := await named_gguf(source)) is not None:
        return await _open_gguf(source, file)
    try:
        config = parse_config(await source.read("config.json"))
    except NotFoundError:
        if (file := await only_gguf(source)) is None:
            raise
        return await _open_gguf(source, file)
    family = family_of(config)
    tensors: dict[str, TensorRef] = {}
    listed: dict[str, str] | None = None
    try:
        headers = {_WEIGHTS: await _header(source, _WEIGHTS)}
    except NotFoundError:
        listed = await _index(source)
        headers = {file: await _header(source, file) for file in sorted(set(listed.values()))}
    schemes = {scheme_of(header.metadata, file=source.label(file)) for file, header in headers.items()}
    if len(schemes) > 1:
        raise ModelFileError(
            f"{source.model}: its weights are partly in one format and partly in another "
            f"({', '.join(sorted(scheme or 'plain' for scheme in schemes))}). The files belong to different versions."
        )
    scheme = schemes.pop()
    for file, header in headers.items():
        for name, ref in header.tensors.items():
            canonical = name.removeprefix(family.prefix)
            if canonical.startswith(f"{family.old_head}."):
                canonical = "lm_head" + canonical.removeprefix(family.old_head)
            if _BUFFERS.fullmatch(canonical):
                continue
            if canonical in tensors:
                raise ModelFileError(f"{source.label(file)}: tensor {canonical!r} occurs twice. The files are damaged.")
            if listed is not None and listed.get(name) != file:
                raise ModelFileError(
                    f"{source.label(_INDEX)} and {file} do not agree where tensor {name[:100]!r} is. The files belong "
                    "to different versions; load the model again, or tell the repository's owner."
                )
            tensors[canonical] = ref
    # Files written without knowing of the tie may have dropped the one name or the other.
    heads = [name for name in tensors if name.startswith("lm_head.weight")]
    if not any(name.startswith(f"{family.embedding}.weight") for name in tensors):
        tensors |= {name.replace("lm_head", family.embedding, 1): tensors[name] for name in heads}
        for name in heads:
            del tensors[name]
    config = replace(config, tied=await _tied(source, config, tensors, "" if scheme is None else CODES))
    if config.tied:
        for name in heads:
            tensors.pop(name, None)
    total = sum(ref.nbytes for ref in tensors.values())
    return Checkpoint(config=config, tensors=tensors, files=tuple(headers), total_bytes=total, scheme=scheme)


async def _open_gguf(source: ModelFiles, file: str) -> Checkpoint:
    gguf = await read_gguf(source, file)
    frequencies = gguf.tensors.get(gguf_model.FREQUENCIES)
    if frequencies is not None and (frequencies.dtype != "F32" or frequencies.nbytes > FREQUENCIES_BYTES):
        raise GgufError(f"{source.label(file)}: {gguf_model.FREQUENCIES} is no short list in F32. The file is damaged.")
    factors = None
    if frequencies is not None:
        factors = (await source.read_range(file, frequencies.start, frequencies.stop)).to_bytes()
    config = config_from_dict(gguf_model.config(gguf, factors))
    tensors = gguf_model.tensors(gguf)
    total = sum(ref.nbytes for ref in tensors.values())
    return Checkpoint(config=config, tensors=tensors, files=(file,), total_bytes=total, gguf=gguf)


async def load_tokenizer(source: ModelFiles, config: Config, gguf: Gguf | None = None) -> Tokenizer:
    """Make the tokenizer from the repository's own tokenizer.json, or its vocab.json and merges.txt; or from `gguf`.

    Raises TokenizerError or a HubError.
    """
    if gguf is not None:
        return Tokenizer(gguf_model.vocabulary(gguf), eos_id=config.eos_id)
    try:
        files = {"tokenizer.json": await source.read("tokenizer.json")}
    except NotFoundError:
        vocab, merges = await asyncio.gather(source.read("vocab.json"), source.read("merges.txt"))
        files = {"vocab.json": vocab, "merges.txt": merges}
    return Tokenizer.from_files(files, eos_id=config.eos_id)


async def stream(
    checkpoint: Checkpoint,
    specs: Sequence[WeightSpec],
    sink: Sink,
    *,
    source: ModelFiles,
    on_progress: OnProgress | None = None,
    cancelled: Any = None,
    piece_bytes: int = PIECE_BYTES,
    parallel: int = PARALLEL,
) -> int:
    """Fetch the tensors of `specs` and hand them to `sink` in that order, in pieces of at most `piece_bytes`.

    Up to `parallel` ranges are in flight, and at most two windows of `plan.WINDOW` pieces' worth of bytes are held
    while the sink is slower than the network. `cancelled` is any object whose attribute `cancelled` turns true; it is
    looked at several times a second, and the task may be cancelled too. Whatever the end, nothing is left running.
    Returns the most bytes of the files that were held at once.

    Raises ModelFileError or UnsupportedModelError before the first byte if the checkpoint does not have what `specs`
    ask for, CancelledError, a HubError, or what the sink raises.
    """
    check_tensors(checkpoint, specs)
    windows = plan(checkpoint.tensors, checkpoint.stored(specs), piece_bytes=piece_bytes)
    fetcher = _Fetcher(source, [request for window in windows for request in window.requests], on_progress, parallel)
    try:
        for number, window in enumerate(windows):
            fetcher.start([request for ahead in windows[number : number + 2] for request in ahead.requests])
            for piece in window.pieces:
                blob = await fetcher.bytes_of(piece, cancelled)
                await sink.write(piece.spec, piece.dtype, piece.row, piece.rows, blob)
            fetcher.forget(window.requests)
        _check_cancelled(cancelled)
        return fetcher.peak
    finally:
        await fetcher.close()


def check_tensors(checkpoint: Checkpoint, specs: Sequence[WeightSpec]) -> None:
    """Raise ModelFileError or UnsupportedModelError, naming the tensor, unless all of `specs` are there as asked."""
    for spec in checkpoint.stored(specs):
        ref = checkpoint.tensors.get(spec.name)
        if ref is None:
            raise ModelFileError(
                f"The model's files have no tensor {spec.name!r}, which its config.json asks for "
                f"({', '.join(map(str, spec.shape))}). The files are incomplete, or not those of a "
                f"{checkpoint.config.family} model."
            )
        if ref.shape != spec.shape:
            raise ModelFileError(
                f"{ref.file}: tensor {spec.name!r} has the shape {list(ref.shape)}, but config.json asks for "
                f"{list(spec.shape)}. Config and weights do not belong together."
            )
        if spec.of is not None and ref.dtype != "U32":
            raise ModelFileError(
                f"{ref.file}: tensor {spec.name!r} is stored as {ref.dtype}, but codes and scales are words (U32). The "
                "file is damaged; quantise the model again."
            )
        if spec.of is None and ref.dtype not in (("F32", "F16", "BF16") if checkpoint.gguf is None else READABLE):
            raise UnsupportedModelError(
                f"{ref.file}: tensor {spec.name!r} is stored as {ref.dtype}; tabgpt reads F32, F16 and BF16. Convert "
                "the model, or choose another."
            )


class _Fetcher:
    """Runs requests, a few at a time, and adds up their progress."""

    def __init__(
        self, source: ModelFiles, requests: Sequence[Request], on_progress: OnProgress | None, parallel: int
    ) -> None:
        self._source = source
        self._on_progress = on_progress
        self._slots = asyncio.Semaphore(parallel)
        self._tasks: dict[Request, asyncio.Task[Blob]] = {}
        self._total = sum(request.wanted for request in requests)
        self._received = 0
        self._held = 0
        self.peak = 0
        """Bytes of what had been asked for and was not yet forgotten, at most."""
        self._failed: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()

    def start(self, requests: Sequence[Request]) -> None:
        """Queue the requests that are not yet known."""
        for request in requests:
            if request not in self._tasks:
                self._tasks[request] = asyncio.create_task(self._fetch(request))

    async def bytes_of(self, piece: Piece, cancelled: Any) -> Blob:
        """Wait for a piece's request and return the piece."""
        task = self._tasks[piece.request]
        while not task.done():
            _check_cancelled(cancelled)
            # A later request's failure ends the load too: not only once its turn has come.
            await asyncio.wait((task, self._failed), timeout=0.05, return_when=asyncio.FIRST_COMPLETED)
            if self._failed.done():
                raise self._failed.result()
        _check_cancelled(cancelled)
        start = piece.start - piece.request.start
        return task.result().slice(start, start + piece.nbytes)

    def forget(self, requests: Sequence[Request]) -> None:
        """Let go of the bytes of these requests."""
        for request in requests:
            del self._tasks[request]
            self._held -= request.stop - request.start

    async def close(self) -> None:
        """Abort whatever is still running, and wait until it has ended."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def _fetch(self, request: Request) -> Blob:
        counted = 0  # a failed try starts again from 0, but what was shown stays shown

        def on_bytes(nbytes: int) -> None:
            nonlocal counted
            nbytes = min(nbytes, request.wanted)
            if nbytes > counted:
                self._received += nbytes - counted
                counted = nbytes
                if self._on_progress:
                    self._on_progress(self._received, self._total, request.name)

        try:
            async with self._slots:
                self._held += request.stop - request.start
                self.peak = max(self.peak, self._held)
                blob = await self._source.read_range(request.file, request.start, request.stop, on_bytes)
                on_bytes(request.wanted)
                return blob
        except Exception as error:
            if not self._failed.done():
                self._failed.set_result(error)
            raise


async def _index(source: ModelFiles) -> dict[str, str]:
    """Return which file each tensor is in, for a model whose weights are in several."""
    try:
        index = await source.json(_INDEX)
    except NotFoundError as error:
        if await source.exists(_PICKLED):
            raise UnsupportedModelError(
                f"{source.model} has its weights only as {_PICKLED}, a format that can carry code and is not read "
                f"here. Choose a model with {_WEIGHTS}, or convert it with transformers (save_pretrained)."
            ) from error
        raise NotFoundError(
            f"{source.label(_WEIGHTS)} was not found, and neither was {_INDEX}. Choose a repository with weights in "
            "the safetensors format."
        ) from error
    listed = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(listed, dict) or not listed:
        raise ModelFileError(f"{source.label(_INDEX)} has no weight_map. The file is damaged.")
    for file in listed.values():
        if not isinstance(file, str) or not _SHARD.fullmatch(file) or ".." in file:
            raise ModelFileError(
                f"{source.label(_INDEX)} names {str(file)[:100]!r}, which is no safetensors file's name."
            )
    if len(set(listed.values())) > MAX_SHARDS:
        raise ModelFileError(f"{source.label(_INDEX)} names more than {MAX_SHARDS} files.")
    return listed


async def _header(source: ModelFiles, file: str) -> Header:
    blob, size = await source.head(file, HEAD_BYTES)
    head = blob.to_bytes()
    stop = header_stop(head, file=source.label(file), file_size=size)
    if stop > len(head) >= PREFIX:
        head += (await source.read_range(file, len(head), stop)).to_bytes()
    header = parse_header(head, file=source.label(file), file_size=size)
    return replace(header, tensors={name: replace(ref, file=file) for name, ref in header.tensors.items()})


async def _tied(source: ModelFiles, config: Config, tensors: dict[str, TensorRef], suffix: str) -> bool:
    """Decide as transformers does whether the head shares the embedding's weights (codes, by the names' `suffix`)."""
    table, head = (
        tensors.get(f"{name}.weight{suffix}") or tensors.get(f"{name}.weight{suffix}.0")
        for name in (family_of(config).embedding, "lm_head")
    )
    if table is None or head is None:
        return config.tied
    if not config.tied or (table.dtype, table.shape) != (head.dtype, head.shape):
        return False
    # Both are stored although the config ties them: transformers ties them only if they are equal. Comparing some
    # kilobytes here and there tells a copy from another matrix.
    for part in range(4):
        offset = (table.nbytes * part // 4) & ~0xFF
        length = min(4096, table.nbytes - offset)
        ours, theirs = await asyncio.gather(
            *(source.read_range(ref.file, ref.start + offset, ref.start + offset + length) for ref in (table, head))
        )
        if ours.to_bytes() != theirs.to_bytes():
            return False
    return True


def _check_cancelled(cancelled: Any) -> None:
    if cancelled is not None and cancelled.cancelled:
        raise CancelledError("Loading was stopped.")
