"""Requests to a running server: each has a deadline, and each way to fail has its own message."""

from __future__ import annotations

import json
import time
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import IncompleteRead
from typing import Any

import urllib3
from urllib3.exceptions import HTTPError, ProtocolError, ReadTimeoutError

from .errors import Exit, Failure
from .listing import counted

_CONNECT_SECONDS = 10.0
_PIECE = 1 << 16
_SHOWN = 300
_SHOWN_OF_A_PAGE = 80
# Asked for any of these, this machine answers.
_HERE = ("localhost", "127.0.0.1", "0.0.0.0", "::1", "::")
_PORTS = {"http": 80, "https": 443}
_ALWAYS = ("/health", "/server_info", "/model_info", "/v1/models")
_LOG = "look into the server's log"


class Unreachable(Failure):
    """Nothing answers at this address: there is no point in asking more."""


class Server:
    """One server by its URL. Methods raise Failure(SERVER); Unreachable when it can't be reached.

    seconds is how long a request may take, connecting and reading together; after begin_phase(), how
    long all requests may take until the next one. option is how the user's command names a server.
    May be used by many threads at once.
    """

    def __init__(
        self,
        url: str,
        seconds: float = 120.0,
        api_key: str | None = None,
        option: str = "--url URL",
    ):
        self.url = url.rstrip("/")
        self.option = option
        self.seconds = seconds
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._pool = urllib3.PoolManager(maxsize=64, retries=False)
        self._phase_end: float | None = None

    def begin_phase(self) -> None:
        """From now on all requests together have `seconds`, until this is called again."""
        self._phase_end = time.monotonic() + self.seconds

    def get(self, path: str) -> Any:
        """The JSON that a path answers with; None for an empty body."""
        data = self._whole("GET", path, None)
        if _is_page(data.decode("utf-8", "replace")):
            raise self._foreign(path, 200, data.decode("utf-8", "replace"))
        return _decoded(data, f"GET {path}")

    def post(self, path: str, body: dict) -> Any:
        """The JSON answer to a JSON body; None for an empty one."""
        return _decoded(self._whole("POST", path, body), f"POST {path}")

    def tell(self, path: str, body: dict) -> None:
        """POST a JSON body where the answer is a phrase for people."""
        self._whole("POST", path, body)

    def healthy(self, seconds: float = 2.0) -> bool:
        """Whether /health answers 200 right now; never raises."""
        try:
            timeout = urllib3.Timeout(total=seconds)
            url = f"{self.url}/health"
            return self._pool.request("GET", url, timeout=timeout).status == 200
        except (HTTPError, OSError):
            return False

    def stream(self, path: str, body: dict) -> Iterator[dict]:
        """The events of a streamed answer.

        Raises Failure when it ends before its last event, "[DONE]".
        """
        pieces, finished, other = 0, False, b""
        for line in self._lines("POST", path, {**body, "stream": True}):
            if not line.startswith(b"data:"):
                other = (other + line + b"\n")[:_PIECE]
                continue
            data = line.removeprefix(b"data:").strip()
            if data == b"[DONE]":
                finished = True
                break
            pieces += 1
            event = _decoded(data, f"POST {path}")
            if "error" in event:
                raise self._failure(
                    f"the streamed answer is an error: {_cut(json.dumps(event['error']))}",
                    path,
                )
            yield event
        if not finished:
            said = other.decode("utf-8", "replace")
            if not pieces and _is_page(said):
                raise self._foreign(path, 200, said)
            raise self._failure(
                f"the streamed answer broke off after {counted(range(pieces), 'piece')}, without [DONE]",
                path,
            )

    def _whole(self, method: str, path: str, body: dict | None) -> bytes:
        with self._response(method, path, body) as pieces:
            return b"".join(pieces)

    def _lines(self, method: str, path: str, body: dict) -> Iterator[bytes]:
        rest = b""
        with self._response(method, path, body) as pieces:
            for piece in pieces:
                *lines, rest = (rest + piece).split(b"\n")
                yield from lines
        if rest:
            yield rest

    @contextmanager
    def _response(self, method: str, path: str, body: dict | None):
        """The body of an answer in pieces, as they come, until the deadline."""
        now = time.monotonic()
        deadline = self._phase_end or now + self.seconds
        left = deadline - now
        if left <= 0:
            raise self._late(path)
        response = None
        try:
            response = self._pool.request(
                method,
                self.url + path,
                json=body,
                headers=self._headers,
                timeout=urllib3.Timeout(
                    connect=min(_CONNECT_SECONDS, left), total=left
                ),
                preload_content=False,
            )
            if response.status != 200:
                raise self._refused(response, method, path)
            yield self._pieces(response, deadline, path)
        except ReadTimeoutError:
            raise self._late(path) from None
        except ProtocolError as error:
            raise self._broken(error, path) from None
        except (HTTPError, OSError) as error:
            raise self._unreachable(error) from None
        finally:
            if response is not None:
                response.close()

    def _pieces(self, response, deadline: float, path: str) -> Iterator[bytes]:
        while piece := response.read1(_PIECE):
            # The time-out of the socket starts anew with each byte; this one does not.
            if time.monotonic() > deadline:
                raise self._late(path)
            yield piece

    def _refused(self, response, method: str, path: str) -> Failure:
        said = response.read(_PIECE).decode("utf-8", "replace")
        # A server of SGLang that does not serve yet has these too, and no pages for people.
        unknown = path in _ALWAYS and response.status == 404
        if method == "GET" and (unknown or _is_page(said)):
            return self._foreign(path, response.status, said)
        return self._failure(
            f"{method} {path} was answered with HTTP {response.status}: "
            f"{_cut(_message(said)) or 'no message'}",
            path,
        )

    def _foreign(self, path: str, status: int, said: str) -> Failure:
        # The body stands in `where` alone, which a smoke test prints once.
        body = _cut(said, _SHOWN_OF_A_PAGE) or "no body"
        return Failure(
            Exit.SERVER,
            f"what answers at {self.url} is not an SGLang server",
            where=f"{self.url}{path}: HTTP {status}: {body}",
            state="it was only asked; nothing was changed",
            next=f"check the address ({self.option})",
        )

    def _late(self, path: str) -> Failure:
        return self._failure(
            f"no whole answer in {self.seconds:g} s",
            path,
            "look into the server's log, or give it longer: --timeout S",
        )

    def _broken(self, error: Exception, path: str) -> Failure:
        return self._failure(f"the answer broke off: {_cut(_broken_off(error))}", path)

    def _unreachable(self, error: Exception) -> Failure:
        return Unreachable(
            Exit.SERVER,
            f"no server answers at {self.url}: {_cut(_reason(error))}",
            where=self.url,
            state="nothing was changed",
            next=f"start one with scripts/serve.sh, or name its address with {self.option}",
        )

    def _failure(self, what: str, path: str, next: str = _LOG) -> Failure:
        return Failure(
            Exit.SERVER,
            what,
            where=self.url + path,
            state="the server was only asked; nothing was changed",
            next=next,
        )


def web_address(text: str) -> str:
    """The text, which is the URL of a server. Raises ValueError for another form."""
    if not text.startswith(("http://", "https://")):
        raise ValueError(f"{text!r} needs http:// or https:// before it")
    parts = urllib.parse.urlsplit(text)
    # Asking for the port raises ValueError when it is none.
    if not parts.hostname or parts.port == 0:
        raise ValueError(f"{text!r} is no address such as http://127.0.0.1:30000")
    return text


def same_server(one: str, other: str) -> bool:
    """Whether two URLs are two ways to write one server's address."""
    return _address(one) == _address(other)


def _address(url: str) -> tuple[str, str, int, str]:
    parts = urllib.parse.urlsplit(url)
    host = parts.hostname or ""
    return (
        parts.scheme,
        "127.0.0.1" if host in _HERE else host,
        parts.port or _PORTS[parts.scheme],
        parts.path.rstrip("/"),
    )


def _decoded(data: bytes, request: str) -> Any:
    if not data.strip():
        return None
    try:
        return json.loads(data)
    except ValueError:
        raise Failure(
            Exit.SERVER,
            f"{request} was answered with something that is no JSON: "
            f"{_cut(data.decode('utf-8', 'replace'))}",
            state="the server was only asked; nothing was changed",
            next="make sure that the address is that of an SGLang server",
        ) from None


def _is_page(said: str) -> bool:
    """Whether this is a page of HTML, which no path of SGLang's answers with."""
    return said.lstrip().startswith("<")


def _message(said: str) -> str:
    """The message in an error body of SGLang or FastAPI, or the body itself."""
    try:
        body = json.loads(said)
    except ValueError:
        return said.strip()
    for place in (body, body.get("error")) if isinstance(body, dict) else ():
        if isinstance(place, dict):
            for key in ("message", "detail"):
                if place.get(key):
                    return str(place[key])
    return said.strip()


def _reason(error: BaseException) -> str:
    """The innermost cause, which is what a person can act on."""
    while error.__cause__ or error.__context__:
        error = error.__cause__ or error.__context__
    return getattr(error, "strerror", None) or str(error)


def _broken_off(error: BaseException) -> str:
    """What http.client and urllib3 tell as a tuple, in words."""
    cause = error.args[-1] if error.args else error
    if not isinstance(cause, IncompleteRead):
        return str(cause) or type(cause).__name__
    # In chunks the length was never told.
    missing = f"{cause.expected} bytes" if cause.expected else "the rest"
    return f"the connection ended, and {missing} did not come"


def _cut(text: str, shown: int = _SHOWN) -> str:
    line = " ".join(text.split())
    return line if len(line) <= shown else f"{line[:shown]}..."
