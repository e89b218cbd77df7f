"""`tradewind certs`: a CA, a certificate for each site, and what they say."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli import succeed, succeed_json, tradewind
from tradewind.runtime.certificates import CertificateFiles, load


def test_issued_certificates_name_their_sites_and_work_together(tmp_path: Path) -> None:
    folder = tmp_path / "made" / "certs"
    succeed("certs", "init", "--dir", folder)
    printed = succeed("certs", "issue", "fra", "S\u00e3o Paulo", "--dir", folder, "--days", 30)
    assert f"{folder / 'fra'}.crt and .key" in printed
    for stem, site in (("fra", "fra"), ("S\u00e3o-Paulo", "S\u00e3o Paulo")):
        files = CertificateFiles(folder / f"{stem}.crt", folder / f"{stem}.key", folder / "ca.crt")
        assert load(files).names == (site,)
    modes = {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir()}
    assert {modes["ca.key"], modes["fra.key"], modes["S\u00e3o-Paulo.key"]} == {0o600}
    shown = {Path(fact["file"]).name: fact for fact in succeed_json("certs", "show", "--dir", folder)}
    assert set(shown) == {"ca.crt", "fra.crt", "S\u00e3o-Paulo.crt"}
    assert shown["S\u00e3o-Paulo.crt"]["names"] == ["S\u00e3o Paulo"] and not shown["fra.crt"]["ca"]
    assert 28 <= shown["fra.crt"]["days_left"] <= 30 and shown["ca.crt"]["ca"]
    assert "fra" in succeed("certs", "show", folder / "fra.crt")


def test_replacing_is_asked_for(tmp_path: Path) -> None:
    assert succeed_json("certs", "init", "--dir", tmp_path)["ca"]
    before = (tmp_path / "ca.crt").read_bytes()
    again = tradewind("certs", "init", "--dir", tmp_path)
    assert again.exit_code == 2 and "exists. Set --replace" in again.stderr
    assert (tmp_path / "ca.crt").read_bytes() == before
    first = succeed_json("certs", "issue", "fra", "--dir", tmp_path, "--days", 1)
    renewed = succeed_json("certs", "issue", "fra", "--dir", tmp_path, "--replace")
    assert renewed[0]["days_left"] > first[0]["days_left"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("issue", "fra"), "Make a CA with `tradewind certs init`"),
        (("issue", "ca"), "expected distinct names other than 'ca'"),
        (("issue", "a/b", "a b"), "expected distinct names"),
        (("show",), "no certificate (*.crt)"),
        (("show", "nowhere.crt"), "nowhere.crt cannot be read"),
        (("show", __file__), "expected a certificate in PEM format"),
    ],
)
def test_mistakes_are_explained(tmp_path: Path, arguments: tuple[str, ...], says: str) -> None:
    if "Make a CA" not in says:
        succeed("certs", "init", "--dir", tmp_path / "x")
    folder = tmp_path if arguments == ("show",) else tmp_path / "x"
    result = tradewind("certs", *arguments, "--dir", folder)
    assert result.exit_code == 2 and says in result.stderr, result.stderr


def test_a_key_of_another_ca_is_refused(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        succeed("certs", "init", "--dir", tmp_path / folder)
    (tmp_path / "b" / "ca.key").replace(tmp_path / "a" / "ca.key")
    result = tradewind("certs", "issue", "fra", "--dir", tmp_path / "a")
    assert result.exit_code == 2 and "not that of the CA" in result.stderr
