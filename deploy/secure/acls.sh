#!/bin/sh
# Who may do what. Run it as admin after `atomlog init --kafka`, which makes the topics:
#   acls.sh broker-1.example.net:9094 admin.properties
# Needs kafka-acls.sh of Apache Kafka on PATH. Repeating it changes nothing.
set -eu
brokers=$1
config=$2

allow() {
    principal=$1
    shift
    kafka-acls.sh --bootstrap-server "$brokers" --command-config "$config" --add --allow-principal "User:$principal" "$@"
}

# A kernel owns partitions: it writes the log and the keys, takes requests from inboxes and answers them.
allow kernel --operation Read --operation Write --operation Describe --operation DescribeConfigs \
    --topic atomlog. --resource-pattern-type prefixed

# A consumer reads the log and the keys, says where it stands, and tells and hears of receipts for who reads beside it.
allow consumer --operation Read --operation Describe --operation DescribeConfigs \
    --topic atomlog.atoms --topic atomlog.keys
allow consumer --operation Read --operation Write --operation Describe --topic atomlog.control
allow consumer --operation Read --operation Write --operation Describe --topic atomlog.reads

# A producer has one inbox, which nobody else may write to: that makes it the principal of what is in there.
allow alice --operation Write --operation Describe --topic atomlog.inbox.alice
allow alice --operation Read --operation Describe --topic atomlog.results.alice
