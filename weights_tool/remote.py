"""Fetching outside a browser, over httpx, which comes with huggingface_hub (the extra `tools`)."""

import httpx

from app.engine.errors import NetworkError, TruncatedError
from app.engine.weights.transport import BytesBlob, OnBytes, Response


class HttpTransport:
    """Transport over httpx; `running` counts requests that have not ended."""

    def __init__(self, *, token: str | None = None, hub: str = "", proxies: bool = False) -> None:
        """Send `token`, if given, to addresses below `hub`. `proxies`: use those that the environment names."""
        self.token, self.hub = token, hub
        self.client = httpx.AsyncClient(follow_redirects=True, timeout=20, trust_env=proxies)
        self.running = 0

    async def get(
        self,
        url: str,
        *,
        start: int | None = None,
        stop: int | None = None,
        limit: int | None = None,
        on_bytes: OnBytes | None = None,
    ) -> Response:
        """See Transport."""
        headers = {} if start is None or stop is None else {"range": f"bytes={start}-{stop - 1}"}
        if self.token is not None and url.startswith(self.hub):
            headers["authorization"] = f"Bearer {self.token}"
        body, complete = bytearray(), True
        self.running += 1
        try:
            async with self.client.stream("GET", url, headers=headers) as answer:
                async for chunk in answer.aiter_bytes():
                    body += chunk
                    if limit is not None and len(body) > limit:
                        del body[limit:]
                        complete = False
                        break
                    if on_bytes:
                        on_bytes(len(body))
                got = {name.lower(): value for name, value in answer.headers.items()}
                return Response(
                    status=answer.status_code,
                    body=BytesBlob.of(bytes(body)),
                    headers=got,
                    url=str(answer.url),
                    complete=complete,
                )
        except (httpx.ReadError, httpx.RemoteProtocolError) as error:
            raise TruncatedError(f"the connection broke after {len(body)} bytes") from error
        except (httpx.TransportError, httpx.TooManyRedirects) as error:
            raise NetworkError(f"no answer came ({error})") from error
        finally:
            self.running -= 1
