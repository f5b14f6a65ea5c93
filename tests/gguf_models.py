"""Small random models as GGUF files, written with the `gguf` package, and the same weights as they are on the hub."""

import gzip
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
from gguf import GGMLQuantizationType, GGUFWriter, quants
from numpy.typing import NDArray

Floats = NDArray[np.float32]

FAMILIES = Path(__file__).parent / "fixtures" / "tokenizer" / "families"
VOCABULARY = {"llama": ("llama3", "llama-bpe"), "qwen2": ("qwen2", "qwen2"), "qwen3": ("qwen2", "qwen2")}
VOCABULARY |= {"gpt2": ("smollm", "smollm")}
"""Which vocabulary of the fixtures each architecture gets, and what its file says of how text is cut."""

LAYERS, HEADS, KV_HEADS, WIDTH, INNER, CONTEXT, THETA = 2, 4, 2, 256, 512, 128, 10_000.0
HEAD_DIM = {"llama": 64, "qwen2": 64, "qwen3": 32, "gpt2": 64}
# Where the f16 scales lie in a block, which must be small and finite.
_SCALES = {"Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,), "Q4_K": (0, 2), "Q5_K": (0, 2)}
_SCALES |= {"Q6_K": (208,)}
_BLOCKS = {"Q4_0": (32, 18), "Q4_1": (32, 20), "Q5_0": (32, 22), "Q5_1": (32, 24), "Q8_0": (32, 34)}
_BLOCKS |= {"Q4_K": (256, 144), "Q5_K": (256, 176), "Q6_K": (256, 210)}
_SIZE = {"Q4_0": 4, "Q4_1": 8, "Q5_0": 8, "Q5_1": 16, "Q8_0": 64, "Q4_K": 400, "Q5_K": 800, "Q6_K": 1000}
CHAT = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"


def random_blocks(chance: np.random.Generator, dtype: str, rows: int, columns: int) -> NDArray[np.uint8]:
    """Rows of blocks [rows, bytes] with random codes, whose weights are about 0.05."""
    size, width = _BLOCKS[dtype]
    blocks = chance.integers(0, 256, (rows * columns // size, width), dtype=np.uint8)
    for number, start in enumerate(_SCALES[dtype]):
        scale = chance.normal(0, 0.2 / _SIZE[dtype] if number == 0 else 0.02, (len(blocks), 1)).astype(np.float16)
        blocks[:, start : start + 2] = scale.view(np.uint8)
    return blocks.reshape(rows, -1)


def reference(data: NDArray[Any], dtype: str) -> Floats:
    """What the `gguf` package makes of a tensor's bytes."""
    return np.asarray(quants.dequantize(data, GGMLQuantizationType[dtype]), np.float32)


def parts(arch: str, n_vocab: int) -> dict[str, tuple[str, tuple[int, ...]]]:
    """ggml's names, with the hub's and the shape [out, in]."""
    q, kv = HEADS * HEAD_DIM[arch], (HEADS if arch == "gpt2" else KV_HEADS) * HEAD_DIM[arch]
    found: dict[str, tuple[str, tuple[int, ...]]] = {}
    for layer in range(LAYERS):
        b = f"blk.{layer}"
        if arch == "gpt2":
            h = f"transformer.h.{layer}"
            for ours, theirs in (("attn_norm", "ln_1"), ("ffn_norm", "ln_2")):
                found |= {f"{b}.{ours}.{half}": (f"{h}.{theirs}.{half}", (WIDTH,)) for half in ("weight", "bias")}
            for ours, theirs, rows, columns in (
                ("attn_qkv", "attn.c_attn", 3 * WIDTH, WIDTH),
                ("attn_output", "attn.c_proj", WIDTH, WIDTH),
                ("ffn_up", "mlp.c_fc", INNER, WIDTH),
                ("ffn_down", "mlp.c_proj", WIDTH, INNER),
            ):
                found[f"{b}.{ours}.weight"] = (f"{h}.{theirs}.weight", (rows, columns))
                found[f"{b}.{ours}.bias"] = (f"{h}.{theirs}.bias", (rows,))
            continue
        h = f"model.layers.{layer}"
        found[f"{b}.attn_norm.weight"] = (f"{h}.input_layernorm.weight", (WIDTH,))
        found[f"{b}.ffn_norm.weight"] = (f"{h}.post_attention_layernorm.weight", (WIDTH,))
        for letter, rows in (("q", q), ("k", kv), ("v", kv)):
            found[f"{b}.attn_{letter}.weight"] = (f"{h}.self_attn.{letter}_proj.weight", (rows, WIDTH))
            if arch == "qwen2":
                found[f"{b}.attn_{letter}.bias"] = (f"{h}.self_attn.{letter}_proj.bias", (rows,))
            if arch == "qwen3" and letter != "v":
                found[f"{b}.attn_{letter}_norm.weight"] = (f"{h}.self_attn.{letter}_norm.weight", (HEAD_DIM[arch],))
        found[f"{b}.attn_output.weight"] = (f"{h}.self_attn.o_proj.weight", (WIDTH, q))
        for ours, theirs in (("gate", "gate_proj"), ("up", "up_proj")):
            found[f"{b}.ffn_{ours}.weight"] = (f"{h}.mlp.{theirs}.weight", (INNER, WIDTH))
        found[f"{b}.ffn_down.weight"] = (f"{h}.mlp.down_proj.weight", (WIDTH, INNER))
    if arch == "gpt2":
        found["token_embd.weight"] = ("transformer.wte.weight", (n_vocab, WIDTH))
        found["position_embd.weight"] = ("transformer.wpe.weight", (CONTEXT, WIDTH))
        found |= {f"output_norm.{half}": (f"transformer.ln_f.{half}", (WIDTH,)) for half in ("weight", "bias")}
    else:
        found["token_embd.weight"] = ("model.embed_tokens.weight", (n_vocab, WIDTH))
        found["output_norm.weight"] = ("model.norm.weight", (WIDTH,))
    return found


def unpermuted(matrix: Floats, heads: int) -> Floats:
    """Rows of queries or keys from llama.cpp's order of a head's features to that of the hub."""
    rows, columns = matrix.shape
    return matrix.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def tokenizer_json(arch: str) -> Any:
    """Return the tokenizer.json that belongs to an architecture here."""
    return json.loads(gzip.decompress((FAMILIES / f"{VOCABULARY[arch][0]}.tokenizer.json.gz").read_bytes()))


def vocabulary(arch: str) -> tuple[list[str], list[int], list[str]]:
    """Return its tokens by id, their types as ggml numbers them, and its merges."""
    raw = tokenizer_json(arch)
    by_id = {id_: (token, 1) for token, id_ in raw["model"]["vocab"].items()}
    by_id |= {entry["id"]: (entry["content"], 3 if entry["special"] else 4) for entry in raw["added_tokens"]}
    filled = [by_id.get(id_, (f"[PAD{id_}]", 5)) for id_ in range(max(by_id) + 1)]
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in raw["model"]["merges"]]
    return [token for token, _ in filled], [kind for _, kind in filled], merges


def write_gguf(
    path: Path,
    arch: str,
    dtypes: Mapping[str, str],
    *,
    hub: Path | None = None,
    head: str | None = None,
    metadata: Mapping[str, str] | None = None,
    seed: int = 0,
) -> None:
    """Write a model whose matrices have the dtypes that `dtypes` names by the middle of ggml's name, else by "".

    `head` is the dtype of a separate output matrix. `hub` gets the same model as safetensors in F32 with config.json
    and tokenizer.json.
    """
    chance = np.random.default_rng(seed)
    tokens, kinds, merges = vocabulary(arch)
    writer = GGUFWriter(path, arch)
    kv_heads = HEADS if arch == "gpt2" else KV_HEADS
    writer.add_block_count(LAYERS)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    if arch == "gpt2":
        writer.add_layer_norm_eps(1e-5)
    else:
        writer.add_head_count_kv(kv_heads)
        writer.add_layer_norm_rms_eps(1e-5)
        writer.add_rope_freq_base(THETA)
        writer.add_key_length(HEAD_DIM[arch])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(VOCABULARY[arch][1])
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges(merges)
    writer.add_eos_token_id(tokens.index("<|endoftext|>"))
    if arch == "llama":
        writer.add_bos_token_id(tokens.index("<|begin_of_text|>"))
    for name, value in (metadata or {}).items():
        writer.add_string(name, value)

    plain: dict[str, Floats] = {}
    wanted = parts(arch, len(tokens))
    if head is not None:
        wanted["output.weight"] = ("lm_head.weight", (len(tokens), WIDTH))
    for name, (theirs, shape) in wanted.items():
        middle = name.split(".")[-2]
        dtype = head if name == "output.weight" and head else dtypes.get(middle, dtypes.get("", "F32"))
        if len(shape) == 1 or dtype in ("F32", "F16", "BF16") or name.startswith("position"):
            dtype = dtype if dtype in ("F32", "F16", "BF16") and len(shape) > 1 else "F32"
            values = chance.normal(1 if name.endswith("norm.weight") else 0, 0.05, shape).astype(np.float32)
            data = quants.quantize(values, GGMLQuantizationType[dtype])
        else:
            data = random_blocks(chance, dtype, *shape)
        writer.add_tensor(name, data, raw_dtype=GGMLQuantizationType[dtype])
        array = reference(data, dtype).reshape(shape)
        if arch == "llama" and middle in ("attn_q", "attn_k"):
            array = unpermuted(array, HEADS if middle == "attn_q" else kv_heads)
        if arch == "gpt2" and ".h." in theirs and len(shape) == 2:
            array = np.ascontiguousarray(array.T)
        plain[theirs] = array
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    if hub is not None:
        _write_hub(hub, arch, len(tokens), tied=head is None, plain=plain)


def _write_hub(folder: Path, arch: str, n_vocab: int, *, tied: bool, plain: dict[str, Floats]) -> None:
    folder.mkdir(parents=True)
    safetensors.numpy.save_file(plain, folder / "model.safetensors")
    config: dict[str, Any] = {"model_type": arch, "vocab_size": n_vocab, "tie_word_embeddings": tied}
    if arch == "gpt2":
        config |= {"n_layer": LAYERS, "n_head": HEADS, "n_embd": WIDTH, "n_positions": CONTEXT, "n_inner": INNER}
        config["eos_token_id"] = tokenizer_json(arch)["model"]["vocab"].get("<|endoftext|>", 0)
    else:
        config |= {
            "num_hidden_layers": LAYERS,
            "num_attention_heads": HEADS,
            "num_key_value_heads": KV_HEADS,
            "head_dim": HEAD_DIM[arch],
            "hidden_size": WIDTH,
            "intermediate_size": INNER,
            "max_position_embeddings": CONTEXT,
            "rms_norm_eps": 1e-5,
            "rope_theta": THETA,
        }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer_json(arch)))
