"""The command `atomlog`."""
