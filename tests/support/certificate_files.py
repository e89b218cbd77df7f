"""Certificate files for tests of encrypted runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tradewind.runtime.certificate_authority import DAY_S, Authority, make_request
from tradewind.runtime.certificates import CertificateFiles


def issue(authority: Authority, folder: Path, name: str, valid_s: float = DAY_S, *more: str) -> CertificateFiles:
    """Files for a site, replaced one by one as an operator does it."""
    stem = folder / name.replace("/", "_").replace(" ", "_")
    files = CertificateFiles(stem.with_suffix(".crt"), stem.with_suffix(".key"), folder / "ca.crt")
    key, request = make_request(name)
    files.key.write_bytes(key)
    files.certificate.write_bytes(authority.sign(request, [name, *more], valid_s))
    files.ca.write_bytes(authority.certificate_pem)
    return files


def options(files: CertificateFiles, mode: str = "tls") -> dict[str, Any]:
    """The options of a rank with these files, by field."""
    paths = {"certificate": files.certificate, "key": files.key, "ca": files.ca}
    return {"security": mode, **{name: str(path) for name, path in paths.items()}}
