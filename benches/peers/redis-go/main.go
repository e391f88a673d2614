// Go's locks on Redis, each as its own pages say that it is used.
//
//	redis-go --lock redsync|redislock|rueidislock --server <host:port>
package main

import (
	"flag"
	"log"
	"time"

	"dlock.peers/told"
)

// A lease is as long as this. No section is, so that none is renewed.
const ttl = 30 * time.Second

// Each is made with the address of the server, and is in this module.
var locks = map[string]struct {
	connect func(server string) told.Locker
	module  string
}{
	"redsync":     {redsyncLocker, "github.com/go-redsync/redsync/v4"},
	"redislock":   {redislockLocker, "github.com/bsm/redislock"},
	"rueidislock": {rueidislockLocker, "github.com/redis/rueidis"},
}

func main() {
	name := flag.String("lock", "", "whose lock")
	server := flag.String("server", "", "host:port of Redis")
	flag.Parse()
	lock, known := locks[*name]
	if !known {
		log.Fatalf("there is no lock %q", *name)
	}
	told.Serve(lock.connect(*server), lock.module)
}
