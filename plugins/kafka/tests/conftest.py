"""librdkafka's mock cluster: brokers in this process that speak Kafka's protocol on the loopback interface."""

from __future__ import annotations

import itertools
import logging

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from noetl.testing import ToolHost

numbers = itertools.count()
quiet = logging.getLogger("mock-cluster")


class Cluster:
    """The mock cluster; it exists while its first client exists."""

    def __init__(self) -> None:
        self._client = Producer({"test.mock.num.brokers": 1, "bootstrap.servers": "mock", "logger": quiet})
        brokers = self._client.list_topics(timeout=20).brokers.values()
        self.servers = ",".join(f"{each.host}:{each.port}" for each in brokers)
        self.auth = {"servers": self.servers}

    def new_topic(self) -> str:
        """The cluster creates a topic, with four partitions, when it is used."""
        name = f"topic{next(numbers)}"
        self._client.list_topics(name, timeout=20)
        return name

    def produce(self, topic: str, *messages, partition: int = 0) -> None:
        producer = Producer({"bootstrap.servers": self.servers, "logger": quiet})
        for message in messages:
            producer.produce(topic, message, partition=partition)
        producer.flush()

    def committed(self, topic: str, group: str) -> dict[int, int]:
        consumer = Consumer({"bootstrap.servers": self.servers, "group.id": group, "logger": quiet})
        found = consumer.committed([TopicPartition(topic, number) for number in range(4)], timeout=20)
        consumer.close()
        return {each.partition: each.offset for each in found if each.offset >= 0}


@pytest.fixture(scope="session")
def cluster() -> Cluster:
    return Cluster()


@pytest.fixture
def host(cluster) -> ToolHost:
    return ToolHost(credentials={"events": cluster.auth})
