"""A throwaway Redis Cluster (see ``lab.servers.redis``)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Self

from lab.processes import LOOPBACK, free_port, wait_until

from .redis_server import RedisServer, connect

SLOTS = 16384

NODE_TIMEOUT_MS = 2000
"""After this silence a Cluster takes a node for dead. Shorter would promote replicas on a busy machine."""


class RedisCluster:
    """A Redis Cluster of our own on 127.0.0.1: `masters` with equal shares of the slots, each with replicas.

    Use `with RedisCluster.start(masters=3, replicas=1) as cluster:`. `url` names every node.
    """

    def __init__(
        self,
        *,
        masters: int = 3,
        replicas: int = 0,
        settings: Mapping[str, str] | None = None,
        binary: Path | None = None,
    ) -> None:
        self.nodes: list[RedisServer] = []
        """Masters first, then the replicas in the order of their masters."""
        self._masters = masters
        self._replicas = replicas
        try:
            for _ in range(masters * (1 + replicas)):
                self.nodes.append(RedisServer.start(settings=_node_settings(settings), binary=binary))
            self._join()
        except BaseException:
            self.stop()
            raise

    @classmethod
    def start(
        cls,
        *,
        masters: int = 3,
        replicas: int = 0,
        settings: Mapping[str, str] | None = None,
        binary: Path | None = None,
    ) -> Self:
        """Create a Cluster and return when every node knows every slot; two seconds."""
        return cls(masters=masters, replicas=replicas, settings=settings, binary=binary)

    @property
    def url(self) -> str:
        return "redis+cluster://" + ",".join(f"{LOOPBACK}:{node.port}" for node in self.nodes)

    def master(self, slot: int) -> RedisServer:
        """The node that was given this slot at the start."""
        return self.nodes[slot * self._masters // SLOTS]

    def replicas_of(self, master: RedisServer) -> list[RedisServer]:
        index = self.nodes.index(master)
        first = self._masters + index * self._replicas
        return self.nodes[first : first + self._replicas]

    def promote(self, replica: RedisServer) -> None:
        """Makes a replica the master of its dead master's slots, and waits until all living nodes know."""
        from redis.exceptions import ResponseError

        with connect(replica.url) as client:
            try:
                client.execute_command("CLUSTER", "FAILOVER", "TAKEOVER")
            except ResponseError:
                if client.info("replication")["role"] != "master":
                    raise  # else the Cluster was faster
        wait_until(self._settled)

    def stop(self) -> None:
        """End every node. May be repeated."""
        for node in self.nodes:
            node.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _join(self) -> None:
        names: list[str] = []
        for index, node in enumerate(self.nodes):
            with connect(node.url) as client:
                names.append(client.execute_command("CLUSTER", "MYID").decode())
                client.execute_command("CLUSTER", "SET-CONFIG-EPOCH", index + 1)
                if index < self._masters:
                    first, beyond = (-(-SLOTS * i // self._masters) for i in (index, index + 1))
                    client.execute_command("CLUSTER", "ADDSLOTSRANGE", first, beyond - 1)
                for other in self.nodes[:index]:
                    bus = other.settings["cluster-port"]
                    client.execute_command("CLUSTER", "MEET", LOOPBACK, other.port, bus)
        wait_until(lambda: all(len(self._known(node)) == len(self.nodes) for node in self.nodes))
        for index, node in enumerate(self.nodes[: self._masters]):
            for replica in self.replicas_of(node):
                with connect(replica.url) as client:
                    client.execute_command("CLUSTER", "REPLICATE", names[index])
        wait_until(self._settled)
        wait_until(self._replicated)

    def _known(self, node: RedisServer) -> list[str]:
        with connect(node.url) as client:
            lines: list[str] = (
                client.execute_command("CLUSTER", "NODES", NEVER_DECODE=True).decode().split("\n")
            )
        return [line for line in lines if line and "handshake" not in line]

    def _settled(self) -> bool:
        """Whether every living node sees all slots served, by the same masters."""
        views = set()
        for node in self.nodes:
            if not node.running:
                continue
            with connect(node.url) as client:
                info = client.execute_command("CLUSTER", "INFO", NEVER_DECODE=True).decode()
            if "cluster_state:ok" not in info:
                return False
            owners = [line.split() for line in self._known(node)]
            views.add(frozenset((words[0], *words[8:]) for words in owners if words[8:]))
        return len(views) == 1

    def _replicated(self) -> bool:
        for node in self.nodes[self._masters :]:
            with connect(node.url) as client:
                if client.info("replication").get("master_link_status") != "up":
                    return False
        return True


def _node_settings(settings: Mapping[str, str] | None) -> dict[str, str]:
    return {
        "databases": "1",
        "cluster-enabled": "yes",
        "cluster-config-file": "nodes.conf",
        "cluster-port": str(free_port()),
        "cluster-node-timeout": str(NODE_TIMEOUT_MS),
        "cluster-allow-replica-migration": "no",
        **(settings or {}),
    }
