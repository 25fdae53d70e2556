"""Requests to the supervisor, from its control process and from users through a socket."""
