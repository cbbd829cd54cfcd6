"""The HTTP below s3fs: no redirects. Imported when a bucket is opened."""

from typing import Any, Final

from aiobotocore.httpsession import AIOHTTPSession

_REGION: Final = "x-amz-bucket-region"
"""With it AWS says in which region to ask again, and botocore does, at AWS."""


class Redirected(Exception):
    """The server points elsewhere; its argument is the status."""


class PlainSession(AIOHTTPSession):  # type: ignore[misc]
    """Follows no redirect.

    That would hand the session's token, and the bytes, to whatever host it names.
    """

    async def _get_session(self, proxy_url: Any) -> Any:
        return _Straight(await super()._get_session(proxy_url))


class _Straight:
    def __init__(self, session: Any) -> None:
        self._session = session

    async def request(self, *args: Any, **kwargs: Any) -> Any:
        response = await self._session.request(*args, allow_redirects=False, **kwargs)
        if 300 <= response.status < 400 and _REGION not in response.headers:
            response.close()
            raise Redirected(response.status)
        return response
