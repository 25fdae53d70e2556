"""The processes that a supervisor owns: started, watched, logged, restarted."""
