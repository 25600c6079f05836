"""Text in files at http addresses, read while they are downloaded."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.client import HTTPException
from itertools import islice
from typing import IO
from urllib.error import HTTPError
from urllib.request import urlopen

import huggingface_hub

from attngeo.errors import AttnGeoError, DataUnavailableError, first_line
from attngeo.pretrain.text.columns import Row
from attngeo.pretrain.text.files import describe_unreadable, select_texts
from attngeo.pretrain.text.formats import read_rows

# Seconds: how long a server may take for an answer, and the waits before the next attempts.
TIMEOUT, WAITS = 60, (1, 5, 30)
# What urllib and the decompressors raise if a connection fails.
CONNECTION_ERRORS = (OSError, EOFError, HTTPException)
FIRST_SERVER_ERROR = 500


def read_lines(address: str) -> list[str]:
    """The lines of a text file at an address. Raises DataUnavailableError or DataError."""
    with _explain_errors(address), _open(address) as file:
        return file.read().decode("utf-8").split()


def read_addresses(addresses: Sequence[str], column: str) -> Iterator[str]:
    """The documents in a column of one file after the other. Each file is requested in its turn.

    If a connection breaks, the file is requested again, and the rows that were already read are skipped.
    Raises DataUnavailableError if a file cannot be reached, DataError if it cannot be read or lacks the column.
    """
    for address in addresses:
        with _explain_errors(address):
            yield from select_texts(address, _read_rows_with_retries(address, column), column)


def _read_rows_with_retries(address: str, column: str) -> Iterator[Row]:
    done = 0
    for wait in (*WAITS, None):
        try:
            for row in islice(_read_rows(address, column), done, None):
                yield row
                done += 1
            return
        except CONNECTION_ERRORS as error:
            refused = getattr(error, "code", FIRST_SERVER_ERROR) < FIRST_SERVER_ERROR  # such as 404 Not Found
            if wait is None or refused:
                raise
            time.sleep(wait)


def _read_rows(address: str, column: str) -> Iterator[Row]:
    with _open(address) as file:
        yield from read_rows(file, address, column)


def _open(address: str) -> IO[bytes]:
    if huggingface_hub.constants.is_offline_mode():
        raise ConnectionError("offline mode is on")
    try:
        return urlopen(address, timeout=TIMEOUT)  # type: ignore[no-any-return]
    except HTTPError as error:
        error.close()  # it holds the connection
        raise


@contextmanager
def _explain_errors(address: str) -> Iterator[None]:
    """Turn an error into a DataUnavailableError or DataError that names the address."""
    try:
        yield
    except AttnGeoError:
        raise
    except CONNECTION_ERRORS as error:
        raise DataUnavailableError(f"{address} cannot be read ({first_line(error)}); check the connection") from error
    except Exception as error:
        raise describe_unreadable(address, error) from error
