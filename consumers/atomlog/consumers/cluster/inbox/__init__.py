"""Requests that come over topics: which inboxes there are, how they are worked through, what is told.

- `registry`: which there are. `admin`: makes and removes them.
- `inboxes`: which partitions a process works on; `node`: those of a node.
- `worker`: one partition, in order. `position`: where it stands.
- `requests`: what a record asks for. `outcomes`: what is told of it.
"""
