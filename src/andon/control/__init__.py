"""What people and programs ask: one function per request, and the surfaces that translate it."""
