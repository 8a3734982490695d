"""A cluster as objects of Kubernetes: core resources alone, no operator of our own. Pure."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from atta.cli.cluster.rendering.plan import GRACE_S, DeploymentPlan

CONFIG, TLS, DATA = "/etc/atta", "/etc/atta-tls", "/data"
CLUSTER = f"{CONFIG}/cluster.toml"
DAEMON_FILES = ("ca.pem", "daemon.pem", "daemon.key")
"""Files of the Secret for daemons; ``tokens.toml`` may join them."""
CALLER_FILES = ("ca.pem", "trainer.pem", "trainer.key")
"""Files of the Secret for trainers."""
_UNPRIVILEGED = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
_USER = {"runAsNonRoot": True, "runAsUser": 1000, "runAsGroup": 1000, "fsGroup": 1000}


@dataclass(frozen=True)
class KubernetesPlan:
    """What Kubernetes is told beyond the cluster itself.

    Attributes:
        cluster: daemons and trainers.
        image: of containers that have ``atta``.
        claim: PersistentVolumeClaim with the partitioned dataset, which all daemons read.
        queue: of Kueue, for the trainers; empty: none.
        cpu: cores that each daemon and each trainer asks for.
        files: contents of the certificates' files by name; empty without TLS.
    """

    cluster: DeploymentPlan
    image: str
    claim: str
    queue: str = ""
    cpu: int = 1
    files: Mapping[str, bytes] | None = None

    @property
    def daemons(self) -> str:
        """The name of the StatefulSet of daemons and of its Service."""
        return f"{self.cluster.name}-daemon"

    @property
    def trainers(self) -> str:
        """The name of the Job of trainers and of its Service."""
        return f"{self.cluster.name}-trainer"

    def daemon_hosts(self) -> list[str]:
        """Host names of the daemons, as pods of the same namespace know them."""
        return [f"{self.daemons}-{part}.{self.daemons}" for part in range(self.cluster.parts)]


def documents(plan: KubernetesPlan) -> list[dict[str, Any]]:
    """All objects, in the order in which they should be created."""
    found = [*_secrets(plan), _config(plan), _daemon_service(plan), _stateful_set(plan)]
    return [*found, _trainer_service(plan), _job(plan)] if plan.cluster.nodes else found


def _object(api: str, kind: str, name: str, plan: KubernetesPlan) -> dict[str, Any]:
    return {"apiVersion": api, "kind": kind, "metadata": {"name": name, "labels": _labels(plan)}}


def _labels(plan: KubernetesPlan, component: str = "") -> dict[str, str]:
    labels = {"app.kubernetes.io/name": "atta", "app.kubernetes.io/instance": plan.cluster.name}
    return {**labels, "app.kubernetes.io/component": component} if component else labels


def _secrets(plan: KubernetesPlan) -> list[dict[str, Any]]:
    if not plan.cluster.tls or not plan.files:
        return []
    daemon = [*DAEMON_FILES, *(["tokens.toml"] if "tokens.toml" in plan.files else [])]
    return [_secret(plan, plan.daemons, daemon), _secret(plan, plan.trainers, [*CALLER_FILES])]


def _secret(plan: KubernetesPlan, owner: str, names: list[str]) -> dict[str, Any]:
    files = plan.files or {}
    data = {name: base64.b64encode(files[name]).decode("ascii") for name in names}
    return {**_object("v1", "Secret", f"{owner}-tls", plan), "type": "Opaque", "data": data}


def _config(plan: KubernetesPlan) -> dict[str, Any]:
    mine = {"ca": f"{TLS}/ca.pem", "cert": f"{TLS}/trainer.pem", "key": f"{TLS}/trainer.key"}
    text = plan.cluster.cluster_file(plan.daemon_hosts(), mine)
    return {**_object("v1", "ConfigMap", f"{plan.cluster.name}-cluster", plan), "data": {"cluster.toml": text}}


def _daemon_service(plan: KubernetesPlan) -> dict[str, Any]:
    cluster = plan.cluster
    ports = {"grpc": cluster.port, "links": cluster.link_port, "metrics": cluster.metrics_port}
    return _headless(plan, plan.daemons, "daemon", ports)


def _trainer_service(plan: KubernetesPlan) -> dict[str, Any]:
    return _headless(plan, plan.trainers, "trainer", {"meeting": plan.cluster.meeting_port})


def _headless(plan: KubernetesPlan, name: str, component: str, ports: Mapping[str, int]) -> dict[str, Any]:
    """A Service that gives each pod a name, also before it is ready: peers look for each other as they start."""
    spec = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": _labels(plan, component),
        "ports": [{"name": key, "port": port, "targetPort": port} for key, port in ports.items()],
    }
    return {**_object("v1", "Service", name, plan), "spec": spec}


def _stateful_set(plan: KubernetesPlan) -> dict[str, Any]:
    cluster, labels = plan.cluster, _labels(plan, "daemon")
    tls = {"--tls-ca": f"{TLS}/ca.pem", "--tls-cert": f"{TLS}/daemon.pem", "--tls-key": f"{TLS}/daemon.key"}
    if "tokens.toml" in (plan.files or {}):
        tls["--tokens"] = f"{TLS}/tokens.toml"
    container = {
        **_container(plan, "daemon", cluster.daemon(CLUSTER, tls)),
        "ports": [
            {"name": "grpc", "containerPort": cluster.port},
            {"name": "links", "containerPort": cluster.link_port},
            {"name": "metrics", "containerPort": cluster.metrics_port},
        ],
        # Loading a large partition takes minutes; until then only the start probe asks.
        "startupProbe": {**_probe(cluster), "periodSeconds": 5, "failureThreshold": 360},
        "readinessProbe": {**_probe(cluster), "periodSeconds": 5, "timeoutSeconds": 5},
        "livenessProbe": {**_probe(cluster), "periodSeconds": 20, "timeoutSeconds": 10, "failureThreshold": 6},
        "resources": {"requests": {"cpu": str(plan.cpu), "memory": _mebibytes(cluster.memory)}},
    }
    container["volumeMounts"].append({"name": "data", "mountPath": DATA, "readOnly": True})
    pod = _pod(plan, container, plan.daemons)
    pod["terminationGracePeriodSeconds"] = GRACE_S
    claim = {"claimName": plan.claim, "readOnly": True}
    pod["volumes"].append({"name": "data", "persistentVolumeClaim": claim})
    spec = {
        "serviceName": plan.daemons,
        "replicas": cluster.parts,
        "podManagementPolicy": "Parallel",
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels, "annotations": _scraped(cluster)}, "spec": pod},
    }
    return {**_object("apps/v1", "StatefulSet", plan.daemons, plan), "spec": spec}


def _probe(cluster: DeploymentPlan) -> dict[str, Any]:
    """Health over gRPC. Probes bring no certificate, so with TLS they try whether the port is open."""
    return {"tcpSocket": {"port": cluster.port}} if cluster.tls else {"grpc": {"port": cluster.port}}


def _scraped(cluster: DeploymentPlan) -> dict[str, str]:
    scheme = "https" if cluster.tls else "http"
    found = {"scrape": "true", "port": str(cluster.metrics_port), "scheme": scheme}
    return {f"prometheus.io/{key}": value for key, value in found.items()}


def _job(plan: KubernetesPlan) -> dict[str, Any]:
    """One pod per machine with trainers. All trainers of a run end together, so a pod starts again with the others."""
    cluster = plan.cluster
    command = cluster.trainer(CLUSTER, f"{plan.trainers}-0.{plan.trainers}")
    here = cluster.trainers // cluster.nodes
    container = {
        **_container(plan, "trainer", command),
        "resources": {"requests": {"cpu": str(plan.cpu * here), "memory": f"{2 * here}Gi"}},
    }
    pod = {**_pod(plan, container, plan.trainers), "restartPolicy": "OnFailure", "subdomain": plan.trainers}
    found = _object("batch/v1", "Job", plan.trainers, plan)
    if plan.queue:
        found["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] = plan.queue
    spec = {
        "completionMode": "Indexed",
        "completions": cluster.nodes,
        "parallelism": cluster.nodes,
        "backoffLimit": 6 * cluster.nodes,
        "template": {"metadata": {"labels": _labels(plan, "trainer")}, "spec": pod},
    }
    return {**found, "spec": spec}


def _container(plan: KubernetesPlan, name: str, command: list[str]) -> dict[str, Any]:
    mounts = [{"name": "config", "mountPath": CONFIG, "readOnly": True}]
    if plan.cluster.tls:
        mounts.append({"name": "tls", "mountPath": TLS, "readOnly": True})
    return {
        "name": name,
        "image": plan.image,
        "command": command[:2],
        "args": [word.replace("$", "$$") for word in command[2:]],  # Kubernetes expands $(NAME), and $$ to one $
        "env": [{"name": "PYTHONUNBUFFERED", "value": "1"}],
        "securityContext": _UNPRIVILEGED,
        "volumeMounts": mounts,
    }


def _pod(plan: KubernetesPlan, container: Mapping[str, Any], owner: str) -> dict[str, Any]:
    volumes: list[dict[str, Any]] = [{"name": "config", "configMap": {"name": f"{plan.cluster.name}-cluster"}}]
    if plan.cluster.tls:
        # 288 is 0440 in octal: the group of the pod reads the keys, nobody else.
        volumes.append({"name": "tls", "secret": {"secretName": f"{owner}-tls", "defaultMode": 288}})
    return {"securityContext": _USER, "containers": [dict(container)], "volumes": volumes}


def _mebibytes(count: int) -> str:
    return f"{-(-count // (1 << 20))}Mi"
