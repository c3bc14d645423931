"""A small server that speaks the part of S3 which the artifact store uses, in memory, on the loopback."""

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

_MODIFIED = "2026-01-02T03:04:05.000Z"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    files: dict[str, bytes]

    def do_PUT(self) -> None:
        data = self.rfile.read(int(self.headers["Content-Length"]))
        if self._lacks_bucket():
            return
        self.files[self._key] = data
        self._answer(200, b"", {"ETag": _etag(data)})

    def do_GET(self) -> None:
        if self._lacks_bucket():
            return
        if "list-type" in self.path:
            prefix = parse_qs(urlsplit(self.path).query).get("prefix", [""])[0]
            self._answer(200, self._listing(prefix))
        elif (data := self.files.get(self._key)) is None:
            self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
        elif "Range" in self.headers:
            first, last = (int(text) for text in self.headers["Range"].removeprefix("bytes=").split("-"))
            part = data[first : last + 1]
            span = {"Content-Range": f"bytes {first}-{first + len(part) - 1}/{len(data)}"}
            self._answer(206, part, span | {"ETag": _etag(data)})
        else:
            self._answer(200, data, {"ETag": _etag(data)})

    do_HEAD = do_GET  # noqa: N815 - the name that http.server looks for

    def do_DELETE(self) -> None:
        self.files.pop(self._key, None)
        self._answer(204, b"")

    def _lacks_bucket(self) -> bool:
        """Answer as for a bucket that does not exist, if its name says so."""
        lacks = urlsplit(self.path).path.split("/")[1] == "missing"
        if lacks:
            self._answer(404, b"<Error><Code>NoSuchBucket</Code></Error>")
        return lacks

    def log_message(self, *_: object) -> None:
        """Keep quiet."""

    @property
    def _key(self) -> str:
        return unquote(urlsplit(self.path).path).split("/", 2)[2]

    def _listing(self, prefix: str) -> bytes:
        entries = "".join(
            f"<Contents><Key>{key}</Key><Size>{len(data)}</Size><LastModified>{_MODIFIED}</LastModified>"
            f"<ETag>{_etag(data)}</ETag></Contents>"
            for key, data in sorted(self.files.items())
            if key.startswith(prefix)
        )
        return f"<ListBucketResult><IsTruncated>false</IsTruncated>{entries}</ListBucketResult>".encode()

    def _answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Last-Modified", "Fri, 02 Jan 2026 03:04:05 GMT")
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _etag(data: bytes) -> str:
    return f'"{hashlib.md5(data).hexdigest()}"'  # noqa: S324 - what S3 itself does


@contextmanager
def s3_server() -> Iterator[str]:
    """Run the server; yields its address."""
    handler = type("Handler", (_Handler,), {"files": {}})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()
