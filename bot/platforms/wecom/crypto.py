"""WeCom's envelope and media crypto (wecom.md §1.1, §2.2): AES-256-CBC with a fixed IV, PKCS#7 to 32 bytes. Pure computing.

Must not decide what is genuine: a signature is checked before anything is decrypted (`receive.py`), because decrypting
with a wrong key mostly gives garbage instead of an error.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import struct

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

_AES_BLOCK = 16
_PAD_BLOCK = 32
_KEY_BYTES = 32
_HEAD_BYTES = 20  # 16 random bytes and the length of the message


class DecryptError(ValueError):
    """The ciphertext was not made with this key, or is damaged."""


def aes_key(text: str) -> bytes:
    """The 32 key bytes of an EncodingAESKey or of a media `aeskey`, base64 with or without its padding. Raises DecryptError."""
    try:
        key = base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except (ValueError, binascii.Error):
        raise DecryptError("the AES key is not base64") from None
    if len(key) != _KEY_BYTES:
        raise DecryptError(f"the AES key has {len(key)} bytes instead of {_KEY_BYTES}")
    return key


def sign(token: str, timestamp: str, nonce: str, encrypted: str) -> str:
    """The lower-case hex signature: the four strings sorted by their bytes."""
    # A query's bytes that are no UTF-8 come as lone surrogates; they are hashed as the bytes they were.
    parts = sorted(
        s.encode("utf-8", "surrogateescape") for s in (token, timestamp, nonce, encrypted)
    )
    return hashlib.sha1(b"".join(parts)).hexdigest()  # noqa: S324 - the platform's choice


def same(given: str, expected: str) -> bool:
    """Compare two secrets in constant time."""
    return hmac.compare_digest(given.encode("utf-8", "replace"), expected.encode())


def encrypt(key: bytes, message: bytes, receive_id: str = "") -> str:
    """The base64 text of an envelope around a message."""
    clear = os.urandom(16) + struct.pack(">I", len(message)) + message + receive_id.encode()
    pad = _PAD_BLOCK - len(clear) % _PAD_BLOCK
    encryptor = Cipher(algorithms.AES(key), modes.CBC(key[:_AES_BLOCK])).encryptor()
    raw = encryptor.update(clear + bytes([pad]) * pad) + encryptor.finalize()
    return base64.b64encode(raw).decode()


def decrypt(key: bytes, encrypted: str, receive_id: str = "") -> bytes:
    """The message in an envelope. An empty `receive_id` is not compared (wecom.md §2.1). Raises DecryptError."""
    try:
        raw = base64.b64decode(encrypted, validate=True)
    except (ValueError, binascii.Error):
        raise DecryptError("the encrypted part is not base64") from None
    clear = _decrypt_raw(key, raw)
    if len(clear) < _HEAD_BYTES:
        raise DecryptError("the encrypted part is too short")
    length = struct.unpack(">I", clear[16:_HEAD_BYTES])[0]
    message, trailer = clear[_HEAD_BYTES : _HEAD_BYTES + length], clear[_HEAD_BYTES + length :]
    if len(message) < length:
        raise DecryptError("the encrypted part was made with another EncodingAESKey")
    if receive_id and not same(trailer.decode("utf-8", "replace"), receive_id):
        raise DecryptError("the encrypted part is for another company or app")
    return message


def decrypt_media(key: bytes, data: bytes) -> bytes:
    """The bytes of an attachment, encrypted without a head. Raises DecryptError."""
    return _decrypt_raw(key, data)


def _decrypt_raw(key: bytes, raw: bytes) -> bytes:
    if not raw or len(raw) % _AES_BLOCK:
        raise DecryptError("the encrypted part has an impossible length")
    decryptor = Cipher(algorithms.AES(key), modes.CBC(key[:_AES_BLOCK])).decryptor()
    padded = decryptor.update(raw) + decryptor.finalize()
    pad = padded[-1]
    if not 1 <= pad <= min(_PAD_BLOCK, len(padded)) or padded[-pad:] != bytes([pad]) * pad:
        raise DecryptError("the encrypted part was made with another AES key")
    return padded[:-pad]
