"""From a location to the store that keeps it."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeGuard

from snapfmt.errors import InputError, UnsupportedFeature
from snapfmt.storage.base import Store
from snapfmt.storage.local import LocalStore
from snapfmt.storage.objects import ObjectStore
from snapfmt.storage.s3 import S3Client
from snapfmt.storage.s3_url import SCHEMES


def is_store(value: object) -> TypeGuard[Store]:
    """Whether it is a store itself, and no location of one."""
    return hasattr(value, "open_workspace")


def store_at(
    location: Any,
    *,
    create: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> Store:
    """The store at a location, see `open_store`, or the one that is given in its place.

    Raises:
        InputError: If there are options for a store that is open already.
    """
    if not is_store(location):
        return open_store(location, create=create, storage_options=storage_options)
    if storage_options:
        raise InputError("an open store takes no storage options", what=location.location)
    return location


def open_store(
    location: str | os.PathLike[str],
    *,
    create: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> Store:
    """The store at a path, a `file://` URL or an `s3://bucket/prefix` URL.

    `create` makes a folder that is missing; a bucket must be there. `storage_options` are those
    that s3fs takes; a folder has none.

    Raises:
        InputError: If it is none of these, or the options do not fit.
        UnsupportedFeature: If there is no backend for such URLs.
        StoreNotFound: If the folder is not there.
    """
    if isinstance(location, bytes) or not isinstance(location, (str, os.PathLike)):
        raise InputError("a location is a path or a URL as text", what=repr(location))
    text = os.fspath(location)
    scheme, mark, rest = text.partition("://")
    scheme = scheme.lower()
    if not text or (scheme == "file" and mark and not rest):
        # It would be the folder that one happens to be in.
        raise InputError("a location is a path or a URL", what=repr(text), hint="or . for this one")
    if mark and scheme in SCHEMES:
        return ObjectStore(S3Client(f"{scheme}{mark}{rest}", storage_options))
    if mark and scheme != "file":
        raise UnsupportedFeature(
            "there is no backend for such URLs",
            what=scheme,
            hint="use a path, file:// or s3://; another file system needs an ObjectClient",
        )
    if mark and "@" in rest.partition("/")[0]:
        # Without the text: what stands before the mark may be a password.
        raise InputError(
            "a file:// URL has no user", what="file://", hint="file:///an/absolute/path"
        )
    if not mark and (found := re.match(r"(s3a?|file):", text, re.IGNORECASE)):
        # Without what may be keys.
        shown = f"{found[0]}..." if "@" in text else text
        is_file = found[1].lower() == "file"
        raise InputError(
            "not a URL of a folder" if is_file else "not a URL of a bucket",
            what=shown,
            hint="file:///an/absolute/path" if is_file else "s3://bucket/prefix",
        )
    if storage_options:
        raise InputError("a folder takes no storage options", what=", ".join(storage_options))
    path = rest if mark else text
    try:
        encoded = os.fsencode(path)
    except UnicodeEncodeError:
        encoded = b"\0"
    if b"\0" in encoded:
        raise InputError("no file system has such a path", what=ascii(path))
    return LocalStore(Path(path), create=create)
