"""Which names of options, settings and variables say that their value is a secret, or whose it is."""

from __future__ import annotations

import re
from typing import Literal

from trace_doctor.recording.harmless import is_known, is_word, words

Kind = Literal["plain", "number", "secret"]

_ALWAYS = words("""access account acct api apikey auth authentication authorization bearer cert certificate conn connection cookie
    cookies cred credential credentials creds cvv dsn email header headers iban jwt license login mail mfa mnemonic nonce
    oauth otp owner pass passcode passphrase passwd password passwords passwort pat person phone phrase private proxy pw pwd
    clave contrasena kennwort passe passw psw pswd senha tkn
    code codes pincode
    salt sas secret secrets session sig signature ssh ssn subscription tenant totp user username usr wallet webhook
    """)
_ELSEWHERE = words("key keys pass pin token tokens user")
"""words that models and loaders have as well: `num_key_value_heads`, `pin_memory`, `max_new_tokens`"""
_BESIDE = words("""backward batch bos bucket budget cls count dim dir eos file forward head heads image input layer len length limit
    mask max memory min n new num output pad padding path per primary prompt rate sep size sort special target text
    total unk value values vocab""")
"""words that tell such a use; the value is to be a number, a known word or a path all the same"""
_STEMS = ("password", "passwd", "passphrase", "secret", "token", "credential", "apikey", "bearer", "webhook")
_SECRET_WORDS = _ALWAYS | _ELSEWHERE | frozenset(_STEMS)
_HARMLESS_STEM = re.compile(r"tokeni[sz]")
_LONGEST_PREFIX = 6
_NAME = re.compile(r"[A-Za-z_][\w./-]*")
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_NUMBERED = re.compile(r"\d{1,2}$")
_LONGEST_NAME = 64


def kind(name: str) -> Kind:
    """What a value of this name may be to be shown: of any harmless shape, only a number or the like, or nothing."""
    words = _words(name)
    if any(_is_secret(word) for word in words if word not in _ELSEWHERE):
        return "secret"
    if any(word in _ELSEWHERE for word in words):
        return "number" if any(word in _BESIDE for word in words) or "passes" in words else "secret"
    return "plain"


def showable(name: str) -> bool:
    """Whether the name itself is one, and not a secret with a dash in front."""
    if not _NAME.fullmatch(name) or len(name) > _LONGEST_NAME or any(map(_runs_on, _words(name))):
        return False
    others = [_without_said(part) for part in re.split(r"[\W_]+", name)]
    return not any(others) or is_word("-".join(filter(None, others)), longest=_LONGEST_NAME)


def is_known_option(word: str) -> bool:
    """Whether a word with a dash is surely an option, and not a value that begins so."""
    name = word.lstrip("-").partition("=")[0]
    return word.startswith("-") and len(name) > 1 and is_known(name)


def _words(name: str) -> list[str]:
    spaced = _HUMP.sub("-", name)
    return [word.lower().rstrip("0123456789") for word in re.split(r"[^A-Za-z0-9]+", spaced) if word]


def _without_said(part: str) -> str:
    """One part of a name without the words that say what it is: nothing of `TOKEN2`, `Store` of `keyStorePassword`."""
    if _NUMBERED.sub("", part).lower() in _SECRET_WORDS:
        return ""
    return "".join(hump for hump in _HUMP.split(part) if hump.lower() not in _SECRET_WORDS)


def _is_secret(word: str) -> bool:
    if (
        word in _ALWAYS
        or word in _ELSEWHERE
        or word.endswith(("key", "pass", "pwd", "auth", "pw", "user", "pin", "code"))
    ):
        return True
    return any(stem in word for stem in _STEMS) and not _HARMLESS_STEM.search(word)


def _runs_on(word: str) -> bool:
    """Whether more follows or precedes than a name has: `tokenabcdef`, where a secret is glued to its name."""
    for stem in _STEMS:
        before, matched, after = word.partition(stem)
        if (
            matched
            and not _HARMLESS_STEM.search(word)
            and (after not in ("", "s") or len(before) > _LONGEST_PREFIX)
        ):
            return True
    return False
