"""Byte-level BPE: tiktoken's Encoding, built from a repository's own files.

tiktoken merges the pair whose join has the lowest rank. So the 256 bytes get the ranks 0 to 255 here, each merge's
result the next one, and two tables lead from ranks to the vocabulary's ids and back (for GPT-2 itself they differ only
in the bytes' order). Tokens that no merge makes, like `<|endoftext|>`, are kept apart.
"""

import codecs
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Literal, cast

import numpy as np
import tiktoken

from app.engine.tokenizer_added import AddedTokens
from app.engine.tokenizer_files import Vocabulary, read_vocabulary
from app.engine.tokenizer_patterns import NO_SPACE, SPACE

LONG_PIECE = 512
"""Characters of one piece up to which tiktoken is fast: its time grows with the square of the length (0.12: 10 s for
100,000 letters), and it fails on a million spaces."""

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


class Tokenizer:
    """Text to ids and back."""

    def __init__(self, vocabulary: Vocabulary, *, eos_id: int | None = None) -> None:
        """Build from a validated vocabulary; `eos_id` is `<|endoftext|>` unless given."""
        ranks = {bytes([byte]): byte for byte in range(256)}
        to_id = np.full(256 + len(vocabulary.merged), -1, np.int64)
        for token, id_ in vocabulary.single.items():
            to_id[token[0]] = id_
        for token, id_ in vocabulary.merged.items():
            to_id[len(ranks)] = id_
            ranks[token] = len(ranks)
        self._rank_bytes = list(ranks)
        self._to_id = to_id
        self._all_bytes = bool((to_id >= 0).all())
        self._bytes = vocabulary.decoder()
        self._form = cast(Literal["NFC", "NFD", "NFKC", "NFKD"] | None, vocabulary.normal_form)
        self._added = AddedTokens(token for token in vocabulary.added if not (token.normalized and self._form))
        self._added_later = AddedTokens(
            replace(token, text=unicodedata.normalize(self._form, token.text))
            for token in vocabulary.added
            if token.normalized and self._form
        )
        self._prefix_space = vocabulary.add_prefix_space
        self._pattern = vocabulary.pattern
        # tiktoken takes a piece that is a token as a whole, like `ignore_merges`. What no merge makes it must not know.
        self._whole = vocabulary.other if vocabulary.whole_pieces else {}
        source = vocabulary.pattern.source
        self._encoding = tiktoken.Encoding("repository", pat_str=source, mergeable_ranks=ranks, special_tokens={})
        self.n_vocab = max(self._bytes, default=-1) + 1
        """One more than the greatest id that the files define. A model's may be greater (padding)."""
        self.eos_id = vocabulary.special.get("<|endoftext|>") if eos_id is None else eos_id
        """The token that ends a text, and begins one without a prompt."""
        self.prefix = vocabulary.prefix
        """Ids with which the model expects a text to begin (BOS, if it has one); `encode` leaves them out."""
        self.special = vocabulary.special
        """Ids of the tokens that control the model, by their spelling."""

    @classmethod
    def from_files(cls, files: Mapping[str, bytes], *, eos_id: int | None = None) -> "Tokenizer":
        """Build from the contents of `tokenizer.json`, or of `vocab.json` and `merges.txt`.

        Raises TokenizerError for what is damaged, or is no byte-level BPE with rules that are known.
        """
        return cls(read_vocabulary(files), eos_id=eos_id)

    def encode(self, text: str, allow_special: bool = False) -> list[int]:
        """Return the ids of `text`. Special tokens that it spells are plain text unless `allow_special`.

        Lone surrogates, which are no text, count as U+FFFD. Runs of more than LONG_PIECE letters (or digits, spaces,
        signs) are encoded in overlapping stretches, the same ids as at once but for vocabularies made to differ.
        """
        text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
        ids: list[int] = []
        for part in self._added.split(text, allow_special=allow_special):
            ids += [part] if isinstance(part, int) else self._between(part, allow_special=allow_special)
        return ids

    def encode_marked(self, text: str, mark: str) -> list[int]:
        """Return the ids of `text`, with special tokens where it spells them; then `mark` is taken out of the rest.

        So a special token that is to stay text is one with a mark within.
        """
        ids: list[int] = []
        for part in self._added.split(text, allow_special=True):
            if isinstance(part, int):
                ids.append(part)
            else:
                ids += self.encode(part.replace(mark, "")) if mark in part else self._between(part, allow_special=True)
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of `ids`; bytes that are no UTF-8, and ids without a token, become U+FFFD."""
        return b"".join(map(self.token_bytes, ids)).decode("utf-8", "replace")

    def pieces(self, text: str) -> list[tuple[int, str]]:
        """Encode `text` and return each id with its own text (U+FFFD where that is a part of a character)."""
        return [(id_, self.decode([id_])) for id_ in self.encode(text)]

    def token_bytes(self, id_: int) -> bytes:
        """Return the bytes of one token, those of U+FFFD if there is none with this id."""
        return self._bytes.get(id_, REPLACEMENT.encode())

    def _between(self, text: str, *, allow_special: bool) -> list[int]:
        """Encode what lies between added tokens, but for those that are looked for in normalised text."""
        normal = text if self._form is None else unicodedata.normalize(self._form, text)
        ids: list[int] = []
        for piece in self._added_later.split(normal, allow_special=allow_special):
            ids += [piece] if isinstance(piece, int) else self._plain(piece)
        return ids

    def _plain(self, text: str) -> list[int]:
        """Encode text without any added token."""
        if self._prefix_space and text and not text.startswith(" "):
            text = " " + text
        if self._whole:
            return [id_ for piece in self._pattern.pieces(text) for id_ in self._piece(piece)]
        return self._ids(self._ranks(text))

    def _piece(self, piece: str) -> list[int]:
        whole = self._whole.get(piece.encode())
        return self._ids(self._ranks(piece)) if whole is None else [whole]

    def _ids(self, ranks: list[int]) -> list[int]:
        ids: list[int] = self._to_id[ranks].tolist() if ranks else []
        # A vocabulary without some byte cannot spell it; the reference drops it without a word, too.
        return ids if self._all_bytes else [id_ for id_ in ids if id_ >= 0]

    def _ranks(self, text: str) -> list[int]:
        longest = max(max(map(len, SPACE.split(text))), max(map(len, NO_SPACE.split(text))))
        if longest < LONG_PIECE:
            return self._encoding.encode_ordinary(text)
        ranks: list[int] = []
        for piece in self._pattern.pieces(text):
            ranks += self._encoding.encode_ordinary(piece) if len(piece) <= LONG_PIECE else self._long(piece)
        return ranks

    def _long(self, piece: str) -> Iterator[int]:
        """Encode one long piece.

        What lies behind a border between two tokens is encoded the same without what lies before it, so a stretch may
        begin at any border. Its end is wrong, since the text goes on there: the last quarter is thrown away.
        """
        start = 0
        while len(piece) - start > LONG_PIECE:
            stretch = piece[start : start + LONG_PIECE]
            data = stretch.encode()
            ranks = self._encoding.encode_ordinary(stretch)
            offset, taken, keep = 0, len(ranks), len(data)
            for count, rank in enumerate(ranks, 1):
                offset += len(self._rank_bytes[rank])
                if offset > len(data) * 3 // 4:
                    break
                if data[offset] & 0xC0 != 0x80:  # a character starts here
                    taken, keep = count, offset
            yield from ranks[:taken]
            start += len(data[:keep].decode())
        yield from self._encoding.encode_ordinary(piece[start:])


class StreamDecoder:
    """Turns ids into text one by one, and never shows half a character."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Start with no text."""
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, id_: int) -> str:
        """Return the text that is complete now; "" while a character still lacks bytes.

        Bytes that cannot become a character are U+FFFD at once.
        """
        return self._decoder.decode(self._tokenizer.token_bytes(id_))

    def flush(self) -> str:
        """End the text: an incomplete character becomes U+FFFD. The decoder can be used again."""
        return self._decoder.decode(b"", final=True)
