"""Pieces of the golden vectors, as the seeds of parsers (spec/vectors/README.md)."""

import base64
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from snapfmt.format import jsonl, layout
from snapfmt.format.batch_index import BatchIndex, BatchPlace
from snapfmt_schemas.attempt import Receipt
from snapfmt_schemas.manifest import Manifest
from snapfmt_schemas.part import Location, PartIndex, Segment

GOLDEN = "golden-0.1.0"


@dataclass(frozen=True)
class Golden:
    """The vectors below a folder."""

    vectors: Path

    @property
    def repository(self) -> Path:
        """The golden repository."""
        return self.vectors / GOLDEN / "repository"

    @cached_property
    def manifests(self) -> list[bytes]:
        """Every manifest."""
        return [path.read_bytes() for path in sorted(self.repository.glob("snapshots/*/*.json"))]

    @cached_property
    def parts(self) -> list[tuple[Receipt, bytes]]:
        """Every part's receipt and index."""
        found = [
            receipt
            for data in self.manifests
            for receipt in Manifest.model_validate_json(data).parts
        ]
        return [(receipt, self._object(receipt.index_digest)) for receipt in found]

    @cached_property
    def segments(self) -> list[Segment]:
        """Every segment of every table."""
        indexes = [PartIndex.model_validate_json(data) for _, data in self.parts]
        return [item for index in indexes for table in index.tables for item in table.segments]

    def documents(self, kind: str) -> list[bytes]:
        """The cases of a kind, good and bad ones."""
        cases: list[dict[str, Any]] = json.loads((self.vectors / "documents.json").read_bytes())
        return [
            base64.b64decode(case["base64"]) if "base64" in case else case["text"].encode()
            for case in cases
            if case["kind"] == kind
        ]

    def extent(self, place: Location) -> bytes:
        """The bytes at a place."""
        return self._object(place.pack)[place.offset : place.offset + place.size]

    def batches(self, segment: Segment) -> Iterator[tuple[BatchPlace, bytes]]:
        """Where every batch of a segment lies, and the stream that it lies in."""
        stream = self.extent(segment.data)
        index = BatchIndex(
            self.extent(segment.batches),
            segment.columns,
            rows=segment.rows,
            head_size=segment.head_size,
            stream_size=segment.data.size,
            what="golden",
        )
        for number in range(len(index)):
            yield index.place(number), stream

    def records(self) -> Iterator[tuple[bytes, bytes]]:
        """Every record file and its index."""
        for _, data in self.parts:
            entries = {item.path: item for item in PartIndex.model_validate_json(data).entries}
            for item in entries.values():
                if item.media_type == jsonl.MEDIA_TYPE and item.index is not None:
                    yield self.extent(item.location), self.extent(entries[item.index].location)

    def _object(self, name: str) -> bytes:
        return (self.repository / layout.object_key(name)).read_bytes()
