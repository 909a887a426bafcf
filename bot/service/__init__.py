"""Decisions about people: inbox, dispatcher, turns, streaming, recovery. Knows no platform and no SQL."""
