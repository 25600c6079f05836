"""How models on the Hub are read: ranges or whole files, through the network or from the cache."""

from __future__ import annotations

from attngeo.options import RUNNING, Options, option


class HubAccess(Options):
    """Options for models on the Hub. Raises UsageError for a value outside its limits.

    By default, attngeo reads only the byte ranges of weight files that it needs, and does not keep them. `offline`
    overrides `download`.
    """

    offline: bool = option(False, "Use only the Hub's cache; open no connection", panel=RUNNING)
    download: bool = option(
        False,
        "Download whole weight files into the Hub's cache instead of reading ranges of them",
        advanced=True,
        panel=RUNNING,
    )
    retries: int = option(
        5,
        "Maximum retries of a failed range request",
        advanced=True,
        panel=RUNNING,
        metavar="N",
        least=0,
        most=20,
    )
