"""`tradewind demo`."""
