"""`tradewind certs ...`: the CA of a run and a certificate for each site, for encrypted connections."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tradewind.cli.arguments import JsonOption
from tradewind.cli.guard import guarded
from tradewind.cli.verbs import HELP_FLAGS, VerbCommand, VerbGroup

if TYPE_CHECKING:
    from tradewind.runtime.certificate_authority import Authority

EXAMPLE = "tradewind certs init && tradewind certs issue fra nyc"
DEFAULT_FOLDER = "certs"
CA = "ca"
KEY_MODE, CERTIFICATE_MODE = 0o600, 0o644

app = typer.Typer(
    cls=VerbGroup,
    help="Make the CA of a run and a certificate for each site, and show when they expire.",
    epilog=f"Example: {EXAMPLE}",
    no_args_is_help=True,
    context_settings=HELP_FLAGS,
)

FolderOption = Annotated[str, typer.Option("--dir", metavar="DIR", help="Folder of the CA.")]
ReplaceOption = Annotated[bool, typer.Option("--replace", help="Replace files that exist.")]
DaysOption = Annotated[int, typer.Option("--days", metavar="N", help="How long it is valid.", min=1, max=36500)]


def init(
    folder: FolderOption = DEFAULT_FOLDER,
    days: DaysOption = 3650,
    replace: ReplaceOption = False,
    json: JsonOption = False,
) -> None:
    """Make the CA of a run: ca.crt, which every rank needs, and ca.key, which signs certificates and stays here."""
    from tradewind.cli.output import print_json
    from tradewind.runtime.certificate_authority import DAY_S, Authority

    made = Authority.create("Tradewind CA", days * DAY_S)
    _write({f"{CA}.key": made.key_pem, f"{CA}.crt": made.certificate_pem}, Path(folder), replace)
    if json:
        print_json(_facts(Path(folder) / f"{CA}.crt"))
        return
    typer.echo(f"{Path(folder) / CA}.crt: give it to every rank. {CA}.key signs certificates: keep it here.")


def issue(
    sites: Annotated[list[str], typer.Argument(metavar="SITE...", help="Sites; 'controller' for one that is none.")],
    folder: FolderOption = DEFAULT_FOLDER,
    days: DaysOption = 365,
    replace: ReplaceOption = False,
    json: JsonOption = False,
) -> None:
    """Make a certificate and a private key for each site: SITE.crt and SITE.key, to be copied to its hosts.

    All ranks of a site use the same files. A run loads replaced files without a restart.
    """
    from tradewind.cli.output import print_json
    from tradewind.errors import BadOption
    from tradewind.runtime.certificate_authority import DAY_S, make_request

    authority = _authority(Path(folder))
    made: dict[str, bytes] = {}
    for site in sites:
        stem = _file_name(site)
        if not site or stem == CA or f"{stem}.crt" in made:
            raise BadOption(f"SITE {site!r}: expected distinct names other than {CA!r}.")
        key, request = make_request(site)
        made |= {f"{stem}.key": key, f"{stem}.crt": authority.sign(request, [site], days * DAY_S)}
    _write(made, Path(folder), replace)
    if json:
        print_json([_facts(Path(folder) / f"{_file_name(site)}.crt") for site in sites])
        return
    for site in sites:
        typer.echo(f"{Path(folder) / _file_name(site)}.crt and .key: copy both and {CA}.crt to the hosts of {site}.")


def show(
    files: Annotated[list[str] | None, typer.Argument(metavar="[FILE.crt...]", help="Default: all of DIR.")] = None,
    folder: FolderOption = DEFAULT_FOLDER,
    json: JsonOption = False,
) -> None:
    """Show the names in certificates, and when they expire."""
    from tradewind.cli.output import console, print_json, show, table
    from tradewind.errors import BadOption

    paths = [Path(file) for file in files] if files else sorted(Path(folder).glob("*.crt"))
    if not paths:
        raise BadOption(f"no certificate (*.crt) in {folder!r}. Make one with `tradewind certs init`, or set --dir.")
    facts = [_facts(path) for path in paths]
    if json:
        print_json(facts)
        return
    made = table("file", "names", "expires", ">days left")
    for fact in facts:
        names = "CA" if fact["ca"] else ", ".join(fact["names"])
        made.add_row(fact["file"], names, fact["expires"], str(fact["days_left"]))
    show(console(), made)


def _facts(path: Path) -> dict[str, Any]:
    import time

    from tradewind.errors import BadOption
    from tradewind.runtime.certificate_authority import DAY_S, read_certificate
    from tradewind.runtime.certificates import as_date

    try:
        found = read_certificate(path.read_bytes())
    except OSError as error:
        raise BadOption(f"{path} cannot be read ({error.strerror}). Check the path.") from None
    except BadOption as error:
        raise BadOption(f"{path}: {error}") from None
    left = int((found.ends_s - time.time()) // DAY_S)
    return {
        "file": str(path),
        "ca": found.is_ca,
        "names": list(found.names),
        "expires": as_date(found.ends_s),
        "days_left": left,
    }


def _authority(folder: Path) -> Authority:
    from tradewind.errors import BadOption
    from tradewind.runtime.certificate_authority import Authority

    try:
        return Authority.from_pem((folder / f"{CA}.crt").read_bytes(), (folder / f"{CA}.key").read_bytes())
    except OSError as error:
        raise BadOption(
            f"{error.filename} cannot be read ({error.strerror}). Make a CA with `tradewind certs init`, or set --dir."
        ) from None
    except BadOption as error:
        raise BadOption(f"{folder / CA}.crt, .key: {error}") from None


def _file_name(site: str) -> str:
    """The site's name as the name of a file.

    >>> _file_name("Frankfurt (DE)/x")
    'Frankfurt-DE-x'
    """
    return re.sub(r"[^\w.]+", "-", site).strip("-.")


def _write(files: dict[str, bytes], folder: Path, replace: bool) -> None:
    """Write files, private keys with mode 0600; raises BadOption if one exists, or cannot be written."""
    from tradewind.cli.output import write_whole
    from tradewind.errors import BadOption

    there = [name for name in files if (folder / name).exists()]
    if there and not replace:
        raise BadOption(f"{folder / there[0]} exists. Set --replace to make a new one instead of it.")
    for name, data in files.items():
        write_whole(folder / name, data, "--dir", KEY_MODE if name.endswith(".key") else CERTIFICATE_MODE)


for _name, _verb in (("init", init), ("issue", issue), ("show", show)):
    _paragraphs = (_verb.__doc__ or "").split("\n\n")
    _help = "\n\n".join(" ".join(paragraph.split()) for paragraph in _paragraphs)
    app.command(_name, cls=VerbCommand, help=_help, context_settings=HELP_FLAGS)(guarded(_verb))
