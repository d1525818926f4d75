"""What berth's services write to each other on NATS: messages, subjects, keys of buckets."""
