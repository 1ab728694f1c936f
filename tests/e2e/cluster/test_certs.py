"""The certificates that all clusters share."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from e2e.cluster import certs
from e2e.cluster.home import Home

NOW = datetime.datetime(2026, 5, 4, 3, 2, 1, tzinfo=datetime.UTC)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


def load(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def test_every_certificate_is_signed_by_the_authority_and_private(home: Home) -> None:
    pki = certs.ensure(home, NOW)
    authority = load(pki.folder / "ca.crt")
    for subject in certs.SUBJECTS:
        certificate = load(pki.certificate(subject.name))
        certificate.verify_directly_issued_by(authority)
        assert certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value == subject.common_name
        assert pki.private_key(subject.name).stat().st_mode & 0o077 == 0


def test_the_server_answers_to_every_address_it_is_reached_by(home: Home) -> None:
    certificate = load(certs.ensure(home, NOW).certificate("apiserver"))
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert set(names.get_values_for_type(x509.IPAddress)) == {
        ipaddress.ip_address(address) for address in ("127.0.0.1", "10.200.0.1", "10.96.0.1")
    }
    assert {"kubernetes", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"} <= set(names.get_values_for_type(x509.DNSName))


def test_clients_cannot_serve(home: Home) -> None:
    certificate = load(certs.ensure(home, NOW).certificate("node1"))
    usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(usage) == [ExtendedKeyUsageOID.CLIENT_AUTH]
    assert certificate.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)[0].value == "system:nodes"


def test_a_set_is_kept_until_its_last_month(home: Home) -> None:
    first = certs.ensure(home, NOW)
    assert certs.ensure(home, NOW + datetime.timedelta(days=certs.VALID_DAYS - certs.REMAKE_BEFORE_DAYS - 1)) == first
    second = certs.ensure(home, NOW + datetime.timedelta(days=certs.VALID_DAYS - certs.REMAKE_BEFORE_DAYS))
    assert second != first
    assert first.authority != second.authority


def test_a_set_whose_making_was_cut_short_is_not_used(home: Home) -> None:
    first = certs.ensure(home, NOW)
    (first.folder / "set.json").unlink()
    assert certs.ensure(home, NOW + datetime.timedelta(seconds=1)) != first


def test_a_kubeconfig_carries_its_own_credentials(home: Home) -> None:
    pki = certs.ensure(home, NOW)
    config = yaml.safe_load(pki.kubeconfig("admin", "https://127.0.0.1:1234"))
    assert config["clusters"][0]["cluster"]["server"] == "https://127.0.0.1:1234"
    assert config["current-context"] == config["contexts"][0]["name"]
    assert set(config["users"][0]["user"]) == {"client-certificate-data", "client-key-data"}


def test_service_accounts_are_signed_with_a_key_of_their_own(home: Home) -> None:
    pki = certs.ensure(home, NOW)
    public = load(pki.folder / "ca.crt").public_key()
    assert isinstance(public, ec.EllipticCurvePublicKey)
    assert (pki.folder / "sa.key").read_bytes() != (pki.folder / "ca.key").read_bytes()
