"""One authority for all tests, and one of somebody else."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.security.authority import Authority


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.in_folder(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="session")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.in_folder(tmp_path_factory.mktemp("stranger"))


@pytest.fixture
def tokens(authority: Authority) -> Iterator[dict[str, str]]:
    """Good tokens by role, which the authority's file has."""
    yield authority.tokens()
    authority.token_file.unlink()
