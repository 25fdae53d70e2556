"""Whether this host is fit for agents, and a rehearsal of the halt (`andon drill`)."""
