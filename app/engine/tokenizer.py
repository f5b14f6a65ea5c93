"""GPT-2's byte-level BPE: tiktoken's Encoding, built from a repository's own files.

tiktoken merges the pair whose join has the lowest rank. So the 256 bytes get the ranks 0 to 255 here, each merge's
result the next one, and two tables lead from ranks to the vocabulary's ids and back (for GPT-2 itself they differ only
in the bytes' order). Tokens that no merge makes, like `<|endoftext|>`, are kept apart.
"""

import codecs
import re
from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import regex
import tiktoken

from app.engine.tokenizer_files import Vocabulary, read_vocabulary

# As tiktoken has it for GPT-2; the same pieces as the pattern in the original encoder.py.
_PATTERN = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"""
# The same for Python's regex module, whose \s has four control characters more than Unicode's White_Space.
_PIECES = regex.compile(
    r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\p{White_Space}\p{L}\p{N}]++"
    r"|\p{White_Space}+(?!\P{White_Space})|\p{White_Space}"
)
_SPACE, _NO_SPACE = re.compile(r"[^\S\x1c-\x1f]+"), re.compile(r"[\S\x1c-\x1f]+")

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
        self._special = vocabulary.special
        self._plain_added = {text: id_ for text, id_ in vocabulary.added.items() if text not in vocabulary.special}
        self._prefix_space = vocabulary.add_prefix_space
        self._encoding = tiktoken.Encoding("repository", pat_str=_PATTERN, mergeable_ranks=ranks, special_tokens={})
        self.n_vocab = max(self._bytes, default=-1) + 1
        """One more than the greatest id that the files define. A model's may be greater (padding)."""
        self.eos_id = vocabulary.special.get("<|endoftext|>") if eos_id is None else eos_id
        """The token that ends a text, and begins one without a prompt."""

    @classmethod
    def from_files(cls, files: Mapping[str, bytes], *, eos_id: int | None = None) -> "Tokenizer":
        """Build from the contents of `tokenizer.json`, or of `vocab.json` and `merges.txt`.

        Raises TokenizerError for what is damaged, or is no byte-level BPE with GPT-2's rules.
        """
        return cls(read_vocabulary(files), eos_id=eos_id)

    def encode(self, text: str, allow_special: bool = False) -> list[int]:
        """Return the ids of `text`. Special tokens that it spells are plain text unless `allow_special`.

        Lone surrogates, which are no text, count as U+FFFD. Runs of more than LONG_PIECE letters (or digits, spaces,
        signs) are encoded in overlapping stretches, the same ids as at once but for vocabularies made to differ.
        """
        text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
        added = self._plain_added | (self._special if allow_special else {})
        if not added:
            return self._plain(text)
        # Longest first, so that of two that begin alike the longer one is found.
        pattern = re.compile("|".join(map(re.escape, sorted(added, key=len, reverse=True))))
        ids: list[int] = []
        start = 0
        for match in pattern.finditer(text):
            ids += self._plain(text[start : match.start()])
            ids.append(added[match.group()])
            start = match.end()
        return ids + self._plain(text[start:])

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of `ids`; bytes that are no UTF-8, and ids without a token, become U+FFFD."""
        return b"".join(map(self.token_bytes, ids)).decode("utf-8", "replace")

    def pieces(self, text: str) -> list[tuple[int, str]]:
        """Encode `text` and return each id with its own text (U+FFFD where that is a part of a character)."""
        return [(id_, self.decode([id_])) for id_ in self.encode(text)]

    def token_bytes(self, id_: int) -> bytes:
        """Return the bytes of one token, those of U+FFFD if there is none with this id."""
        return self._bytes.get(id_, REPLACEMENT.encode())

    def _plain(self, text: str) -> list[int]:
        """Encode text without any added token."""
        if self._prefix_space and text and not text.startswith(" "):
            text = " " + text
        ranks = self._ranks(text)
        ids: list[int] = self._to_id[ranks].tolist() if ranks else []
        # A vocabulary without some byte cannot spell it; the reference drops it without a word, too.
        return ids if self._all_bytes else [id_ for id_ in ids if id_ >= 0]

    def _ranks(self, text: str) -> list[int]:
        longest = max(max(map(len, _SPACE.split(text))), max(map(len, _NO_SPACE.split(text))))
        if longest < LONG_PIECE:
            return self._encoding.encode_ordinary(text)
        ranks: list[int] = []
        for match in _PIECES.finditer(text):
            piece = match.group()
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
