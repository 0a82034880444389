"""Messages: closed unions of frozen dataclasses, one module per conversation."""
