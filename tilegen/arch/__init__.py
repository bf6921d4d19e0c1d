"""Machines that plans are made for, as data."""
