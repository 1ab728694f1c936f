"""A client of the API server for the addons: plain JSON over aiohttp, and a copy of a resource that follows the server.

Small on purpose: an addon starts in a third of a second and lives through every stop and start of the API server.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import os
import ssl
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Self

import aiohttp
import yaml

Object = dict[str, Any]
Key = tuple[str, str]
"""Namespace (empty for cluster-wide objects) and name."""

RETRY_SECONDS = 0.3
WATCH_SECONDS = 300
# aiohttp refuses a longer line; one watch event is one line.
LINE_LIMIT_BYTES = 2**22
MERGE_PATCH = "application/merge-patch+json"
CONNECTION_ERRORS = (aiohttp.ClientError, asyncio.TimeoutError, OSError, json.JSONDecodeError)


class ApiError(RuntimeError):
    """The API server refused a request."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status


class Api:
    """Requests to the API server of a kubeconfig; use it as an asynchronous context manager."""

    def __init__(self, kubeconfig: Path) -> None:
        config = yaml.safe_load(kubeconfig.read_text())
        context = _named(config["contexts"], config["current-context"])["context"]
        cluster = _named(config["clusters"], context["cluster"])["cluster"]
        user = _named(config["users"], context["user"])["user"]
        self._server: str = cluster["server"].rstrip("/")
        self._ssl = ssl.create_default_context(cadata=_data(cluster, "certificate-authority", kubeconfig.parent).decode())
        if "client-certificate-data" in user or "client-certificate" in user:
            # The ssl module reads certificates from files only.
            with tempfile.NamedTemporaryFile() as file:
                file.write(_data(user, "client-certificate", kubeconfig.parent) + b"\n" + _data(user, "client-key", kubeconfig.parent))
                file.flush()
                self._ssl.load_cert_chain(file.name)
        self._headers = {"Authorization": f"Bearer {user['token']}"} if "token" in user else {}
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            headers=self._headers,
            connector=aiohttp.TCPConnector(ssl=self._ssl),
            timeout=aiohttp.ClientTimeout(total=30),
            read_bufsize=LINE_LIMIT_BYTES,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.session.close()

    @property
    def session(self) -> aiohttp.ClientSession:
        """The open HTTP session."""
        if self._session is None:
            raise RuntimeError("Api: enter it first, with `async with`")
        return self._session

    async def call(
        self, method: str, path: str, body: Object | None = None, content: str = "application/json", query: Mapping[str, str] | None = None
    ) -> Object:
        """One request; raises ApiError for any answer but success, and CONNECTION_ERRORS."""
        data = None if body is None else json.dumps(body)
        async with self.session.request(
            method, self._server + path, data=data, params=query, headers={"Content-Type": content} if data is not None else None
        ) as response:
            text = await response.text()
            if response.status >= 300:
                raise ApiError(response.status, _message(text))
            answer: Object = json.loads(text)
            return answer

    async def patch(self, path: str, body: Object) -> Object:
        """Merge patch."""
        return await self.call("PATCH", path, body, MERGE_PATCH)


def _named(entries: list[Object], name: str) -> Object:
    return next(entry for entry in entries if entry["name"] == name)


def _data(entry: Object, name: str, folder: Path) -> bytes:
    if f"{name}-data" in entry:
        return base64.b64decode(entry[f"{name}-data"])
    return (folder / os.fspath(entry[name])).read_bytes()


def _message(text: str) -> str:
    try:
        return str(json.loads(text)["message"])
    except (json.JSONDecodeError, KeyError, TypeError):
        return text[:500]


class Copy:
    """A resource's objects as last seen. `changed` is called after the first complete list and after every change."""

    def __init__(self, api: Api, path: str, changed: Callable[[], None]) -> None:
        self.objects: dict[Key, Object] = {}
        self.complete = False
        self._api = api
        self._path = path
        self._changed = changed

    async def follow(self) -> None:
        """Runs for ever. What was seen stays while the server is away, and is replaced by a fresh list when it is back."""
        while True:
            try:
                version = await self._list()
                while True:
                    version = await self._watch(version)
            except (ApiError, *CONNECTION_ERRORS) as error:
                print(f"{self._path}: {type(error).__name__}: {error}; listing again", flush=True)
                await asyncio.sleep(RETRY_SECONDS)

    async def _list(self) -> str:
        answer = await self._api.call("GET", self._path)
        self.objects = {_key(item): item for item in answer["items"]}
        self.complete = True
        self._changed()
        return str(answer["metadata"]["resourceVersion"])

    async def _watch(self, version: str) -> str:
        """Applies events until the server ends the watch; returns the version to go on from."""
        query = {"watch": "1", "allowWatchBookmarks": "true", "timeoutSeconds": str(WATCH_SECONDS), "resourceVersion": version}
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=WATCH_SECONDS + 30)
        async with self._api.session.get(self._api._server + self._path, params=query, timeout=timeout) as response:
            if response.status >= 300:
                raise ApiError(response.status, _message(await response.text()))
            async for line in response.content:
                event = json.loads(line)
                item = event["object"]
                if event["type"] == "ERROR":
                    raise ApiError(int(item.get("code", 0)), str(item.get("message")))
                version = item["metadata"]["resourceVersion"]
                if event["type"] == "BOOKMARK":
                    continue
                if event["type"] == "DELETED":
                    self.objects.pop(_key(item), None)
                else:
                    self.objects[_key(item)] = item
                self._changed()
        return version


def _key(item: Object) -> Key:
    return item["metadata"].get("namespace", ""), item["metadata"]["name"]


async def settle(changed: asyncio.Event, at_least_every_seconds: float) -> None:
    """Waits for the next change, or for the time to look again even so."""
    try:
        await asyncio.wait_for(changed.wait(), at_least_every_seconds)
    except TimeoutError:
        return
    changed.clear()


def run_for_ever(description: str | None, addon: Callable[[Api], Awaitable[None]]) -> None:
    """Entry point of an addon that is told nothing but a kubeconfig."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--kubeconfig", type=Path, required=True)
    kubeconfig: Path = parser.parse_args().kubeconfig

    async def serve() -> None:
        async with Api(kubeconfig) as api:
            await addon(api)

    asyncio.run(serve())
