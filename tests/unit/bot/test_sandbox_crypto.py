"""The sandbox's encryption against the test vectors of feishu.md §2."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bot.sandbox.feishu import crypto

KEY = "kudryavka"
IV = bytes(range(16))
PLAIN_A = '{"challenge":"ch-42","token":"vtoken-123","type":"url_verification"}'
PLAIN_B = '{"schema":"2.0","header":{"event_id":"e1","event_type":"x.test","token":"vtoken-123"},"event":{"k":"你好"}}'
SEALED_A = (
    "AAECAwQFBgcICQoLDA0ODzaZLG88r12GT3VZ/fbPxHkZ45lRIzQT+r6ozme5BiQ/erEW7oEUTzvX3v6s315QIfPgR//b6YCuqgbDgZK+FKDaMZzi"
    "8tip8jCa4V7QOG4/"
)
SEALED_B = (
    "AAECAwQFBgcICQoLDA0OD4zHXvrgywbyDGXRipYEB5e0BgIGsk8quomyxf6UkYlfbCSaViD1OIu/wTKdi1ae5H9ey2WD45QAsv7EsH4vuTVTQJ3R"
    "aeMfYZtPq3gi7BuLkM+LFAqwwoF9lRcnRCvHz/jZyCPtAAt9rsqnSJOhHk4="
)


@pytest.mark.parametrize(
    ("plain", "sealed", "signature"),
    [
        (PLAIN_A, SEALED_A, "6044a4ee81f4b26a32e8ba038862a1ae61dd872c8ed53a7f2234d7efe230004f"),
        (PLAIN_B, SEALED_B, "40d1fc72fcafcaa786063162db7a0b7a6f854955dd879662dd809b4d621a2564"),
    ],
)
def test_vectors(plain: str, sealed: str, signature: str) -> None:
    assert crypto.encrypt(plain.encode(), KEY, IV) == sealed
    assert crypto.decrypt(sealed, KEY).decode() == plain
    body = b'{"encrypt":"' + sealed.encode() + b'"}'
    assert crypto.signature("1700000000", "nonce-abc", KEY, body) == signature


def test_vector_of_the_docs() -> None:
    assert (
        crypto.decrypt("P37w+VZImNgPEO1RBhJ6RtKl7n6zymIbEG1pReEzghk=", "test key") == b"hello world"
    )


@settings(max_examples=40, derandomize=True)
@given(st.binary(max_size=400), st.text(max_size=40))
def test_round_trip(plain: bytes, key: str) -> None:
    assert crypto.decrypt(crypto.encrypt(plain, key), key) == plain


@pytest.mark.parametrize("text", ["", "AAAA", "not base64!", "AAECAwQFBgcICQoLDA0ODw=="])
def test_what_is_no_ciphertext_raises(text: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        crypto.decrypt(text, KEY)
