"""Comparisons of Tradewind's all-reduce with Gloo and hivemind on the same links."""
