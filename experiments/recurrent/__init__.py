"""Recurrent networks and a state-space model in the place of attention."""
