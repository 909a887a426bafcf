"""Feishu's event encryption and signature, from feishu.md §2. Pure; independent of the adapter on purpose."""

from __future__ import annotations

import base64
import hashlib
import secrets

from cryptography.hazmat.primitives import padding
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

_BLOCK_BITS = 128


def encrypt(plain: bytes, encrypt_key: str, iv: bytes | None = None) -> str:
    """base64(IV + AES-256-CBC), key = SHA-256 of the Encrypt Key, PKCS#7 (feishu.md §2)."""
    iv = iv or secrets.token_bytes(16)
    padder = padding.PKCS7(_BLOCK_BITS).padder()
    padded = padder.update(plain) + padder.finalize()
    encryptor = Cipher(algorithms.AES(_key(encrypt_key)), modes.CBC(iv)).encryptor()
    return base64.b64encode(iv + encryptor.update(padded) + encryptor.finalize()).decode("ascii")


def decrypt(text: str, encrypt_key: str) -> bytes:
    """The inverse of `encrypt`. Raises ValueError when it is not a ciphertext under this key."""
    raw = base64.b64decode(text, validate=True)
    if len(raw) < 32 or len(raw) % 16:
        raise ValueError("the ciphertext is not an IV and whole blocks")
    decryptor = Cipher(algorithms.AES(_key(encrypt_key)), modes.CBC(raw[:16])).decryptor()
    unpadder = padding.PKCS7(_BLOCK_BITS).unpadder()
    padded = decryptor.update(raw[16:]) + decryptor.finalize()
    return unpadder.update(padded) + unpadder.finalize()


def signature(timestamp: str, nonce: str, encrypt_key: str, body: bytes) -> str:
    """Lower-case hex SHA-256 of timestamp + nonce + key + raw body (feishu.md §2)."""
    return hashlib.sha256((timestamp + nonce + encrypt_key).encode() + body).hexdigest()


def _key(encrypt_key: str) -> bytes:
    return hashlib.sha256(encrypt_key.encode()).digest()
