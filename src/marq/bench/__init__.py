"""Measurements against the client that marq stands on. This room may call confluent_kafka: it is the yardstick."""
