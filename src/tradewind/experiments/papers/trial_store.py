"""Results of single trials on disk, so that an interrupted run continues where it ended.

A result counts only for the code that computed it: any change of the package makes it void. The file holds pickles, and
is for the machine and user that wrote it.
"""

from __future__ import annotations

import pickle
import sqlite3
from collections.abc import Callable, Hashable
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Any, Final

from tradewind.errors import InputError

MISSING: Final[Any] = object()
"""What `get` returns for a call that is not stored."""


class TrialStore:
    """Results by call, in one SQLite file; results of other code than `code` are removed.

    >>> with TrialStore(Path(":memory:"), "a1b2") as store:
    ...     store.put(pow, (2, 3), 8)
    ...     store.get(pow, (2, 3)), store.get(pow, (3, 2)) is MISSING
    (8, True)
    """

    def __init__(self, path: Path, code: str) -> None:
        """Open the file, or make it. Raises `InputError` if it is no such file."""
        self._lock = Lock()
        try:
            self._file = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
            self._file.execute("CREATE TABLE IF NOT EXISTS trials (code TEXT, call TEXT PRIMARY KEY, result BLOB)")
            self._file.execute("DELETE FROM trials WHERE code <> ?", (code,))
        except sqlite3.Error as error:
            raise InputError(f"{path} holds no trials: {error}. Remove it, or use another folder.") from error
        self._code = code

    def get(self, trial: Callable[..., Any], given: tuple[Hashable, ...]) -> Any:
        """The stored result of a call, or `MISSING`."""
        with self._lock:
            rows = self._file.execute("SELECT result FROM trials WHERE call = ?", (_name(trial, given),))
            found = rows.fetchone()
        return MISSING if found is None else pickle.loads(found[0])

    def put(self, trial: Callable[..., Any], given: tuple[Hashable, ...], result: object) -> None:
        """Store the result of a call."""
        row = (self._code, _name(trial, given), pickle.dumps(result))
        with self._lock:
            self._file.execute("INSERT OR REPLACE INTO trials VALUES (?, ?, ?)", row)

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._file.close()

    def __enter__(self) -> TrialStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _name(trial: Callable[..., Any], given: tuple[Hashable, ...]) -> str:
    """The call as text. Arguments are plain values and frozen dataclasses, whose text tells all of their fields."""
    return f"{trial.__module__}.{trial.__qualname__}{given!r}"
