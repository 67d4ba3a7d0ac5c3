"""The TLS context that a configuration asks for.

One rule: *a certificate that cannot be used is refused before the first connection*.
"""

from __future__ import annotations

import ssl

from reaper.config import ReaperConfig
from reaper.errors import ConfigError


def tls_context(config: ReaperConfig) -> ssl.SSLContext | None:
    """The TLS context that *config* asks for; None: no TLS.

    Raises:
        ConfigError: certificate or key cannot be read or do not fit together.
    """
    cert, key = config.server.tls_cert, config.server.tls_key
    if not cert:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(cert, key)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"server.tls_cert, server.tls_key: {cert!r}, {key!r}: cannot be used: {error}") from error
    return context
