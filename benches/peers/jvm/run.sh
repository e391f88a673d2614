#!/bin/sh
# One of Java's locks, with jars of its own: Redisson and Curator take other versions of Netty.
#
#   jvm/run --lock redisson|curator --server <host:port>
set -eu
here="$(dirname "$0")"
exec java -Dslf4j.internal.verbosity=ERROR -cp "$here/classes:$here/$2/*" Peer "$@"
