// Sections of Go's own lock for etcd, concurrency.Mutex: how many a second.
//
//	etcd-mutex <endpoint> <tasks> <milliseconds>
//
// Each task has a session and a key of its own, and runs one empty section after
// the other. Connecting and beginning the sessions do not count.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"strconv"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
)

func main() {
	endpoint, tasks, slice := os.Args[1], number(2), time.Duration(number(3))*time.Millisecond
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{endpoint}})
	check(err)
	mutexes := make([]*concurrency.Mutex, tasks)
	for i := range mutexes {
		session, err := concurrency.NewSession(client, concurrency.WithTTL(30))
		check(err)
		mutexes[i] = concurrency.NewMutex(session, fmt.Sprintf("peer:%d", i))
		section(mutexes[i])
	}
	var sections sync.WaitGroup
	counts := make([]int, tasks)
	start := time.Now()
	for i, mutex := range mutexes {
		sections.Add(1)
		go func() {
			defer sections.Done()
			for time.Since(start) < slice {
				section(mutex)
				counts[i]++
			}
		}()
	}
	sections.Wait()
	took, all := time.Since(start).Seconds(), 0
	for _, count := range counts {
		all += count
	}
	fmt.Println(float64(all) / took)
}

func section(mutex *concurrency.Mutex) {
	check(mutex.Lock(context.Background()))
	check(mutex.Unlock(context.Background()))
}

func number(argument int) int {
	value, err := strconv.Atoi(os.Args[argument])
	check(err)
	return value
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
