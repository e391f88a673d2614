// Go's own lock for etcd, concurrency.Mutex.
//
//	etcd-mutex --lock mutex --server <host:port>
package main

import (
	"context"
	"flag"

	"dlock.peers/told"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
)

const ttl = 30

// Whoever holds or waits has a session of its own: two that share one both win.
type sessions struct {
	client *clientv3.Client
	idle   chan *concurrency.Session
}

func main() {
	flag.String("lock", "mutex", "there is one")
	server := flag.String("server", "", "host:port of etcd")
	flag.Parse()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{*server}})
	told.Check(err)
	// More than any table has tasks.
	of := sessions{client, make(chan *concurrency.Session, 1000)}
	told.Serve(of.take, "go.etcd.io/etcd/client/v3")
}

func (of sessions) take(key string) func() {
	session := of.session()
	mutex := concurrency.NewMutex(session, key)
	told.Check(mutex.Lock(context.Background()))
	return func() {
		told.Check(mutex.Unlock(context.Background()))
		of.idle <- session
	}
}

func (of sessions) session() *concurrency.Session {
	select {
	case session := <-of.idle:
		return session
	default:
		session, err := concurrency.NewSession(of.client, concurrency.WithTTL(ttl))
		told.Check(err)
		return session
	}
}
