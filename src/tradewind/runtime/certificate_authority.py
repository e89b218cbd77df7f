"""The CA of a run and the certificates of its sites, made with the library `cryptography` (extra `certs`).

A site's private key stays with the process that makes it: the CA signs a request, which holds the public key only. All
keys are of the curve P-256: they are small, and signing takes a tenth of a millisecond.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from urllib.parse import quote

from tradewind.errors import BadOption
from tradewind.runtime.certificates import URI_PREFIX, names_in

try:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
except ImportError as error:
    raise BadOption("certificates need the library cryptography: pip install 'tradewind[certs]'.") from error

DAY_S = 86400.0
DEFAULT_CA_DAYS, DEFAULT_DAYS = 3650, 365
BACKDATED_S = 300.0
"""Certificates are valid from so long ago, since the clocks of hosts differ."""
_HOST_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9._-]{0,61}[A-Za-z0-9_])?")
_COMMON_NAME_CHARACTERS = 64


@dataclass(frozen=True, slots=True)
class Authority:
    """A CA: its certificate and its private key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @classmethod
    def create(cls, name: str, valid_s: float = DEFAULT_CA_DAYS * DAY_S) -> Authority:
        """A new CA, whose certificate is valid for `valid_s` from now."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = _subject(name)
        usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
        built = (
            _dated(valid_s)
            .subject_name(subject)
            .issuer_name(subject)
            .public_key(key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        )
        return cls(built.sign(key, hashes.SHA256()), key)

    @classmethod
    def from_pem(cls, certificate: bytes, key: bytes) -> Authority:
        """The CA of two PEM files; raises BadOption if they are not a certificate and its key."""
        try:
            loaded = serialization.load_pem_private_key(key, None)
            found = x509.load_pem_x509_certificate(certificate)
        except (ValueError, TypeError) as error:
            raise BadOption(
                f"expected a CA's certificate and private key in PEM format, got neither ({error})."
            ) from None
        if not isinstance(loaded, ec.EllipticCurvePrivateKey) or loaded.public_key() != found.public_key():
            raise BadOption("the private key is not that of the CA's certificate. Use the files of one CA.")
        return cls(found, loaded)

    @property
    def certificate_pem(self) -> bytes:
        """The certificate, to be given to all ranks."""
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    @property
    def key_pem(self) -> bytes:
        """The private key, without a password."""
        return _key_pem(self.key)

    def sign(self, request: bytes, names: Sequence[str], valid_s: float = DEFAULT_DAYS * DAY_S) -> bytes:
        """A certificate for the sites `names` and the public key in a request; raises BadOption for a bad request.

        It ends with the CA at the latest. Names in the request are ignored.
        """
        try:
            asked = x509.load_pem_x509_csr(request)
        except ValueError as error:
            raise BadOption(f"expected a certificate signing request in PEM format ({error}).") from None
        if not asked.is_signature_valid:
            raise BadOption("the certificate signing request has a wrong signature. Make it again with its own key.")
        left_s = (self.certificate.not_valid_after_utc - datetime.now(UTC)).total_seconds()
        usage = x509.KeyUsage(True, False, False, False, False, False, False, False, False)
        purposes = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        built = (
            _dated(min(valid_s, left_s))
            .subject_name(_subject(names[0]))
            .issuer_name(self.certificate.subject)
            .public_key(asked.public_key())
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
            .add_extension(x509.SubjectAlternativeName([_general_name(name) for name in names]), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()), critical=False)
        )
        return built.sign(self.key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def make_request(name: str) -> tuple[bytes, bytes]:
    """A new private key and the request to sign its public key, both in PEM format."""
    key = ec.generate_private_key(ec.SECP256R1())
    request = x509.CertificateSigningRequestBuilder().subject_name(_subject(name)).sign(key, hashes.SHA256())
    return _key_pem(key), request.public_bytes(serialization.Encoding.PEM)


@dataclass(frozen=True, slots=True)
class CertificateFacts:
    """What a certificate says."""

    names: tuple[str, ...]
    """The sites that it is for."""
    ends_s: float
    """When it expires, in seconds since 1970."""
    is_ca: bool


def read_certificate(pem: bytes) -> CertificateFacts:
    """What a certificate in PEM format says, whether valid or not; raises BadOption if it is not one."""
    try:
        found = x509.load_pem_x509_certificate(pem)
    except ValueError as error:
        raise BadOption(f"expected a certificate in PEM format ({error}).") from None
    try:
        said = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        named = [("DNS", name) for name in said.get_values_for_type(x509.DNSName)]
        named += [("URI", name) for name in said.get_values_for_type(x509.UniformResourceIdentifier)]
    except x509.ExtensionNotFound:
        named = []
    try:
        is_ca = found.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        is_ca = False
    return CertificateFacts(names_in({"subjectAltName": named}), found.not_valid_after_utc.timestamp(), is_ca)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _dated(valid_s: float) -> x509.CertificateBuilder:
    now = datetime.fromtimestamp(time.time(), UTC)
    return (
        x509.CertificateBuilder()
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(seconds=BACKDATED_S))
        .not_valid_after(now + timedelta(seconds=valid_s))
    )


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:_COMMON_NAME_CHARACTERS])])


def _general_name(name: str) -> x509.GeneralName:
    if _HOST_NAME.fullmatch(name):
        return x509.DNSName(name)
    return x509.UniformResourceIdentifier(URI_PREFIX + quote(name, safe=""))
