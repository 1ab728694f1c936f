"""Keys, certificates and kubeconfigs of the clusters. All clusters share one set: they have the same addresses, each in its own network."""

from __future__ import annotations

import base64
import datetime
import hashlib
import ipaddress
import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from e2e.cluster.home import Home
from e2e.cluster.init import NODE_ADDRESS

SERVICE_ADDRESS = "10.96.0.1"
INSIDE_SERVER = f"https://{NODE_ADDRESS}:6443"
VALID_DAYS = 365
REMAKE_BEFORE_DAYS = 30
MAX_NODES = 9


@dataclass(frozen=True)
class Subject:
    """One certificate: file name, common name, organisation, and for a server the names and addresses it answers to."""

    name: str
    common_name: str
    organisation: str | None = None
    server_names: tuple[str, ...] = ()
    server_addresses: tuple[str, ...] = ()


_KUBERNETES = ["kubernetes", "default", "svc", "cluster", "local"]
SUBJECTS = (
    Subject(
        "apiserver",
        "kube-apiserver",
        server_names=("localhost", *(".".join(_KUBERNETES[:length]) for length in (1, 2, 3, 5))),
        server_addresses=("127.0.0.1", NODE_ADDRESS, SERVICE_ADDRESS),
    ),
    Subject("kubelet-client", "kube-apiserver-kubelet-client", "system:masters"),
    Subject("admin", "admin", "system:masters"),
    Subject("controller-manager", "system:kube-controller-manager"),
    Subject("scheduler", "system:kube-scheduler"),
    Subject("proxy", "system:kube-proxy"),
    *(Subject(f"node{number}", f"system:node:node{number}", "system:nodes") for number in range(1, MAX_NODES + 1)),
)


@dataclass(frozen=True)
class Pki:
    """A folder with `ca.crt`, NAME.crt and NAME.key of every subject, and the service accounts' `sa.key` and `sa.pub`."""

    folder: Path

    @property
    def key(self) -> str:
        """Differs when any key differs."""
        return self.folder.name

    @property
    def authority(self) -> bytes:
        """The CA's certificate, PEM."""
        return (self.folder / "ca.crt").read_bytes()

    def certificate(self, name: str) -> Path:
        """The certificate of a subject."""
        return self.folder / f"{name}.crt"

    def private_key(self, name: str) -> Path:
        """The key of a subject."""
        return self.folder / f"{name}.key"

    def kubeconfig(self, name: str, server: str) -> str:
        """A kubeconfig for a subject."""
        user = {
            "client-certificate-data": base64.b64encode(self.certificate(name).read_bytes()).decode(),
            "client-key-data": base64.b64encode(self.private_key(name).read_bytes()).decode(),
        }
        return kubeconfig(name, user, self.authority, server)


def kubeconfig(user_name: str, user: dict[str, str], authority: bytes, server: str, namespace: str = "default") -> str:
    """The text of a kubeconfig with one cluster, one user and one context."""
    cluster = {"server": server, "certificate-authority-data": base64.b64encode(authority).decode()}
    context = {"cluster": "rlhf-e2e", "user": user_name, "namespace": namespace}
    return yaml.safe_dump(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "rlhf-e2e", "cluster": cluster}],
            "users": [{"name": user_name, "user": user}],
            "contexts": [{"name": "rlhf-e2e", "context": context}],
            "current-context": "rlhf-e2e",
        },
        sort_keys=False,
    )


def ensure(home: Home, now: datetime.datetime) -> Pki:
    """The newest set that was made for today's subjects and stays valid long enough, or a new one.

    A set is never changed once made: living clusters read its files.
    """
    digest = hashlib.sha256(repr(SUBJECTS).encode()).hexdigest()[:8]
    with home.locked("pki"):
        for folder in sorted(home.pki.glob(f"{digest}-*"), reverse=True):
            if still_valid(folder, now):
                return Pki(folder)
        folder = home.pki / f"{digest}-{now:%Y%m%dT%H%M%S}"
        partial = home.pki / f"partial-{digest}"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(mode=0o700)
        write(partial, now)
        partial.rename(folder)
    return Pki(folder)


def still_valid(folder: Path, now: datetime.datetime) -> bool:
    """Whether the set in the folder is complete and does not end soon."""
    try:
        expires = datetime.datetime.fromisoformat(json.loads((folder / "set.json").read_text())["expires"])
    except FileNotFoundError:
        return False
    return expires - now > datetime.timedelta(days=REMAKE_BEFORE_DAYS)


def write(folder: Path, now: datetime.datetime, subjects: Sequence[Subject] = SUBJECTS) -> None:
    """Makes every key and certificate of a set; `set.json`, written last, says until when they are valid."""
    # An hour back: the machine's clock may be set back between two runs.
    start, expires = now - datetime.timedelta(hours=1), now + datetime.timedelta(days=VALID_DAYS)
    authority_key = ec.generate_private_key(ec.SECP256R1())
    authority_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "rlhf-e2e")])

    def begin(subject: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        builder = x509.CertificateBuilder().subject_name(subject).issuer_name(authority_name).public_key(key)
        return builder.serial_number(x509.random_serial_number()).not_valid_before(start).not_valid_after(expires)

    authority = (
        begin(authority_name, authority_key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key()), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    _write_private(folder / "ca.key", _private_pem(authority_key))
    (folder / "ca.crt").write_bytes(authority.public_bytes(serialization.Encoding.PEM))
    for subject in subjects:
        key = ec.generate_private_key(ec.SECP256R1())
        names = [x509.NameAttribute(NameOID.COMMON_NAME, subject.common_name)]
        if subject.organisation:
            names.insert(0, x509.NameAttribute(NameOID.ORGANIZATION_NAME, subject.organisation))
        builder = begin(x509.Name(names), key.public_key()).add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False
        )
        answers_to: list[x509.GeneralName] = [x509.DNSName(name) for name in subject.server_names]
        answers_to += [x509.IPAddress(ipaddress.ip_address(address)) for address in subject.server_addresses]
        usage = ExtendedKeyUsageOID.SERVER_AUTH if answers_to else ExtendedKeyUsageOID.CLIENT_AUTH
        builder = builder.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        if answers_to:
            builder = builder.add_extension(x509.SubjectAlternativeName(answers_to), critical=False)
        certificate = builder.sign(authority_key, hashes.SHA256())
        _write_private(folder / f"{subject.name}.key", _private_pem(key))
        (folder / f"{subject.name}.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    service_accounts = ec.generate_private_key(ec.SECP256R1())
    _write_private(folder / "sa.key", _private_pem(service_accounts))
    public = service_accounts.public_key()
    (folder / "sa.pub").write_bytes(public.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo))
    (folder / "set.json").write_text(json.dumps({"expires": expires.isoformat()}))


def _private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption())


def _write_private(path: Path, content: bytes) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
        file.write(content)
