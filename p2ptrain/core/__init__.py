"""Pure protocol cores: no clock, no I/O, no logging, no thread."""
