"""What programs ask about runs: plain calls on a store, shared by clients and control."""
