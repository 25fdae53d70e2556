"""What andon ships for testing agents and itself. The product never imports this package."""
