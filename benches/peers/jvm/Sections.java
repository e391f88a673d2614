import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.function.IntFunction;

/** Tasks, each a thread, that run one section after the other. */
final class Sections {
    private final Lock lock;
    private final ExecutorService threads = Executors.newCachedThreadPool();

    Sections(Lock lock) {
        this.lock = lock;
    }

    /** What became of a wait, in nanoseconds of the machine's monotonic clock. */
    static final class Section {
        final long asked;
        final long begun;
        final long ended;

        Section(long asked, long begun, long ended) {
            this.asked = asked;
            this.begun = begun;
            this.ended = ended;
        }
    }

    /** Who waits at the end has one more. */
    List<Section> run(int tasks, IntFunction<String> key, long bodyMicros, long end)
            throws InterruptedException, ExecutionException {
        List<Future<List<Section>>> running = new ArrayList<>();
        for (int task = 0; task < tasks; task++) {
            String of = key.apply(task);
            running.add(threads.submit(() -> oneByOne(of, bodyMicros, end)));
        }
        List<Section> all = new ArrayList<>();
        for (Future<List<Section>> task : running) {
            all.addAll(task.get());
        }
        return all;
    }

    void end() {
        threads.shutdown();
    }

    private List<Section> oneByOne(String key, long bodyMicros, long end) throws Exception {
        List<Section> done = new ArrayList<>();
        for (long asked = System.nanoTime(); asked < end; asked = System.nanoTime()) {
            Lock.Release release = lock.take(key);
            long begun = System.nanoTime();
            if (bodyMicros > 0) {
                Thread.sleep(bodyMicros / 1000, (int) (bodyMicros % 1000) * 1000);
            }
            long ended = System.nanoTime();
            release.now();
            done.add(new Section(asked, begun, ended));
        }
        return done;
    }
}
