"""WeCom's crypto against the vectors of wecom.md §1.6 and against wechatpy."""

from __future__ import annotations

import base64
import os

import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given, settings
from hypothesis import strategies as st
from wechatpy.crypto import PrpCrypto
from wechatpy.exceptions import InvalidAppIdException

from bot.platforms.wecom import crypto

TOKEN, STAMP, NONCE = "QDG6eK", "1764374400", "1372623149"
ENCODING_KEY = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8"
KEY = bytes(range(32))
CORP = "ww0123456789abcdef"
ECHO = "4j/AuRx71kQlxVlzbpsMWFHe92iq4VdHki6B+j5nrtgcS54Mj3xQTtZ/FUl+1TNkgHFEtNbC6UD+fm58bt1m+w=="
TEXT = (
    "4j/AuRx71kQlxVlzbpsMWJHY4AAt84RA8XS2d1LgBzvg0omI4rQFJTC3gFu967tkg35wB5uL6I1mARRx7hb/1gEZaCho96r76ESKJ+l3db1WMX"
    "KMkYwkj2dFJcwEwv2/JxG/tBNG3vRaH4SwibZaom2XEDeJSAM4PRoC8/X4AAHix1cguF2tY7j4DM4yoa6FiG8O/VJqdWnWbBmCCslABSYNaWar"
    "XUNEuIJaMJaZLxfeHn5PmyGfFS8F5ie5486WqSpSqXmYHYXLpE0mMdMtCHn4hee15Y47fgAb1SR2GcHNgqCJX7ItFxGX+jSQ96JcimqaCp2Tl1"
    "h6Xw4znOBsC9xGYExUZ0rWL4MvUsfATCcaXJShJ5tE2Ry37L4A1BCmJmyOehksPx90VTL0Pq/6A/yalvsXDwBPSztqKmRWKwdaw1puKmznNGNP"
    "rc0Vi+VJFuy0Lror/BWrzNm+NYrbkQ=="
)
STREAM = (
    "4j/AuRx71kQlxVlzbpsMWNKzXFX6vsfnhnhUDLWAGI5xtWF4TXYm9/ZbabSFL3mqz6XxRQBB+Ui/jTAbh5bTaBZxaMtffCP59GNd8gfaifWz87qH"
    "ucsHDLjNZzYoHTdf"
)
FULL_PAD = (
    "4j/AuRx71kQlxVlzbpsMWChjjAVmBvzczm/I8D14VRncve2Jzb8L8EPMhOZTUJ7/UW7ev7YvOsXSRYkqF0/AIw=="
)
APP_XML = (
    "<xml><ToUserName><![CDATA[ww0123456789abcdef]]></ToUserName><FromUserName><![CDATA[zhangsan]]></FromUserName>"
    "<CreateTime>1764374400</CreateTime><MsgType><![CDATA[text]]></MsgType><Content><![CDATA[你好, hi]]></Content>"
    "<MsgId>7459035031717794886</MsgId><AgentID>1000003</AgentID></xml>"
)
VECTORS = [
    (ECHO, "4a4e1cd10fe34c011713125baa6f5d1a3cc60b43", CORP, "1616140317555161061"),
    (TEXT, "9411386f8fe9b610f6ed08df140d9c79216ab42f", CORP, APP_XML),
    (STREAM, "e0b95b7a9ef2aa81bdefe41ebc2b6f60551e22c3", "",
     '{"msgtype":"stream","stream":{"id":"s1","finish":false,"content":"你好"}}'),
    (FULL_PAD, "006cdec1303f291f81a273016b077c486dac1831", "", "AAAAAAAAAAAA"),
]  # fmt: skip


@pytest.mark.parametrize(("encrypted", "signature", "receive_id", "clear"), VECTORS)
def test_the_vectors(encrypted: str, signature: str, receive_id: str, clear: str) -> None:
    assert crypto.sign(TOKEN, STAMP, NONCE, encrypted) == signature
    assert crypto.decrypt(crypto.aes_key(ENCODING_KEY), encrypted, receive_id) == clear.encode()


def test_encrypting_the_vectors_gives_their_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "urandom", lambda _: b"0123456789abcdef")
    for encrypted, _, receive_id, clear in VECTORS:
        assert crypto.encrypt(KEY, clear.encode(), receive_id) == encrypted


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.text(max_size=200), st.sampled_from(["", CORP]))
def test_wechatpy_reads_ours_and_we_read_its(text: str, receive_id: str) -> None:
    judge = PrpCrypto(KEY)
    text = text.encode("utf-8", "replace").decode()
    ours = crypto.encrypt(KEY, text.encode(), receive_id)
    assert judge.decrypt(ours.encode(), receive_id) == text
    theirs = judge.encrypt(text, receive_id).decode()
    assert crypto.decrypt(KEY, theirs, receive_id) == text.encode()


def test_another_company_is_told_apart_and_an_empty_id_is_not_compared() -> None:
    made = crypto.encrypt(KEY, b"x", "ww_other")
    with pytest.raises(crypto.DecryptError, match="another company"):
        crypto.decrypt(KEY, made, CORP)
    with pytest.raises(InvalidAppIdException):
        PrpCrypto(KEY).decrypt(made.encode(), CORP)
    assert crypto.decrypt(KEY, made, "") == b"x"


@pytest.mark.parametrize("damaged", ["", "no base64!", "AAAA", ECHO[:-4], base64.b64encode(b"x" * 30).decode()])  # fmt: skip
def test_damaged_envelopes(damaged: str) -> None:
    with pytest.raises(crypto.DecryptError):
        crypto.decrypt(KEY, damaged, CORP)


def test_a_wrong_key_never_gives_the_text() -> None:
    for n in range(1, 60):
        wrong = bytes([n]) * 32
        try:
            clear = crypto.decrypt(wrong, TEXT)
        except crypto.DecryptError:
            continue
        assert b"xml" not in clear


@pytest.mark.parametrize("text", ["", "AAAA", "!" * 43, ENCODING_KEY + "AAAA"])
def test_wrong_keys_are_refused(text: str) -> None:
    with pytest.raises(crypto.DecryptError):
        crypto.aes_key(text)


@pytest.mark.parametrize("n", [0, 1, 16, 31, 32, 33, 1000])
@pytest.mark.parametrize("padding", ["", "="])
def test_media_is_decrypted(n: int, padding: str) -> None:
    key, data = os.urandom(32), os.urandom(n)
    pad = 32 - n % 32
    cipher = Cipher(algorithms.AES(key), modes.CBC(key[:16])).encryptor()
    sealed = cipher.update(data + bytes([pad]) * pad) + cipher.finalize()
    text = base64.b64encode(key).decode().rstrip("=") + padding
    assert crypto.decrypt_media(crypto.aes_key(text), sealed) == data
    with pytest.raises(crypto.DecryptError):
        crypto.decrypt_media(key, sealed[:-1])
