import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.reflect.Constructor;
import java.util.Arrays;
import java.util.concurrent.TimeUnit;
import org.redisson.Redisson;
import org.redisson.RedissonFairLock;
import org.redisson.api.RBucket;
import org.redisson.api.RLock;
import org.redisson.api.RFencedLock;
import org.redisson.api.RedissonClient;
import org.redisson.client.RedisException;
import org.redisson.client.codec.StringCodec;
import org.redisson.command.CommandAsyncExecutor;
import org.redisson.config.Config;

/**
 * A Java service that locks with Redisson, as its users do. Its arguments are "single",
 * "cluster" or "sentinel:&lt;master&gt;", the milliseconds of the watch dog, those of a place in
 * the queue of a fair lock, and where the servers are. Each line that it is told is a word, a kind of lock and a name:
 *
 * "lock" takes the lock and "try" takes it if it is free, for as many milliseconds as
 * stand behind the name, or as long as the watch dog lives; "release" gives back the one
 * that was taken last, and "unlock" this one, "break" ends it whoever has it, "owns" says whether it is held yet,
 * and "token" is that of a fenced lock. It answers with "waits" before it waits, and then
 * "held", "busy", "released" or what there is to say.
 *
 * "work" adds one to a counter under the lock, again and again until there is a key "stop".
 */
public class Contender {
    private static RedissonClient client;
    /** A new one is set in the configuration, an old one when a lock is made. */
    private static Constructor<RedissonFairLock> withWait;
    private static long fairWait;
    private static long watchDog;

    public static void main(String[] arguments) {
        try {
            serve(arguments);
        } catch (Throwable failure) {
            failure.printStackTrace();
            System.exit(1);
        }
    }

    private static void serve(String[] arguments) throws Exception {
        client = Redisson.create(config(arguments));
        say("connected");
        BufferedReader orders = new BufferedReader(new InputStreamReader(System.in));
        RLock held = null;
        for (String order = orders.readLine(); order != null; order = orders.readLine()) {
            String[] words = order.split(" ");
            if (words[0].equals("release")) {
                say(released(held) ? "released" : "not held");
                continue;
            } else if (words[0].equals("owns")) {
                say(held.isHeldByCurrentThread() ? "yes" : "no");
                continue;
            } else if (words[0].equals("token")) {
                say(((RFencedLock) held).getToken().toString());
                continue;
            }
            RLock lock = lock(words[1], words[2]);
            long lease = words.length > 3 ? Long.parseLong(words[3]) : -1;
            switch (words[0]) {
                case "try":
                    held = lock;
                    say(lock.tryLock(0, lease, TimeUnit.MILLISECONDS) ? "held" : "busy");
                    break;
                case "lock":
                    held = lock;
                    say("waits");
                    lock.lock(lease, TimeUnit.MILLISECONDS);
                    say("held");
                    break;
                case "unlock":
                    say(released(lock) ? "released" : "not held");
                    break;
                case "break":
                    say(lock.forceUnlock() ? "broken" : "free");
                    break;
                case "work":
                    work(lock, lease);
                    say("worked");
                    break;
                default:
                    throw new IllegalArgumentException(order);
            }
        }
        client.shutdown();
    }

    private static Config config(String[] arguments) throws Exception {
        Config config = new Config();
        config.setCodec(StringCodec.INSTANCE);
        config.setThreads(4);
        config.setNettyThreads(4);
        config.setLockWatchdogTimeout(Long.parseLong(arguments[1]));
        watchDog = TimeUnit.MILLISECONDS.toNanos(config.getLockWatchdogTimeout());
        fairWait = Long.parseLong(arguments[2]);
        try {
            Config.class.getMethod("setFairLockWaitTimeout", long.class).invoke(config, fairWait);
        } catch (NoSuchMethodException old) {
            withWait = RedissonFairLock.class.getConstructor(
                    CommandAsyncExecutor.class, String.class, long.class);
        }
        String[] servers = Arrays.copyOfRange(arguments, 3, arguments.length);
        if (arguments[0].equals("single")) {
            config.useSingleServer().setAddress(servers[0]).setConnectionMinimumIdleSize(2);
        } else if (arguments[0].equals("cluster")) {
            config.useClusterServers()
                    .addNodeAddress(servers)
                    .setMasterConnectionMinimumIdleSize(1)
                    .setSlaveConnectionMinimumIdleSize(1);
        } else {
            config.useSentinelServers()
                    .setMasterName(arguments[0].substring("sentinel:".length()))
                    .addSentinelAddress(servers)
                    .setMasterConnectionMinimumIdleSize(1)
                    .setSlaveConnectionMinimumIdleSize(1);
        }
        return config;
    }

    private static RLock lock(String kind, String name) throws Exception {
        switch (kind) {
            case "lock":
                return client.getLock(name);
            case "fair":
                return withWait == null
                        ? client.getFairLock(name)
                        : withWait.newInstance(
                                ((Redisson) client).getCommandExecutor(), name, fairWait);
            case "fenced":
                return client.getFencedLock(name);
            case "read":
                return client.getReadWriteLock(name).readLock();
            case "write":
                return client.getReadWriteLock(name).writeLock();
            default:
                throw new IllegalArgumentException(kind);
        }
    }

    private static boolean released(RLock lock) {
        try {
            lock.unlock();
            return true;
        } catch (IllegalMonitorStateException notHeld) {
            return false;
        }
    }

    private static void work(RLock lock, long lease) throws Exception {
        RBucket<String> counter = client.getBucket("counter");
        while (true) {
            try {
                if (!worked(lock, lease, counter)) {
                    return;
                }
            } catch (RedisException unanswered) {
                // It was paused for longer than anybody waits for an answer. What it has yet,
                // its watch dog keeps.
                while (lock.isHeldByCurrentThread()) {
                    released(lock);
                }
            }
        }
    }

    private static boolean worked(RLock lock, long lease, RBucket<String> counter)
            throws Exception {
        if (client.getBucket("stop").isExists()) {
            return false;
        }
        long asked = System.nanoTime();
        lock.lock(lease, TimeUnit.MILLISECONDS);
        String before = counter.get();
        Thread.sleep(1);
        String after = Long.toString(Long.parseLong(before) + 1);
        if (counter.compareAndSet(before, after)) {
            client.getAtomicLong("worked").incrementAndGet();
            if (System.nanoTime() - asked > watchDog && !lock.isHeldByCurrentThread()) {
                client.getAtomicLong("late").incrementAndGet();
            }
        } else if (lock.isHeldByCurrentThread()) {
            client.getAtomicLong("overlaps").incrementAndGet();
        }
        released(lock);
        return true;
    }

    private static void say(String word) {
        System.out.println(word);
        System.out.flush();
    }
}
