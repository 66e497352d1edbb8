#!/bin/sh
# Makes the directories of the nodes, once. The first makes the cluster's topics and keys, the others join it with its
# node.pem; those that write or embed content get the master key too. Repeating it changes nothing.
# ATOMLOG_BROKERS: host:port,…
set -eu
first=/nodes/kernel-1

make() {
    node=/nodes/$1
    shift
    test -f "$node/store.json" && return
    atomlog init --store "$node" --kafka "$ATOMLOG_BROKERS" --replication 3 --partitions 4 --blobs /nodes/blobs "$@"
}

make kernel-1
make kernel-2 --node-pem "$first/node.pem" --master-key "$first/master.key"
make consume-ids --node-pem "$first/node.pem"
make consume-relations --node-pem "$first/node.pem"
make consume-vectors --node-pem "$first/node.pem" --master-key "$first/master.key"
