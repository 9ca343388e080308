"""Encryption of stored requests and answers, with keys that rotate.

    idempotency = Idempotency(url, encryption=fernet(NEW_KEY, OLD_KEY))

The first key encrypts; all of them decrypt. Put a new key in front, and drop the old one once every record
written with it has expired.
"""

from __future__ import annotations

from .drivers.wrappers.encrypted import Cipher
from .errors import ConfigurationError

__all__ = ["Cipher", "fernet"]


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
