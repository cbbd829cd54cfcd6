"""Real S3 servers pass the suite that every storage backend passes; one that ignores conditions
is refused.
"""

from collections.abc import Callable

import pytest

from snapfmt import Repository
from snapfmt.errors import UnsupportedFilesystem
from snapfmt.storage.base import Store
from snapfmt.storage.objects import ObjectStore
from snapfmt.storage.s3 import S3Client
from snapfmt.testing.s3_servers import BUCKET, S3Server, rclone
from snapfmt.testing.store_suite import StoreSuite


class TestS3(StoreSuite):
    @pytest.fixture
    def again(self, s3_server: S3Server, bucket_url: Callable[[], str]) -> Callable[[], Store]:
        url = bucket_url()
        return lambda: ObjectStore(S3Client(url, s3_server.options))

    @pytest.fixture
    def store(self, again: Callable[[], Store]) -> Store:
        store = again()
        store.prepare()
        return store


def test_a_server_that_ignores_conditions_is_refused() -> None:
    with rclone() as server:
        url = f"s3://{BUCKET}/run"
        with pytest.raises(UnsupportedFilesystem, match="If-None-Match is ignored"):
            Repository.open(url, create=True, storage_options=server.options)
        store = ObjectStore(S3Client(url, server.options))
        assert list(store.walk("")) == []
