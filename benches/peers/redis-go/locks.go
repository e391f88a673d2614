package main

import (
	"context"
	"errors"
	"log"
	"time"

	"dlock.peers/told"
	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"
)

// With redsync's own number of tries and pauses: 32, of 50 to 250 ms. After the last of them
// its page says to call it again.
func redsyncLocker(server string) told.Locker {
	sync := redsync.New(goredis.NewPool(redis.NewClient(&redis.Options{Addr: server})))
	return func(key string) func() {
		mutex := sync.NewMutex(key, redsync.WithExpiry(ttl))
		for {
			err := mutex.Lock()
			if err == nil {
				break
			}
			var taken *redsync.ErrTaken
			if !errors.As(err, &taken) && !errors.Is(err, redsync.ErrFailed) {
				log.Fatal(err)
			}
		}
		return func() {
			if held, err := mutex.Unlock(); !held || err != nil {
				log.Fatal("redsync lost its lock: ", err)
			}
		}
	}
}

// It does not wait unless it is told for how long; 100 ms are those of its example.
func redislockLocker(server string) told.Locker {
	client := redislock.New(redis.NewClient(&redis.Options{Addr: server}))
	options := &redislock.Options{RetryStrategy: redislock.LinearBackoff(100 * time.Millisecond)}
	return func(key string) func() {
		for {
			lock, err := client.Obtain(context.Background(), key, ttl, options)
			if err == nil {
				return func() { told.Check(lock.Release(context.Background())) }
			}
			// It gives up after a ttl.
			if !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, redislock.ErrNotObtained) {
				log.Fatal(err)
			}
		}
	}
}

// Who has waited for so long for rueidislock asks again.
const again = time.Second

// As its page says for one server. That page's 20 ms for an answer are too few on a busy
// machine: who is late once waits for ever to be told of a key that nobody has. With
// several processes that happens in any case, within a second or two of 4 × 16 tasks: a
// waiter is not told, and its process neither.
func rueidislockLocker(server string) told.Locker {
	locker, err := rueidislock.NewLocker(rueidislock.LockerOption{
		ClientOption:   rueidis.ClientOption{InitAddress: []string{server}},
		KeyMajority:    1,
		NoLoopTracking: true,
		KeyValidity:    ttl,
		TryNextAfter:   time.Second,
	})
	told.Check(err)
	return func(key string) func() {
		for {
			// With a deadline, it would not hold for longer than until then.
			waiting, giveUp := context.WithCancel(context.Background())
			timer := time.AfterFunc(again, giveUp)
			_, release, err := locker.WithContext(waiting, key)
			inTime := timer.Stop()
			if err == nil && inTime {
				return func() {
					release()
					giveUp()
				}
			}
			giveUp()
			if err == nil {
				release()
			} else if !errors.Is(err, context.Canceled) {
				log.Fatal(err)
			}
		}
	}
}
