// Go's locks on Redis, each as its own pages say that it is used.
//
//	redis-go --lock redsync|redislock|rueidislock --server <host:port>
//
// It is told what to do as benches/program.rs says.
package main

import (
	"bufio"
	"flag"
	"fmt"
	"log"
	"os"
	"runtime/debug"
	"strings"
	"time"
)

// A lease is as long as this. No section is, so that none is renewed.
const ttl = 30 * time.Second

// A locker takes the lock on a key, waiting as this lock does, and says how to give it back.
type locker func(key string) (release func())

// Each is made with the address of the server, and is in this module.
var locks = map[string]struct {
	connect func(server string) locker
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
	take := lock.connect(*server)
	// Connects whoever does that only when first used.
	take("warm-up")()
	fmt.Println("ready", version(lock.module))
	serve(bufio.NewScanner(os.Stdin), take)
}

// version is that which was built in.
func version(module string) string {
	info, _ := debug.ReadBuildInfo()
	for _, dependency := range info.Deps {
		if dependency.Path == module {
			return strings.TrimPrefix(dependency.Version, "v")
		}
	}
	return "unknown"
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
