"""Apache Kafka as the store needs it, and the key pages that stand on a topic.

- `client`: topics, bounds, a producer that sends once, a stream. `cluster`: which broker is asked, and whether again;
  `answers`: what an error code means. `wire`: questions and record batches, the one module that imports aiokafka;
  `requests`: the two that each write and each read makes, to the byte.
- `config`: how to reach the brokers. `trust`: TLS. `topics`: what the topics of a store must be. `values`: forms.
- `keystore`: the port `KeyStore` on a topic. `key_topic`: what stands there. `followed_pages`: the copy of it here.

The log on a topic is `atomlog.kernel.log.kafka`.
"""
