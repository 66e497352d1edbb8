"""The logs behind the port `atomlog.kernel.ports.Log`: on files, on Kafka, and in memory.

- `frames`: bytes of a group and of a segment's header. `segments`: finding and reading groups in segment files.
- `recovery`: what a new owner does with the last segment. `writer`: what an owner does with a group.
- `embedded`: the log on files, made of these. `kafka`, `kafka_reading`: the log on a topic. `memory`,
  `faults`: the log in memory, with scripted faults.
"""
