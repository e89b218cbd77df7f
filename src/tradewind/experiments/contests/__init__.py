"""All-reduces of Tradewind beside Gloo and hivemind on the same links."""
