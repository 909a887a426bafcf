"""Feishu's envelope crypto (feishu.md §2): decrypting events and checking signatures. Pure computing."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

_BLOCK = 16


class DecryptError(ValueError):
    """The ciphertext was not made with this Encrypt Key, or is damaged."""


def decrypt(encrypt_key: str, ciphertext: str) -> bytes:
    """AES-256-CBC under SHA-256(Encrypt Key); the first 16 bytes are the IV, PKCS#7 is checked. Raises DecryptError."""
    try:
        raw = base64.b64decode(ciphertext, validate=True)
    except (ValueError, binascii.Error):
        raise DecryptError("the encrypted part is not base64") from None
    if len(raw) < 2 * _BLOCK or len(raw) % _BLOCK:
        raise DecryptError("the encrypted part has an impossible length")
    key = hashlib.sha256(encrypt_key.encode()).digest()
    decryptor = Cipher(algorithms.AES(key), modes.CBC(raw[:_BLOCK])).decryptor()
    padded = decryptor.update(raw[_BLOCK:]) + decryptor.finalize()
    pad = padded[-1]
    if not 1 <= pad <= _BLOCK or padded[-pad:] != bytes([pad]) * pad:
        raise DecryptError("the encrypted part was made with another Encrypt Key")
    return padded[:-pad]


def encrypt(encrypt_key: str, plaintext: bytes) -> str:
    """What `decrypt` undoes, under a fresh IV: the check-up plays Feishu with it."""
    pad = _BLOCK - len(plaintext) % _BLOCK
    iv = os.urandom(_BLOCK)
    key = hashlib.sha256(encrypt_key.encode()).digest()
    encryptor = Cipher(algorithms.AES(key), modes.CBC(iv)).encryptor()
    sealed = encryptor.update(plaintext + bytes([pad]) * pad) + encryptor.finalize()
    return base64.b64encode(iv + sealed).decode()


def sign(encrypt_key: str, timestamp: str, nonce: str, body: bytes) -> str:
    """The lower-case hex signature over the raw body bytes."""
    # A header's bytes that are no UTF-8 come as lone surrogates; they are hashed as the bytes they were.
    head = f"{timestamp}{nonce}{encrypt_key}".encode("utf-8", "surrogateescape")
    return hashlib.sha256(head + body).hexdigest()


def same(given: str, expected: str) -> bool:
    """Compare two secrets in constant time."""
    return hmac.compare_digest(given.encode("utf-8", "replace"), expected.encode())
