"""Encryption of stored requests and answers, with keys that rotate.

    idempotency = Idempotency(url, encryption=fernet(NEW_KEY, OLD_KEY))

The first key encrypts; all of them decrypt. Put a new key in front, and drop the old one once every record
written with it has expired. A value that is not encrypted, or was encrypted for another row, is refused;
while records from before are left, ``encryption=also_plain(fernet(KEY))`` reads those.
"""

from __future__ import annotations

from .drivers.wrappers.encrypted import Cipher, Sealing
from .errors import ConfigurationError

__all__ = ["Cipher", "Sealing", "also_plain", "fernet"]


def also_plain(cipher: Cipher) -> Sealing:
    """Reads what was stored before encryption was switched on. Take it out once that has expired: until then
    whoever can write to the database can give an answer of his own."""
    return Sealing(cipher, reads_plain=True)


def fernet(*keys: str | bytes) -> Cipher:
    """AES with authentication, by ``cryptography``. Make a key with its ``Fernet.generate_key()``."""
    try:
        from cryptography.fernet import Fernet, MultiFernet
    except ImportError:
        raise ConfigurationError("Encryption needs its extra: pip install 'samekey[encryption]'.") from None
    if not keys:
        raise ConfigurationError("fernet() needs at least one key: the first encrypts, all of them decrypt.")
    try:
        return MultiFernet([Fernet(key) for key in keys])
    except (ValueError, TypeError) as error:
        raise ConfigurationError(
            "An encryption key is not a Fernet key (32 bytes in URL-safe base64). Make one with "
            "cryptography.fernet.Fernet.generate_key()."
        ) from error
