"""Names of everything in a repository, relative to its root (spec/v1/03-layout.md)."""

import re

REPOSITORY_KEY = "snapfmt.json"
OBJECTS = "objects"
ATTEMPTS = "attempts"
SNAPSHOTS = "snapshots"
PINS = "pins"
FOLDERS = frozenset({OBJECTS, ATTEMPTS, SNAPSHOTS, PINS})
"""What is directly below the root beside `snapfmt.json`."""
MANIFEST = "manifest.json"
RETIRING = "retiring.json"
RETIRED = "retired.json"
DOCUMENTS = frozenset({MANIFEST, RETIRING, RETIRED})
"""Names in a snapshot's folder; it holds one of them, or for a moment the last two."""

_SNAPSHOT = re.compile(r"^snapshot_([0-9]{6,12})\Z")
_OBJECT = re.compile(r"^objects/([0-9a-f]{2})/([0-9a-f]{64})\Z")
_ATTEMPT = re.compile(r"^[0-9a-f]{32}\Z")


def object_key(digest: str) -> str:
    """Key of the object with this tagged digest."""
    name = digest.removeprefix("sha256:")
    return f"{OBJECTS}/{name[:2]}/{name}"


def object_digest(key: str) -> str | None:
    """Tagged digest that an object's key promises, or None when it is not an object's key."""
    match = _OBJECT.match(key)
    if match is None or not match[2].startswith(match[1]):
        return None
    return f"sha256:{match[2]}"


def snapshot_name(number: int) -> str:
    """Folder name of a snapshot: `snapshot_000042`."""
    return f"snapshot_{number:06d}"


def snapshot_number(name: str) -> int | None:
    """Number that a folder name stands for, or None when it is no snapshot's name."""
    match = _SNAPSHOT.match(name)
    if match is None or snapshot_name(int(match[1])) != name:
        return None
    return int(match[1])


def snapshot_key(number: int, document: str) -> str:
    """Key of a document in a snapshot's folder: `MANIFEST`, `RETIRING` or `RETIRED`."""
    return f"{SNAPSHOTS}/{snapshot_name(number)}/{document}"


def manifest_key(number: int) -> str:
    """Key of a published manifest."""
    return snapshot_key(number, MANIFEST)


def lease_key(attempt_id: str) -> str:
    """Key of an attempt's lease."""
    return f"{ATTEMPTS}/{attempt_id}.json"


def workspace_key(attempt_id: str) -> str:
    """Folder of an attempt's temporary files."""
    return f"{ATTEMPTS}/{attempt_id}"


def copy_key(attempt_id: str) -> str:
    """Workspace of a copier; one level down, so that no clean-up takes its objects for a save's."""
    return f"{workspace_key(attempt_id)}/copy"


def collect_key(attempt_id: str) -> str:
    """Workspace of a collector; copiers see by it that one is at work."""
    return f"{workspace_key(attempt_id)}/collect"


def retire_key(attempt_id: str) -> str:
    """Workspace of a retirement; who pins sees by it that snapshots may be on their way out."""
    return f"{workspace_key(attempt_id)}/retire"


def inner_keys(attempt_id: str) -> tuple[str, ...]:
    """Every workspace that is one level down."""
    return copy_key(attempt_id), collect_key(attempt_id), retire_key(attempt_id)


def pin_key(name: str) -> str:
    """Key of a pin."""
    return f"{PINS}/{name}.json"


def is_attempt_id(name: str) -> bool:
    """Whether a name is an attempt's id."""
    return _ATTEMPT.match(name) is not None
