"""A byte-level BPE vocabulary of some 350 tokens, as GGUF metadata: every text has tokens, frequent words have one."""

from __future__ import annotations

from typing import Any, Final

_WORDS: Final = (
    " the",
    " is",
    " are",
    " you",
    " word",
    " what",
    "user",
    "system",
    "assistant",
    " terse",
    " of",
    " and",
)
_NORMAL, _CONTROL = 1, 3  # llama_token_type
CONTROL_TOKENS: Final = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE: Final = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def byte_characters() -> list[str]:
    """One visible character for each byte: itself where it is one, else from U+0100 on (the alphabet of GPT-2 files)."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in visible]
    return [chr(b) if b in visible else chr(0x100 + hidden.index(b)) for b in range(256)]


def _merges(characters: list[str]) -> list[tuple[str, str]]:
    """Rules that build each frequent word from the left."""
    rules: dict[tuple[str, str], None] = {}
    for word in _WORDS:
        first, *rest = (characters[byte] for byte in word.encode())
        for character in rest:
            rules[first, character] = None
            first += character
    return list(rules)


def vocabulary() -> dict[str, Any]:
    """The `tokenizer.*` metadata of a model file."""
    characters = byte_characters()
    merges = _merges(characters)
    tokens = [*characters, *dict.fromkeys(left + right for left, right in merges)]
    n_normal = len(tokens)
    tokens += CONTROL_TOKENS
    end = tokens.index("<|im_end|>")
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [_NORMAL] * n_normal + [_CONTROL] * len(CONTROL_TOKENS),
        "tokenizer.ggml.merges": [f"{left} {right}" for left, right in merges],
        "tokenizer.ggml.bos_token_id": tokens.index("<|im_start|>"),
        "tokenizer.ggml.eos_token_id": end,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": CHAT_TEMPLATE,
    }
