"""Certificates and tokens for tests, made once for all of them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc

from atta.cli.cert import make_authority, make_certificate
from atta.wire.credentials import Credentials
from atta.wire.tokens import Role, TokenFile, issue


@dataclass
class Authority:
    """A folder with an authority, certificates and a file of hashes."""

    folder: Path

    @classmethod
    def in_folder(cls, folder: Path) -> Authority:
        make_authority(folder, "test-authority", 1)
        return cls(folder)

    def certificate(self, name: str, *roles: str, hosts: tuple[str, ...] = ()) -> Credentials:
        if not (self.folder / f"{name}.pem").exists():
            make_certificate(self.folder, name, roles=roles, hosts=hosts, days=1)
        return Credentials(*(str(self.folder / file) for file in ("ca.pem", f"{name}.pem", f"{name}.key")))

    def tokens(self, *, valid: timedelta = timedelta(hours=1)) -> dict[str, str]:
        """A token for each role and for all of them ("all"), which are appended to the file of hashes."""
        roles = {role.value: {role} for role in Role} | {"all": set(Role)}
        made = {name: issue(name, given, datetime.now(UTC) + valid) for name, given in roles.items()}
        text = TokenFile.of(entry for _, entry in made.values()).text()
        with self.token_file.open("a") as file:
            file.write(text + "\n")
        return {name: token for name, (token, _) in made.items()}

    @property
    def token_file(self) -> Path:
        return self.folder / "tokens.toml"


def anonymous(authority: Authority) -> grpc.ChannelCredentials:
    return grpc.ssl_channel_credentials((authority.folder / "ca.pem").read_bytes())
