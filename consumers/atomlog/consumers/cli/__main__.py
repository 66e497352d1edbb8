"""`python -m atomlog.consumers.cli`: the command `atomlog`."""

from atomlog.consumers.cli.main import main

main(prog_name="atomlog")
