"""Recurrent networks and a state-space model in place of attention."""
