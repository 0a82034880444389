"""Logging, configured once: text for people, JSON lines for machines; always stderr."""

import logging
import sys

import structlog

LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}
VALUE_CHARS_MAX = 500


def configure(level: str, *, as_json: bool, node: str = "") -> None:
    """Set structlog up for this process; every line then carries the node's name."""
    render: structlog.typing.Processor = structlog.dev.ConsoleRenderer(
        colors=sys.stderr.isatty()
    )
    if as_json:
        render = structlog.processors.JSONRenderer()
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            _shorten,
            *([structlog.processors.format_exc_info] if as_json else []),
            render,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        # asked for each time: standard error may be replaced after this
        logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),
        cache_logger_on_first_use=False,
    )
    if node:
        structlog.contextvars.bind_contextvars(on=node)


def _shorten(
    _logger: structlog.typing.WrappedLogger,
    _method: str,
    event: structlog.typing.EventDict,
) -> structlog.typing.EventDict:
    """Bound every text value: a peer's sentence must not fill the disk."""
    for key, value in event.items():
        if isinstance(value, str) and len(value) > VALUE_CHARS_MAX:
            event[key] = value[:VALUE_CHARS_MAX] + "…"
    return event
