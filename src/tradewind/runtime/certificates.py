"""The certificate, private key and CA of a rank: loaded from files, loaded again when these change, and their expiry.

Who may take part is decided by the CA of the run: both ends of a connection verify that the other's certificate is
signed by it, and that it names the site that the other end says it is. Dates are checked here rather than by OpenSSL,
whose error names neither the certificate nor its date. A connection that exists goes on when a certificate expires; new
ones need a valid one. Certificates that a peer sends between its own and the CA are verified, but not their dates: sign
with the CA itself, as `tradewind certs issue` does.
"""

from __future__ import annotations

import contextlib
import logging
import math
import ssl
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote

from tradewind.errors import BadOption
from tradewind.runtime.addresses import is_loopback
from tradewind.wire.handshake import Credentials

log = logging.getLogger("tradewind.runtime")

SecurityMode = Literal["auto", "off", "secret", "tls"]
URI_PREFIX = "tradewind:"
"""Names that are not host names are in the certificate as a URI: this prefix and the name, percent-encoded."""
WARN_BEFORE_S = 14 * 86400.0
WARN_SHARE = 0.2
"""Expiry is warned about two weeks before, or in the last fifth of the validity where that is shorter."""
WARN_AGAIN_S = 86400.0
_NO_CHECK_TIME = 0x200000
"""X509_V_FLAG_NO_CHECK_TIME of OpenSSL, for which the ssl module has no name."""


@dataclass(frozen=True, slots=True)
class CertificateFiles:
    """The files of a rank, in PEM format."""

    certificate: Path
    key: Path
    ca: Path

    def stamps(self) -> tuple[tuple[int, int, int], ...]:
        """What changes when a file is replaced; raises OSError if one cannot be read."""
        found = (path.stat() for path in (self.certificate, self.key, self.ca))
        return tuple((stat.st_mtime_ns, stat.st_size, stat.st_ino) for stat in found)


@dataclass(frozen=True, slots=True)
class Validity:
    """From when to when a certificate is valid, in seconds since 1970."""

    label: str
    """What the certificate is called in messages."""
    begins_s: float
    ends_s: float

    @classmethod
    def of(cls, label: str, certificate: Mapping[str, Any]) -> Validity:
        """The validity of a certificate as the ssl module decodes it."""
        begins, ends = (ssl.cert_time_to_seconds(certificate[key]) for key in ("notBefore", "notAfter"))
        return cls(label, begins, ends)

    def problem(self, now_s: float) -> str:
        """Why the certificate is not valid now; empty if it is.

        >>> Validity("the certificate of 'fra'", 0.0, 60.0).problem(61.0)
        "the certificate of 'fra' expired at 1970-01-01 00:01:00 UTC"
        """
        if now_s >= self.ends_s:
            return f"{self.label} expired at {as_date(self.ends_s)}"
        if now_s < self.begins_s:
            return f"{self.label} is not valid before {as_date(self.begins_s)}; check the clock of this host"
        return ""

    def is_ending(self, now_s: float) -> bool:
        """Whether it is time to warn about the end."""
        return now_s > self.ends_s - min(WARN_BEFORE_S, WARN_SHARE * (self.ends_s - self.begins_s))


def as_date(seconds: float) -> str:
    """A time in seconds since 1970, in UTC.

    >>> as_date(0.0)
    '1970-01-01 00:00:00 UTC'
    """
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds))


def names_in(certificate: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of sites in a certificate as the ssl module decodes it.

    >>> names_in({"subjectAltName": (("DNS", "fra"), ("URI", "tradewind:S%C3%A3o%20Paulo"), ("URI", "https://x"))})
    ('fra', 'São Paulo')
    """
    found = certificate.get("subjectAltName", ())
    names = (value if kind == "DNS" else unquote(value.removeprefix(URI_PREFIX)) for kind, value in found)
    return tuple(
        name
        for name, (kind, value) in zip(names, found, strict=True)
        if kind == "DNS" or (kind == "URI" and value.startswith(URI_PREFIX))
    )


@dataclass(frozen=True, slots=True)
class Loaded:
    """What was loaded from the files."""

    files: CertificateFiles
    client: ssl.SSLContext
    server: ssl.SSLContext
    der: bytes
    """The certificate itself."""
    names: tuple[str, ...]
    own: Validity
    ca: Validity
    """The validity of the CA; of several, of the one that expires last."""

    def problem(self, now_s: float) -> str:
        """Why no new connection can be made with these files now, and what to do; empty if they are valid."""
        found = self.own.problem(now_s) or self.ca.problem(now_s)
        return found and f"{found}. Replace the file (`tradewind certs issue`); it is loaded without a restart."


def load(files: CertificateFiles) -> Loaded:
    """Load certificate, key and CA, and verify that they belong together; raises BadOption."""
    for option, path in (("certificate", files.certificate), ("key", files.key), ("ca", files.ca)):
        try:
            path.read_bytes()
        except OSError as error:
            raise BadOption(f"{option}={str(path)!r} cannot be read ({error.strerror}). Correct the path.") from None
    try:
        client, server = _context(files, False), _context(files, True)
    except (ssl.SSLError, ValueError) as error:
        raise BadOption(
            f"certificate={str(files.certificate)!r}, key={str(files.key)!r}, ca={str(files.ca)!r} cannot be used "
            f"({_words(error)}). Expected PEM files of a certificate, its private key without a password, and a CA; "
            "`tradewind certs` makes them."
        ) from None
    try:
        seen = _meet(client, server)
    except ssl.SSLError as error:
        raise BadOption(
            f"certificate={str(files.certificate)!r} was not signed by ca={str(files.ca)!r}, or is not one for both "
            f"ends of a connection ({_words(error)}). Use the CA that issued it."
        ) from None
    certificate, der = seen.getpeercert(), seen.getpeercert(True)
    assert certificate is not None and der is not None
    label = f"certificate {files.certificate} (for {', '.join(names_in(certificate)) or 'no site'})"
    cas = [Validity.of(f"CA {files.ca}", ca) for ca in client.get_ca_certs()]
    if not cas:
        raise BadOption(f"ca={str(files.ca)!r} contains no CA certificate. Use the ca.crt of `tradewind certs init`.")
    last = max(cas, key=lambda ca: ca.ends_s)
    return Loaded(files, client, server, der, names_in(certificate), Validity.of(label, certificate), last)


def _context(files: CertificateFiles, server_side: bool) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server_side else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # names are those of sites, and checked in the handshake of the run
    context.verify_mode = ssl.CERT_REQUIRED
    context.verify_flags = ssl.VerifyFlags(context.verify_flags | _NO_CHECK_TIME)
    context.load_cert_chain(files.certificate, files.key, password=_no_password)
    context.load_verify_locations(files.ca)
    if server_side:
        context.num_tickets = 0  # sessions are not resumed
    return context


def _no_password() -> str:
    raise ValueError("the private key is protected by a password")


def _meet(client: ssl.SSLContext, server: ssl.SSLContext) -> ssl.SSLObject:
    """The client's end of a handshake of the two, in memory: the ssl module decodes verified certificates only."""
    there, here = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = client.wrap_bio(here, there), server.wrap_bio(there, here, server_side=True)
    for _ in range(3):
        for end in ends:
            with contextlib.suppress(ssl.SSLWantReadError):
                end.do_handshake()
    return ends[0]


def _words(error: Exception) -> str:
    """The reason of an error of the ssl module, without its codes."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message
    reason = getattr(error, "reason", None)
    return reason.replace("_", " ").lower() if reason else str(error)


class Certificates:
    """The files of a rank, loaded again when they change."""

    def __init__(self, files: CertificateFiles) -> None:
        """Load the files; raises BadOption if they cannot be used or are not valid now."""
        self._files, self._lock = files, threading.Lock()
        self._warned_s: dict[str, float] = {}
        """When the end of a certificate was last warned about, by its label."""
        loaded = load(files)
        if problem := loaded.problem(time.time()):
            raise BadOption(problem)
        self._loaded, self._stamps = loaded, files.stamps()

    def current(self) -> Loaded:
        """What to use for a new connection. Files that have changed and cannot be used are ignored, with a warning."""
        with self._lock:
            try:
                stamps = self._files.stamps()
            except OSError:  # removed, or about to be replaced
                stamps = self._stamps
            if stamps != self._stamps:
                self._stamps = stamps
                try:
                    self._loaded = load(self._files)
                    self._warned_s.clear()
                    log.info(
                        "loaded %s again, valid until %s", self._loaded.own.label, as_date(self._loaded.own.ends_s)
                    )
                except BadOption as error:
                    log.warning("a changed certificate, key or CA is not used; the one before stays in use: %s", error)
            self._warn(time.time())
            return self._loaded

    def _warn(self, now_s: float) -> None:
        """Log that the certificate, or the CA, expires soon or has expired, each once a day."""
        for one in (self._loaded.own, self._loaded.ca):
            if one.is_ending(now_s) and now_s > self._warned_s.get(one.label, -math.inf) + WARN_AGAIN_S:
                self._warned_s[one.label] = now_s
                log.warning(
                    "%s. Connections that exist go on, new ones need a valid certificate: replace the file "
                    "(`tradewind certs issue`); it is loaded without a restart.",
                    one.problem(now_s) or f"{one.label} expires at {as_date(one.ends_s)}",
                )


@dataclass(frozen=True, slots=True)
class SecureCredentials(Credentials):
    """Credentials of a run whose connections may be encrypted."""

    certificates: Certificates
    always: bool
    """Whether loopback connections are encrypted, too."""
    aead_frames: bool = False
    """Whether data connections encrypt frames with keys made inside TLS (`aead_socket`), where the other side does."""

    def encrypts(self, host: str) -> bool:
        """Whether TCP connections between this rank and an address are encrypted; both ends decide the same."""
        return self.always or not is_loopback(host)


def make_credentials(
    run: str,
    site: str,
    secret: bytes,
    mode: SecurityMode,
    files: CertificateFiles | None,
    aead_frames: bool = False,
) -> Credentials:
    """The credentials of one process of a run; raises BadOption if `mode` is tls without files."""
    if mode == "tls" and files is None:
        raise BadOption(
            "security='tls' needs certificate=, key= and ca= of Tls, or TRADEWIND_CERTIFICATE, TRADEWIND_KEY and "
            "TRADEWIND_CA. `tradewind certs init` and `tradewind certs issue` make the files."
        )
    if files is None or mode in ("off", "secret"):
        return Credentials(run, site, secret)
    return SecureCredentials(run, site, secret, Certificates(files), mode == "tls", aead_frames)
