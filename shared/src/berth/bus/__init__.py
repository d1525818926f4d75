"""NATS as berth uses it: subjects, streams, buckets, the connection, and an in-memory bus that behaves the same."""
