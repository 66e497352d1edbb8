#!/bin/sh
# Makes the directories of the nodes, once. The first makes the cluster's topics and keys, the others join it.
# Repeating it changes nothing. ATOMLOG_BROKERS: host:port,…
set -eu
first=kernel-1
for node in $first kernel-2 consume-ids consume-relations consume-vectors; do
    if ! test -f "/nodes/$node/store.json"; then
        atomlog init --kafka "$ATOMLOG_BROKERS" --replication 3 --partitions 4 --blobs /nodes/blobs --store "/nodes/$node"
    fi
    if test "$node" != "$first"; then
        cp -p "/nodes/$first/node.pem" "/nodes/$node/"
    fi
done
# Only who writes or embeds content needs the key that opens it.
for node in kernel-2 consume-vectors; do
    cp -p "/nodes/$first/master.key" "/nodes/$node/"
done
