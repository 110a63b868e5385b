"""The test models' tokenizer: one token a byte, and DeepSeek-V4's special tokens before them."""

from __future__ import annotations

import json
import re
from pathlib import Path

BOS, EOS, PAD = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>"
USER, ASSISTANT = "<｜User｜>", "<｜Assistant｜>"
SPECIAL = (BOS, EOS, PAD, USER, ASSISTANT, "<think>", "</think>")
EOS_ID, PAD_ID = 1, 2
_FIRST_BYTE = len(SPECIAL)
_IDS = {special: i for i, special in enumerate(SPECIAL)}
_PIECES = re.compile("(" + "|".join(map(re.escape, SPECIAL)) + ")")


def encode(text: str) -> list[int]:
    """The ids of a text; special tokens are recognised in it."""
    ids = []
    for piece in _PIECES.split(text):
        if piece in _IDS:
            ids.append(_IDS[piece])
        else:
            ids += [_FIRST_BYTE + byte for byte in piece.encode()]
    return ids


def decode(ids: list[int]) -> str:
    """The text of ids, without special tokens and ids that stand for nothing."""
    data = bytes(i - _FIRST_BYTE for i in ids if _FIRST_BYTE <= i < _FIRST_BYTE + 256)
    return data.decode("utf-8", "replace")


def chat(question: str) -> str:
    """A user's question as SGLang encodes it for DeepSeek-V4, thinking off."""
    return f"{BOS}{USER}{question}{ASSISTANT}</think>"


def save(directory: Path, context: int) -> None:
    """Write tokenizer.json and tokenizer_config.json. Needs the package tokenizers."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    vocabulary = {special: i for i, special in enumerate(SPECIAL)}
    for byte, letter in enumerate(_byte_letters()):
        vocabulary[letter] = _FIRST_BYTE + byte
    made = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(
        add_prefix_space=False, use_regex=False
    )
    made.decoder = decoders.ByteLevel()
    added = [AddedToken(s, normalized=False, special=True) for s in SPECIAL]
    made.add_special_tokens(added[:5])
    # The reasoning parser looks for these in the text: they must not be skipped.
    made.add_tokens([AddedToken(s, normalized=False) for s in SPECIAL[5:]])
    made.save(str(directory / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BOS,
        "eos_token": EOS,
        "pad_token": PAD,
        "clean_up_tokenization_spaces": False,
        "add_bos_token": False,
        "add_eos_token": False,
        "model_max_length": context,
    }
    text = json.dumps(config, ensure_ascii=False)
    (directory / "tokenizer_config.json").write_text(text, encoding="utf-8")


def _byte_letters() -> list[str]:
    """The letter that stands for each byte in a byte-level vocabulary (GPT-2's alphabet)."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    letters, spare = [], 256
    for byte in range(256):
        if byte in printable:
            letters.append(chr(byte))
        else:
            letters.append(chr(spare))
            spare += 1
    return letters
