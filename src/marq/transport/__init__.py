"""The broker, behind one small interface. Only this room imports confluent_kafka."""
