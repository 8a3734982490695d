"""The files of callers and daemons: what is wrong with them is named, and what changes is seen."""

from __future__ import annotations

import errno
import json
import shutil
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner
from structlog.testing import capture_logs

from atta.cli.cert import cert, make_authority, make_certificate
from atta.daemon.config import DaemonConfig
from atta.daemon.security import DaemonSecurity, ServedCertificate, check_exposure, is_loopback
from atta.errors import ConfigError, DataError, UnknownNameError
from atta.wire.clusterfile import credentials_for, read_cluster, read_credentials, write_cluster
from atta.wire.credentials import VARIABLES, Credentials, TlsFiles
from tests.unit.security.authority import Authority


@pytest.fixture
def clean(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """An environment that names no files."""
    for name in VARIABLES.values():
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


def test_a_cluster_file_says_what_to_bring(tmp_path: Path, clean: pytest.MonkeyPatch) -> None:
    path = tmp_path / "c.toml"
    write_cluster(path, ["a:1"])
    assert credentials_for(path) is None
    path.write_text(path.read_text() + '\n[tls]\nca = "ca.pem"\ncert = "/etc/me.pem"\nkey = "/etc/me.key"\n')
    assert read_cluster(path) == {0: "a:1"}
    found = read_credentials(path)
    assert found == Credentials(str(tmp_path / "ca.pem"), "/etc/me.pem", "/etc/me.key")
    write_cluster(path, ["a:1"], found)
    assert credentials_for(str(path)) == found
    clean.setenv("ATTA_TOKEN_FILE", "mine")
    clean.setenv("ATTA_TLS_CA", "other.pem")
    assert credentials_for(path) == Credentials("other.pem", "/etc/me.pem", "/etc/me.key", "mine")
    assert credentials_for("a:1,b:2") == credentials_for(["a:1"]) == Credentials("other.pem", token="mine")
    clean.delenv("ATTA_TLS_CA")
    with pytest.raises(ConfigError, match="only over TLS"):
        credentials_for("a:1,b:2")


@pytest.mark.parametrize(
    ("text", "error", "words"),
    [
        ('[tls]\nca = "a"\ncart = "b"', UnknownNameError, "did you mean 'cert'"),
        ("[tls]\nca = 3", ConfigError, "ca is not the name of a file"),
        ('[tls]\ncert = "b"\nkey = "c"', ConfigError, "certificate of the authority"),
        ('[tls]\nca = "a"\nkey = "c"', ConfigError, "given together"),
        ("tls = 3", ConfigError, "names files"),
        ("[lts]", UnknownNameError, "did you mean 'tls'"),
    ],
)
def test_mistakes_in_a_cluster_file_are_named(
    tmp_path: Path, clean: pytest.MonkeyPatch, text: str, error: type[Exception], words: str
) -> None:
    (tmp_path / "c.toml").write_text(f'{text}\n[[daemon]]\npart = 0\naddress = "a:1"\n')

    def read() -> None:
        read_cluster(tmp_path / "c.toml")
        read_credentials(tmp_path / "c.toml")

    with pytest.raises(error, match=words):
        read()


def test_files_that_do_not_fit_together_are_named(authority: Authority, tmp_path: Path) -> None:
    one, other = authority.certificate("one"), authority.certificate("other")
    (tmp_path / "no.pem").write_text("nothing")
    locked = tmp_path / "locked.key"
    command = ["openssl", "ec", "-in", one.key, "-out", str(locked), "-aes128", "-passout", "pass:x"]
    subprocess.run(command, check=True, capture_output=True)
    for files, words in [
        (TlsFiles(one.ca, one.cert, other.key), "not the private key of"),
        (TlsFiles(str(tmp_path / "no.pem"), one.cert, one.key), "not the certificate of an authority"),
        (TlsFiles(one.ca, str(tmp_path / "no.pem"), one.key), "not in PEM form"),
        (TlsFiles(one.ca, one.cert, str(locked)), "is encrypted"),
        (TlsFiles(one.ca, one.cert, str(tmp_path / "absent")), "absent: cannot be read: No such file"),
    ]:
        with pytest.raises(DataError, match=words):
            files.read()
    found, _ = TlsFiles(one.ca, one.cert, one.key).read()
    assert found.key == Path(one.key).read_bytes()
    assert "PRIVATE" not in repr(found)


def test_a_renewed_certificate_is_seen_and_a_bad_one_is_not_taken(authority: Authority, tmp_path: Path) -> None:
    first, second = authority.certificate("one"), authority.certificate("other")
    files = TlsFiles(first.ca, str(tmp_path / "c.pem"), str(tmp_path / "c.key"))
    shutil.copy(first.cert, files.cert)
    shutil.copy(first.key, files.key)
    served = ServedCertificate(files, ask=True)
    context = served.context()
    assert served._renewed() is None
    (tmp_path / "new").write_bytes(Path(second.cert).read_bytes())
    with capture_logs() as lines:
        (tmp_path / "new").rename(files.cert)  # its key comes later
        for _ in range(3):
            assert served._renewed() is None
            assert served.context() is context
    assert [line["log_level"] for line in lines] == ["error"]
    (tmp_path / "new").write_bytes(Path(second.key).read_bytes())
    (tmp_path / "new").rename(files.key)
    renewed = served.context()
    assert renewed is not context
    assert served._renewed() is not None
    assert served._shown.cert == Path(second.cert).read_bytes()
    assert served._renewed() is None
    with capture_logs() as lines:
        Path(files.key).unlink()
        for _ in range(3):
            assert served._renewed() is None
            assert served.context() is renewed
    assert [line["log_level"] for line in lines] == ["error"]
    shutil.copy(second.key, files.key)
    assert served._renewed() is not None


def test_a_renewed_key_that_cannot_be_read_is_tried_again(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is in the way may end without a change of the files, and is told once."""
    first, second = authority.certificate("one"), authority.certificate("other")
    files = TlsFiles(first.ca, str(tmp_path / "c.pem"), str(tmp_path / "c.key"))

    def give(found: Credentials) -> None:
        shutil.copy(found.cert, files.cert)
        shutil.copy(found.key, files.key)

    give(first)
    served = ServedCertificate(files, ask=True)
    give(second)
    with monkeypatch.context() as within, capture_logs() as lines:
        within.setattr(Path, "read_bytes", unreadable)
        for _ in range(3):
            assert served._renewed() is None
    assert [line["log_level"] for line in lines] == ["error"]
    assert lines[0]["error"] == f"{files.ca}: cannot be read: Permission denied"
    assert served._renewed() is not None
    assert served._shown.cert == Path(second.cert).read_bytes()


def unreadable(_: Path) -> bytes:
    raise PermissionError(errno.EACCES, "Permission denied")


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("localhost", True), ("127.0.0.1", True), ("127.8.8.8", True), ("[::1]", True), ("0.0.0.0", False),
        ("[::]", False), ("10.0.0.1", False), ("machine", False), ("[fe80::1%eth0]", False), ("localhost.evil.org", False),
    ],
)  # fmt: skip
def test_listening_beyond_loopback_needs_tls_or_a_word(host: str, loopback: bool) -> None:
    assert is_loopback(host) == loopback
    for settings in ({"listen": f"{host}:1"}, {"metrics": f"{host}:1"}):
        config = DaemonConfig("d", range(1), **settings)
        if loopback:
            check_exposure(config)
        else:
            with pytest.raises(ConfigError, match=f"--{next(iter(settings))}: .* reached from other machines"):
                check_exposure(config)
        check_exposure(DaemonConfig("d", range(1), insecure=True, **settings))
        check_exposure(DaemonConfig("d", range(1), tls_cert="x", **settings))
    with pytest.raises(ConfigError, match=r"--metrics-port: 0\.0\.0\.0"):
        check_exposure(DaemonConfig("d", range(1), metrics_port=9090))


def test_security_is_off_unless_it_is_asked_for() -> None:
    assert DaemonSecurity.of(DaemonConfig("d", range(1))) is None


def test_an_option_that_lacks_another_is_refused(authority: Authority) -> None:
    own = authority.certificate("one", "peer")
    tls = {"tls_ca": own.ca, "tls_cert": own.cert, "tls_key": own.key}
    assert DaemonSecurity.of(DaemonConfig("d", range(1), **tls)) is not None
    for settings, words in [
        ({"tls_cert": own.cert}, "--tls-key is missing"),
        ({"tokens": "t"}, "--tls-cert is missing"),
        ({**tls, "tls_ca": ""}, "--tls-ca is missing"),
        ({**tls, "tls_callers": "token"}, "needs --tokens"),
        ({**tls, "metrics": "127.0.0.1:9"}, "metrics with TLS need --tokens"),
        ({**tls, "tls_callers": "token", "tokens": "t", "peers": {0: "a:1", 1: "b:1"}}, "needs --peer-token"),
    ]:
        with pytest.raises(ConfigError, match=words):
            DaemonSecurity.of(DaemonConfig("d", range(1), **settings))
    with pytest.raises(DataError, match="absent: cannot be read"):
        DaemonSecurity.of(DaemonConfig("d", range(1), **tls, peer_token="absent"))


def test_credentials_are_paths_alone(authority: Authority) -> None:
    own = authority.certificate("one")
    assert Credentials(**json.loads(json.dumps(own.to_dict()))) == own
    assert own.headers() == ()


def run(*words: str) -> str:
    result = CliRunner().invoke(cert, words)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.output


def test_certificates_are_made(tmp_path: Path) -> None:
    folder = str(tmp_path / "certs")
    with pytest.raises(ConfigError, match="atta cert authority"):
        run("new", folder, "a")
    assert "good for 7 days" in run("authority", folder, "--days", "7")
    words = ("--role", "peer", "--role", "reader", "--host", "::1", "--host", "h.example")
    assert "peer, reader, ::1, h.example" in run("new", folder, "daemon-0", *words)
    names = [Path(folder, name) for name in ("ca.pem", "ca.key", "daemon-0.pem", "daemon-0.key")]
    assert sorted(Path(folder).iterdir()) == sorted(names)
    assert [file.stat().st_mode & 0o77 for file in names[1::2]] == [0, 0]
    command = [
        "openssl",
        "verify",
        "-CAfile",
        str(names[0]),
        "-purpose",
        "sslserver",
        "-verify_ip",
        "::1",
        str(names[2]),
    ]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0
    command = ["openssl", "x509", "-in", str(names[2]), "-noout", "-ext", "subjectAltName"]
    assert "URI:atta:role/peer, URI:atta:role/reader" in subprocess.check_output(command, text=True)
    for mistake, error in [
        (("authority", folder), "exists already"),
        (("new", folder, "daemon-0"), "exists already"),
        (("new", folder, "x/CN=y"), "cannot name a certificate"),
        (("new", folder, "ca"), "has no authority"),
        (("new", folder, "b", "--host", "h,URI:atta:role/operator"), "neither an IP address"),
    ]:
        with pytest.raises(ConfigError, match=error):
            run(*mistake)
    assert sorted(Path(folder).iterdir()) == sorted(names)


def test_an_authority_that_cannot_sign_is_named(tmp_path: Path) -> None:
    make_authority(tmp_path / "other", "b", 1)
    make_authority(tmp_path, "a", 1)
    for key, error in [((tmp_path / "other" / "ca.key").read_text(), "is not the key of"), ("?", "cannot be read")]:
        (tmp_path / "ca.key").write_text(key)
        with pytest.raises(DataError, match=error):
            make_certificate(tmp_path, "d", roles=(), hosts=(), days=1)
