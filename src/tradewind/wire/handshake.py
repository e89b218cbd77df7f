"""The handshake: both sides prove that they know the secret of the run before any other byte is processed.

    client                                   server
      Hello(run, site, purpose, nonce)  ──>
                                        <──  Challenge(nonce)
      Proof(HMAC of all of the above)   ──>
                                        <──  Accepted(HMAC of all of the above)     or  Refused(reason)

The secret is never sent. Each proof covers all messages of both sides and the role of its sender, so that a proof can
neither be replayed on another connection nor reflected to its sender, and an attacker on the path cannot change the
site name. The client proves first: a server sends no proof to an unauthenticated client. Nonces are arguments, since
this module has no randomness. The handshake is admission control: it neither encrypts nor signs what follows. Inside a
TLS connection (`runtime/tls.py`) proofs cover the certificates of both sides, too, and a side is refused if its
certificate does not name the site that it says it is. There, Hello and Challenge may also contain a part of the keys of
encrypted frames each; if both do, the frames that follow the handshake are encrypted with them (`frame_keys`).
"""

from __future__ import annotations

import functools
import hashlib
import hmac
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from tradewind.errors import BadFrame, NotAdmitted
from tradewind.wire.frame_keys import CONTRIBUTION_BYTES, FrameKeys, frame_keys
from tradewind.wire.frames import WIRE_VERSION, FrameKind, FrameReader
from tradewind.wire.messages import Accepted, Challenge, Hello, Message, Proof, Refused, decode_message, encode_message

MAX_HANDSHAKE_BYTES = 4096
NONCE_BYTES = 32
MIN_SECRET_BYTES = 8
CONTROL_PURPOSE = "control"
"""The purpose of a rank's connection to a controller."""
DATA_PURPOSE = "data "
"""What the purpose of a connection that carries chunks begins with."""
LONG_SECRET_BYTES = 32
"""Shorter secrets are taken for ones that people type, and stretched."""
SCRYPT_N, SCRYPT_R = 2**15, 8
"""The cost of stretching: 32 MiB and about a tenth of a second for each guess."""
SECRET_VARIABLE = "TRADEWIND_SECRET"
"""Environment variable that holds the secret of the run if it is not passed as an argument."""


def run_number(run: str) -> int:
    """Return the number in every frame for the name of a run, by which frames of another run are detected."""
    return int.from_bytes(hashlib.sha256(run.encode()).digest()[:4], "big")


@functools.lru_cache(maxsize=8)
def key_of(secret: bytes, run: str) -> bytes:
    """Return the key of a run's proofs.

    A short secret may be guessed: every guess against a recorded handshake has to be stretched with scrypt. For a long,
    random one HKDF (RFC 5869) is enough. The name of the run is the salt.

    >>> len(key_of(b"correct horse", "run")), key_of(bytes(32), "a") == key_of(bytes(32), "b")
    (32, False)
    """
    salt = b"tradewind key\0" + run.encode()
    if 0 < len(secret) < LONG_SECRET_BYTES:  # none at all is that of a run without security
        memory = 2 * 128 * SCRYPT_N * SCRYPT_R
        return hashlib.scrypt(secret, salt=salt, n=SCRYPT_N, r=SCRYPT_R, p=1, maxmem=memory, dklen=32)
    drawn = hmac.digest(salt, secret, "sha256")
    return hmac.digest(drawn, b"handshake\1", "sha256")


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a process needs for every handshake."""

    run: str
    site: str
    secret: bytes = field(repr=False)
    """The secret of the run, which must never be in a log."""

    def __post_init__(self) -> None:
        key_of(self.secret, self.run)  # stretching takes long, and must not take the time of a handshake

    @property
    def number(self) -> int:
        """The number of the run in frames."""
        return run_number(self.run)


@dataclass(frozen=True, slots=True)
class Peer:
    """The authenticated other end of a connection."""

    site: str
    purpose: str


@dataclass(frozen=True, slots=True)
class Channel:
    """What the TLS connection below a handshake says of the other side."""

    names: tuple[str, ...]
    """The names of sites in its verified certificate."""
    binding: bytes
    """A digest of the certificates of both sides: proofs cannot be relayed to a connection with other ones."""
    problem: str = ""
    """Why its certificate is not valid now; empty if it is."""


def certified_name(process: str) -> str:
    """The name that the certificate of a process must contain: that of its site.

    >>> [certified_name(name) for name in ("fra", "fra/1", "controller of fra/1", "controller 0")]
    ['fra', 'fra', 'fra', 'controller']
    """
    name = process.removeprefix("controller of ")
    site, slash, number = name.rpartition("/")
    if slash and number.isdecimal():
        return site
    return "controller" if name.startswith("controller ") and name.split(" ", 1)[1].isdecimal() else name


class Handshake:
    """One side of the handshake of a connection.

    Pass received bytes to `receive` and send what it returns, until `peer` is set. A refusal raises `NotAdmitted`, and
    an invalid message `BadFrame`; `last_words` then holds the bytes to send before closing.
    """

    def __init__(
        self, credentials: Credentials, nonce: bytes, channel: Channel | None = None, keying: bytes = b""
    ) -> None:
        """`keying`: random bytes if frames may be encrypted on this connection; it must be one of TLS."""
        if len(nonce) < 16:
            raise ValueError(f"a nonce must have at least 16 bytes, got {len(nonce)}")
        if keying and (channel is None or len(keying) != CONTRIBUTION_BYTES):
            raise ValueError(f"keys need {CONTRIBUTION_BYTES} random bytes and a TLS connection, got {len(keying)}")
        self.credentials = credentials
        self.peer: Peer | None = None
        self.last_words = b""
        self._nonce, self._channel, self._keying = nonce, channel, keying
        self._reader = FrameReader(MAX_HANDSHAKE_BYTES)
        self._hello: Hello | None = None
        self._challenge: Challenge | None = None
        self._expects: Callable[[Message], bytes]

    def receive(self, data: bytes) -> bytes:
        """Process received bytes and return the bytes to answer, possibly none."""
        answers = b""
        try:
            for header, payload in self._reader.feed(data):
                if self.peer is not None:
                    raise BadFrame("more bytes arrived before the handshake was answered.")
                if header.kind is not FrameKind.MESSAGE:
                    raise BadFrame(f"a {header.kind.name} frame arrived before the handshake had ended.")
                answers += self._handle(decode_message(payload))
        except BadFrame as error:
            self.last_words = self._encode(Refused(f"{self.credentials.site!r} refused the connection: {error}"[:500]))
            raise
        return answers

    def frame_keys(self) -> FrameKeys | None:
        """The keys of the frames that follow the handshake, once `peer` is set; None: they are not encrypted."""
        assert self.peer is not None and self._hello is not None and self._challenge is not None
        if not self._keying or min(len(self._hello.keying), len(self._challenge.keying)) < CONTRIBUTION_BYTES:
            return None
        return frame_keys(self._digest("frame keys"), isinstance(self, ClientHandshake))

    def _handle(self, message: Message) -> bytes:
        if isinstance(message, Refused):
            raise NotAdmitted(message.reason)
        return self._expects(message)

    def _encode(self, message: Message) -> bytes:
        return encode_message(message, self.credentials.number)

    def _refuse(self, reason: str) -> NotAdmitted:
        self.last_words = self._encode(Refused(reason))
        return NotAdmitted(reason)

    def _check_version(self, version: int, whose: str) -> None:
        if version != WIRE_VERSION:
            raise self._refuse(
                f"{whose!r} has wire version {version}, {self.credentials.site!r} has {WIRE_VERSION}. "
                "Run the same release everywhere."
            )

    def _check_certificate(self, site: str) -> None:
        """Refuse a side whose certificate is not valid or does not name its site."""
        channel, name = self._channel, certified_name(site)
        if channel is not None and channel.problem:
            raise self._refuse(f"{self.credentials.site!r} refused {site!r}: {channel.problem}. Issue a new one.")
        if channel is not None and name not in channel.names:
            raise self._refuse(
                f"{site!r} has a certificate for {', '.join(map(repr, channel.names)) or 'no site'}, expected one for "
                f"{name!r}. Issue it with `tradewind certs issue`."
            )

    def _digest(self, who: str) -> bytes:
        binding = () if self._channel is None else (self._channel.binding,)
        said = msgspec.msgpack.encode((who, self._hello, self._challenge, *binding))
        return hmac.new(key_of(self.credentials.secret, self.credentials.run), said, hashlib.sha256).digest()


class ClientHandshake(Handshake):
    """The side that opens the connection. Send the bytes of `start` first."""

    def __init__(
        self,
        credentials: Credentials,
        purpose: str,
        nonce: bytes,
        expected_site: str | None = None,
        channel: Channel | None = None,
        keying: bytes = b"",
    ) -> None:
        super().__init__(credentials, nonce, channel, keying)
        self.purpose = purpose
        self.expected_site = expected_site
        self._expects = self._challenged
        self._hello = Hello(WIRE_VERSION, credentials.run, credentials.site, purpose, nonce, keying)

    def start(self) -> bytes:
        """Return the first bytes of the connection."""
        assert self._hello is not None
        return self._encode(self._hello)

    def _challenged(self, message: Message) -> bytes:
        if not isinstance(message, Challenge):
            raise BadFrame(f"expected a Challenge, got {type(message).__name__}.")
        self._check_version(message.wire_version, message.site)
        if self.expected_site is not None and message.site != self.expected_site:
            raise self._refuse(f"expected site {self.expected_site!r} at this address, got {message.site!r}.")
        self._check_certificate(message.site)
        self._challenge = message
        self._expects = self._welcomed
        return self._encode(Proof(self._digest("client")))

    def _welcomed(self, message: Message) -> bytes:
        if not isinstance(message, Accepted):
            raise BadFrame(f"expected an Accepted, got {type(message).__name__}.")
        assert self._challenge is not None
        if not hmac.compare_digest(message.digest, self._digest("server")):
            raise self._refuse(f"{self._challenge.site!r} has another secret. Set the same secret at all ranks.")
        self.peer = Peer(self._challenge.site, self.purpose)
        return b""


class ServerHandshake(Handshake):
    """The side that accepts the connection."""

    def __init__(
        self,
        credentials: Credentials,
        nonce: bytes,
        channel: Channel | None = None,
        keying: bytes = b"",
        purposes: Sequence[str] = ("",),
    ) -> None:
        """`purposes`: what the purpose of a caller must begin with, one of these; others are refused."""
        super().__init__(credentials, nonce, channel, keying)
        self._purposes = tuple(purposes)
        self._expects = self._greeted

    def _greeted(self, message: Message) -> bytes:
        if not isinstance(message, Hello):
            raise BadFrame(f"expected a Hello, got {type(message).__name__}.")
        self._check_version(message.wire_version, message.site)
        if message.run != self.credentials.run:
            raise self._refuse(f"{message.site!r} requests run {message.run!r}, expected run {self.credentials.run!r}.")
        self._check_certificate(message.site)
        if not message.purpose.startswith(self._purposes):
            raise self._refuse(
                f"{self.credentials.site!r} takes connections for {' or '.join(map(repr, self._purposes))} only, "
                f"{message.site!r} asked for {message.purpose!r}. Check the addresses: ranks and controllers have "
                "ports of their own."
            )
        self._hello = message
        is_data = message.purpose.startswith(DATA_PURPOSE)  # nothing else can read frames, whatever a caller offers
        keying = self._keying if message.keying and is_data else b""
        self._challenge = Challenge(WIRE_VERSION, self.credentials.site, self._nonce, keying)
        self._expects = self._proven
        return self._encode(self._challenge)

    def _proven(self, message: Message) -> bytes:
        if not isinstance(message, Proof):
            raise BadFrame(f"expected a Proof, got {type(message).__name__}.")
        assert self._hello is not None
        if not hmac.compare_digest(message.digest, self._digest("client")):
            raise self._refuse(
                f"{self._hello.site!r} does not know the secret of run {self.credentials.run!r}. "
                "Set the same secret at all ranks."
            )
        self.peer = Peer(self._hello.site, self._hello.purpose)
        return self._encode(Accepted(self._digest("server")))
