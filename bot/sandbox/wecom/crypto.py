"""WeCom's callback and media encryption and the signature, from wecom.md §1.1. Pure; independent of the adapter on purpose."""

from __future__ import annotations

import base64
import hashlib
import secrets
import struct

from cryptography.hazmat.primitives import padding
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

_BLOCK_BITS = 256
_HEAD = 20


def key_of(encoding_aes_key: str) -> bytes:
    """The 32 bytes behind the 43 characters. Raises ValueError for anything else."""
    if len(encoding_aes_key) != 43 or not encoding_aes_key.isalnum():
        raise ValueError("an EncodingAESKey has 43 letters and digits")
    return base64.b64decode(encoding_aes_key + "=")


def new_encoding_aes_key() -> str:
    """A key nobody knows, in the console's alphabet."""
    while not (text := base64.b64encode(secrets.token_bytes(32)).decode()[:43]).isalnum():
        continue
    return text


def encrypt(plain: bytes, key: bytes, receive_id: str, head: bytes = b"") -> str:
    """base64 of AES-256-CBC over 16 random bytes, the length, the text and the receive id; padded to 32 bytes."""
    body = (
        (head or secrets.token_bytes(16))
        + struct.pack(">I", len(plain))
        + plain
        + receive_id.encode()
    )
    return base64.b64encode(seal_bytes(body, key)).decode("ascii")


def decrypt(text: str, key: bytes) -> tuple[bytes, str]:
    """The clear text and the receive id. Raises ValueError when it is not a cipher text under this key."""
    raw = base64.b64decode(text, validate=True)
    body = open_bytes(raw, key)
    if len(body) < _HEAD:
        raise ValueError("the clear text is too short")
    (length,) = struct.unpack(">I", body[16:_HEAD])
    if length > len(body) - _HEAD:
        raise ValueError("the length field is longer than the text")
    end = _HEAD + length
    return body[_HEAD:end], body[end:].decode()


def seal_bytes(data: bytes, key: bytes) -> bytes:
    """AES-256-CBC with the key's own first half as IV: media, and the inside of a callback."""
    padder = padding.PKCS7(_BLOCK_BITS).padder()
    encryptor = Cipher(algorithms.AES(key), modes.CBC(key[:16])).encryptor()
    return encryptor.update(padder.update(data) + padder.finalize()) + encryptor.finalize()


def open_bytes(raw: bytes, key: bytes) -> bytes:
    """The inverse of `seal_bytes`. Raises ValueError."""
    if not raw or len(raw) % 32:
        raise ValueError("the cipher text is not whole blocks of 32 bytes")
    decryptor = Cipher(algorithms.AES(key), modes.CBC(key[:16])).decryptor()
    unpadder = padding.PKCS7(_BLOCK_BITS).unpadder()
    return unpadder.update(decryptor.update(raw) + decryptor.finalize()) + unpadder.finalize()


def signature(token: str, timestamp: str, nonce: str, encrypted: str) -> str:
    """Lower-case hex SHA-1 over the four sorted strings."""
    text = "".join(sorted([token, timestamp, nonce, encrypted]))
    return hashlib.sha1(text.encode()).hexdigest()  # noqa: S324  the protocol's choice
