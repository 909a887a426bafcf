"""Feishu's crypto against the vectors of feishu.md §2 and against the official SDK as oracle."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import subprocess
import sys

import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given, settings
from hypothesis import strategies as st

from bot.platforms.feishu.crypto import DecryptError, decrypt, same, sign

KEY = "kudryavka"
PLAIN_A = '{"challenge":"ch-42","token":"vtoken-123","type":"url_verification"}'
PLAIN_B = '{"schema":"2.0","header":{"event_id":"e1","event_type":"x.test","token":"vtoken-123"},"event":{"k":"你好"}}'
ENCRYPT_A = "AAECAwQFBgcICQoLDA0ODzaZLG88r12GT3VZ/fbPxHkZ45lRIzQT+r6ozme5BiQ/erEW7oEUTzvX3v6s315QIfPgR//b6YCuqgbDgZK+FKDaMZzi8tip8jCa4V7QOG4/"
ENCRYPT_B = "AAECAwQFBgcICQoLDA0OD4zHXvrgywbyDGXRipYEB5e0BgIGsk8quomyxf6UkYlfbCSaViD1OIu/wTKdi1ae5H9ey2WD45QAsv7EsH4vuTVTQJ3RaeMfYZtPq3gi7BuLkM+LFAqwwoF9lRcnRCvHz/jZyCPtAAt9rsqnSJOhHk4="
SIGNATURE_A = "6044a4ee81f4b26a32e8ba038862a1ae61dd872c8ed53a7f2234d7efe230004f"
SIGNATURE_B = "40d1fc72fcafcaa786063162db7a0b7a6f854955dd879662dd809b4d621a2564"


def encrypt(key: str, plain: bytes, iv: bytes) -> str:
    """The other direction, written apart from the code under test."""
    pad = 16 - len(plain) % 16
    cipher = Cipher(
        algorithms.AES(hashlib.sha256(key.encode()).digest()), modes.CBC(iv)
    ).encryptor()
    return base64.b64encode(
        iv + cipher.update(plain + bytes([pad]) * pad) + cipher.finalize()
    ).decode()


@pytest.mark.parametrize(
    ("key", "ciphertext", "plain"),
    [
        (KEY, ENCRYPT_A, PLAIN_A),
        (KEY, ENCRYPT_B, PLAIN_B),
        ("test key", "P37w+VZImNgPEO1RBhJ6RtKl7n6zymIbEG1pReEzghk=", "hello world"),
    ],
)
def test_documented_vectors_decrypt(key: str, ciphertext: str, plain: str) -> None:
    assert decrypt(key, ciphertext).decode() == plain


@pytest.mark.parametrize(
    ("ciphertext", "signature"), [(ENCRYPT_A, SIGNATURE_A), (ENCRYPT_B, SIGNATURE_B)]
)
def test_documented_signatures(ciphertext: str, signature: str) -> None:
    body = json.dumps({"encrypt": ciphertext}, separators=(",", ":")).encode()
    assert sign(KEY, "1700000000", "nonce-abc", body) == signature
    assert sign(KEY, "1700000001", "nonce-abc", body) != signature
    assert sign(KEY, "1700000000", "nonce-abc", body + b" ") != signature


@settings(max_examples=100, derandomize=True, deadline=None)
@given(
    st.binary(max_size=200), st.binary(min_size=16, max_size=16), st.text(min_size=1, max_size=20)
)
def test_what_was_encrypted_decrypts(plain: bytes, iv: bytes, key: str) -> None:
    assert decrypt(key, encrypt(key, plain, iv)) == plain


@pytest.mark.parametrize(
    "ciphertext",
    [
        "",
        "not base64!",
        "AAAA",
        base64.b64encode(bytes(16)).decode(),
        base64.b64encode(bytes(33)).decode(),
        "你好",
    ],
)
def test_damaged_ciphertext_is_refused(ciphertext: str) -> None:
    with pytest.raises(DecryptError):
        decrypt(KEY, ciphertext)


def test_bad_padding_is_refused() -> None:
    iv, key = bytes(16), hashlib.sha256(KEY.encode()).digest()
    for block in (b"x" * 15 + b"\x00", b"x" * 15 + b"\x11", b"x" * 13 + b"\x01\x02\x03"):
        cipher = Cipher(algorithms.AES(key), modes.CBC(iv)).encryptor()
        damaged = base64.b64encode(iv + cipher.update(block) + cipher.finalize()).decode()
        with pytest.raises(DecryptError):
            decrypt(KEY, damaged)


def test_secrets_compare() -> None:
    assert same("abc", "abc")
    assert not same("abc", "abd")
    assert not same("ü\udc80", "abc")


_ORACLE = """
import json, sys, warnings
warnings.simplefilter("ignore")
import lark_oapi
from lark_oapi.core.utils.decryptor import AESCipher
key, cases = json.load(sys.stdin)
print(json.dumps([AESCipher(key).decrypt_str(c) for c in cases]))
handler = lark_oapi.EventDispatcherHandler.builder(key, "vtoken-123").register_p2_customized_event("x.test", lambda e: None).build()
raw = lark_oapi.core.model.RawRequest()
raw.uri = "/"
raw.body = json.dumps({"encrypt": cases[1]}, separators=(",", ":")).encode()
raw.headers = {"X-Lark-Request-Timestamp": "1700000000", "X-Lark-Request-Nonce": "nonce-abc", "X-Lark-Signature": sys.argv[1]}
print(handler.do(raw).status_code)
"""


def test_the_official_sdk_agrees() -> None:
    """In a child: importing lark_oapi takes seconds and its import warnings are not ours."""
    iv = bytes(range(16))
    cases = [ENCRYPT_A, ENCRYPT_B, encrypt(KEY, "另一个 plain text".encode(), iv)]
    body = json.dumps({"encrypt": ENCRYPT_B}, separators=(",", ":")).encode()
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _ORACLE, sign(KEY, "1700000000", "nonce-abc", body)],
        input=json.dumps([KEY, cases]), capture_output=True, text=True, timeout=55, check=False,
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    plains, status = done.stdout.strip().splitlines()[-2:]
    assert json.loads(plains) == [decrypt(KEY, case).decode() for case in cases]
    assert status == "200"
