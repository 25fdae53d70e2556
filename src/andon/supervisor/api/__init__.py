"""Who may speak to the supervisor: its control process, and people through a socket."""
