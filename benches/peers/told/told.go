// Package told is for programs that lock when they are told to, as benches/program.rs says.
package told

import (
	"bufio"
	"fmt"
	"log"
	"math"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// A Locker takes the lock on a key, waiting as this lock does, and says how to give it back.
type Locker func(key string) (release func())

// A section is what became of a wait, in nanoseconds of the machine's monotonic clock.
type section struct{ asked, begun, ended int64 }

// Serve does what it is told, line by line. The lock's version is that of this module.
func Serve(take Locker, module string) {
	// Connects whoever does that only when first used.
	take("warm-up")()
	fmt.Println("ready", version(module))
	orders, out := bufio.NewScanner(os.Stdin), bufio.NewWriter(os.Stdout)
	for orders.Scan() {
		var prefix string
		var tasks, keys, body int
		var length, start, end int64
		line := orders.Text()
		if n, _ := fmt.Sscanf(line, "rate %s %d %d %d", &prefix, &tasks, &keys, &length); n == 4 {
			start := now()
			end := start + length*int64(time.Microsecond)
			done := run(take, tasks, 0, end, func(task int) string {
				return fmt.Sprintf("%s:%d", prefix, task%keys)
			})
			done = slices.DeleteFunc(done, func(one section) bool { return one.ended > end })
			fmt.Fprintln(out, float64(len(done))*1e9/float64(end-start))
		} else if n, _ := fmt.Sscanf(line, "contend %s %d %d %d %d", &prefix, &tasks, &body, &start, &end); n == 5 {
			time.Sleep(time.Duration(start - now()))
			pause := time.Duration(body) * time.Microsecond
			for _, one := range run(take, tasks, pause, end, func(int) string { return prefix }) {
				fmt.Fprintln(out, one.asked, one.begun, one.ended)
			}
			fmt.Fprintln(out, "end")
		} else {
			log.Fatalf("not understood: %q", line)
		}
		Check(out.Flush())
	}
}

// run lets each task run one section after the other. Who waits at the end has one more.
func run(take Locker, tasks int, body time.Duration, end int64, key func(int) string) []section {
	var running sync.WaitGroup
	of := make([][]section, tasks)
	for task := range tasks {
		key := key(task)
		running.Go(func() {
			for asked := now(); asked < end; asked = now() {
				release := take(key)
				begun := now()
				if body > 0 {
					time.Sleep(body)
				}
				ended := now()
				release()
				of[task] = append(of[task], section{asked, begun, ended})
			}
		})
	}
	running.Wait()
	return slices.Concat(of...)
}

// Go does not tell what its own clock counts from, so that one moment is read off both, as closely
// as it goes.
var origin, originNano = sameMoment()

func now() int64 {
	return originNano + int64(time.Since(origin))
}

func sameMoment() (moment time.Time, nano int64) {
	closest := int64(math.MaxInt64)
	for range 100 {
		before, own, after := monotonic(), time.Now(), monotonic()
		if after-before < closest {
			closest, moment, nano = after-before, own, before+(after-before)/2
		}
	}
	return moment, nano
}

func monotonic() int64 {
	var moment unix.Timespec
	Check(unix.ClockGettime(unix.CLOCK_MONOTONIC, &moment))
	return moment.Nano()
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

// Check ends the program if something has failed: nothing does but by a mistake.
func Check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
