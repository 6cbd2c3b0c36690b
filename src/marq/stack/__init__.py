"""The embedded servers: a real Kafka broker and a real Redis, as child processes that never outlive their parent.

Nothing here imports a client library or PySpark: the servers are spoken to over plain sockets.
"""
