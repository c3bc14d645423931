"""Small tokenizers of the real classes, made without any vocabulary file.

Each knows single characters or bytes only, plus a few whole words where a pipeline counts the tokens of its
own template. Any text can be encoded; different texts in their alphabet give different tokens.
"""

import string
from collections.abc import Iterable
from typing import Any

from tokenizers.pre_tokenizers import ByteLevel
from transformers import CLIPTokenizer, GemmaTokenizer, Qwen2Tokenizer, T5Tokenizer

CLIP_LENGTH = 77
TEXT_LENGTH = 512
PRINTABLE = sorted(set(string.printable) - set("\t\r\x0b\x0c"))

# Qwen-Image drops the first 34 tokens of its template, so these words must be one token each.
QWEN_SENTENCE = (
    "Describe the image by detailing the color, shape, size, texture, quantity, text, "
    "spatial relationships of the objects and background:"
)
QWEN_FIRST_WORDS = ("Describe", "system", "user", "assistant")  # those without a space in front
QWEN_CHAT = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)


def clip() -> CLIPTokenizer:
    """Lower case, one token a byte; a byte at the end of a word is another token."""
    characters = _alphabet()
    tokens = [*characters, *(f"{char}</w>" for char in characters), "<|startoftext|>", "<|endoftext|>"]
    return CLIPTokenizer(vocab=_numbered(tokens), merges=[], model_max_length=CLIP_LENGTH)


def t5() -> T5Tokenizer:
    """One token a printable ASCII character; every other character is unknown, as in T5 itself."""
    tokens = ["<pad>", "</s>", "<unk>", "▁", *PRINTABLE]
    scored = [(token, 0.0 if index < 3 else -1.0) for index, token in enumerate(tokens)]
    return T5Tokenizer(vocab=scored, extra_ids=0, model_max_length=TEXT_LENGTH)


def qwen() -> Qwen2Tokenizer:
    """One token a byte, the words of the templates whole, and a chat template."""
    inner = (f"Ġ{word.strip(',:')}" for word in QWEN_SENTENCE.split()[1:])
    merges = _merges([*inner, *QWEN_FIRST_WORDS])
    tokens = [*_alphabet(), *(left + right for left, right in merges)]
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    return Qwen2Tokenizer(
        vocab=_numbered([*tokens, *special]),
        merges=merges,
        eos_token=special[2],
        additional_special_tokens=special[1:],
        model_max_length=4 * TEXT_LENGTH,
        chat_template=QWEN_CHAT,
    )


def gemma() -> GemmaTokenizer:
    """One token a printable ASCII character, and one a byte for every other character."""
    tokens = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "▁", *PRINTABLE]
    fallback = [f"<0x{byte:02X}>" for byte in range(256)]
    return GemmaTokenizer(
        vocab=_numbered([*tokens, *fallback]), merges=[], add_bos_token=True, model_max_length=4 * TEXT_LENGTH
    )


def _alphabet() -> list[str]:
    return sorted(ByteLevel.alphabet())


def _numbered(tokens: Iterable[str]) -> dict[str, int]:
    return {token: index for index, token in enumerate(dict.fromkeys(tokens))}


def _merges(words: Iterable[str]) -> Any:  # noqa: ANN401 - the class says strings and takes pairs
    """Merges that join each word letter by letter from its start; an earlier word wins over a later one."""
    return list(dict.fromkeys((word[:end], word[end]) for word in words for end in range(1, len(word))))
