"""What actors stand on: inboxes, the driver of cores, supervision."""
