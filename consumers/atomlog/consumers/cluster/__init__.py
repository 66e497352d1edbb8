"""A store on Kafka: its nodes, who of them owns a partition, and how they talk to each other."""
