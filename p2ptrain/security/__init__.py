"""Certificates, tokens and enrolment."""
