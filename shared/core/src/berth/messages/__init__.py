"""Messages of berth's services on NATS: payloads, subjects, keys of buckets."""
