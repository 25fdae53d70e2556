"""The verification: ten layers of faults, and canaries that prove that each of them bites."""
