"""A journal in a folder: one file for each operation.

A file is written whole, flushed to the disk, and only then given its name; the folder is flushed too. So a
crash leaves either the old file or the new one. What is done has another ending, so that nobody who looks for
what is pending has to read it. A lock of the operating system stands around each act, and
ends with the process that held it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from itertools import chain
from pathlib import Path
from typing import Final

from ..errors import ConfigurationError
from .entry import Entry
from .errors import JournalFailed
from .inside import Inside
from .journal import is_old, readable

_ENDING: Final = ".operation"
_DONE: Final = ".done"
_UNFINISHED: Final = ".part"


class FileJournal:
    """Operations in files of their own, readable by this user only. Several processes may share a folder."""

    in_threads = True

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        try:
            import fcntl
        except ImportError:
            raise ConfigurationError(
                "FileJournal needs the file locks of POSIX, which this system lacks. Use TableJournal with a "
                "SQLite file: TableJournal('sqlite:///operations.db')."
            ) from None
        self._lock_file, self._locks = fcntl.flock, fcntl
        self._inside = Inside()
        self._folder = Path(folder)
        with _in_our_words(self._folder):
            new = not self._folder.exists()
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if new:
                _flush(self._folder.resolve().parent)

    def begin(self, entry: Entry) -> Entry | None:
        with self._alone():
            found = self._read(entry.label)
            self._write(entry if found is None else found.begun_again(entry))
            return found

    def join(self, entry: Entry) -> Entry | None:
        with self._alone():
            found = self._read(entry.label)
            if found is None or found.key != entry.key:
                return None
            self._write(found.is_joined())
            return found

    def note(self, entry: Entry, expires_at: float) -> None:
        with self._alone():
            found = self._read(entry.label)
            if found is not None and found.key == entry.key:
                self._write(found.noted(expires_at))

    def finish(self, entry: Entry, now: float, expires_at: float | None = None) -> None:
        with self._alone():
            found = self._read(entry.label) or entry
            if found.key != entry.key:
                return
            if entry.name is not None:
                self._write(found.finished(entry, now, expires_at))
            else:
                self._remove(entry.label)

    def drop(self, entry: Entry) -> None:
        with self._alone():
            found = self._read(entry.label)
            if found is not None and found.may_be_dropped(entry.key):
                self._remove(entry.label)

    def discard(self, entry: Entry) -> None:
        with self._alone():
            found = self._read(entry.label)
            if found is not None and found.may_be_discarded(entry.key):
                self._remove(entry.label)

    def pending(self) -> list[Entry]:
        with self._alone():
            return sorted(
                (one for one in self._all(_ENDING) if one.finished_at is None), key=lambda one: one.begun_at
            )

    def forget(self, older_than: timedelta, now: float) -> int:
        # Nobody waits while they are read: there may be many. Each is looked at once more before it goes.
        done = chain(self._all(_DONE), self._all(_ENDING))
        old = [one.label for one in done if is_old(one, older_than, now)]
        gone = 0
        for label in old:
            with self._alone():
                found = self._read(label)
                if found is not None and is_old(found, older_than, now):
                    self._remove(label)
                    gone += 1
        return gone

    @contextmanager
    def _alone(self) -> Iterator[None]:
        with self._inside, _in_our_words(self._folder):
            handle = os.open(self._folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                self._lock_file(handle, self._locks.LOCK_EX)
                yield
            finally:
                os.close(handle)  # which ends the lock too

    def _path(self, label: str, ending: str = _ENDING) -> Path:
        return self._folder / f"{label}{ending}"

    def _all(self, ending: str) -> Iterator[Entry]:
        found = ((str(path), _content(path)) for path in self._folder.glob(f"*{ending}"))
        return readable((where, content) for where, content in found if content is not None)

    def _read(self, label: str) -> Entry | None:
        for path in (self._path(label), self._path(label, _DONE)):
            try:
                return Entry.decode(path.read_bytes(), str(path))
            except FileNotFoundError:
                continue
        return None

    def _write(self, entry: Entry) -> None:
        """One file for each, whatever its ending: it is renamed by itself, before it is written or after."""
        with suppress(FileNotFoundError):
            os.rename(self._path(entry.label, _DONE), self._path(entry.label))
        # Nobody else writes here while we have the lock: what stands there is from a process that died.
        unfinished = self._folder / _UNFINISHED
        unfinished.unlink(missing_ok=True)
        handle = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(entry.encode())
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, self._path(entry.label))
        if entry.finished_at is not None:
            os.rename(self._path(entry.label), self._path(entry.label, _DONE))
        _flush(self._folder)

    def _remove(self, label: str) -> None:
        for ending in (_ENDING, _DONE):
            self._path(label, ending).unlink(missing_ok=True)
        _flush(self._folder)


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None  # it has gone since, or is done
    except OSError:
        return b""  # a fault of the disk: as good as damaged


def _flush(folder: Path) -> None:
    """A file's new name is on the disk only when its folder is."""
    handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def _in_our_words(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise JournalFailed(
            f"The journal in {folder} cannot be used, so nothing was sent: {error}"
        ) from error
