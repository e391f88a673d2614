import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.lang.reflect.Constructor;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.net.InetAddress;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import org.redisson.Redisson;
import org.redisson.RedissonFairLock;
import org.redisson.api.RFencedLock;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.client.RedisException;
import org.redisson.client.codec.StringCodec;
import org.redisson.command.CommandAsyncExecutor;
import org.redisson.config.Config;

/**
 * A Java service that locks with Redisson, as its users do. Its arguments are "single",
 * "cluster" or "sentinel:&lt;master&gt;", the milliseconds of the watch dog, those of a place in
 * the queue of a fair lock, what its NameMapper puts in front of names, and where the servers
 * are. Each line that it is told is a word, a kind of lock and a name:
 *
 * "lock" takes the lock and "try" takes it if it is free, for as many milliseconds as
 * stand behind the name, or as long as the watch dog lives; "within" waits for it no longer than
 * these milliseconds; "release" gives back the one
 * that was taken last, and "unlock" this one, "break" ends it whoever has it, "owns" says whether it is held yet,
 * "sees" what Java sees of it, and "token" is that of a fenced lock. It answers with "waits" when it sleeps until it is told
 * that the lock is free, and with "held", "busy", "released" or what there is to say. A lock of
 * the kind "multi" is several plain ones, with a comma between their names.
 *
 * "work" goes in and out of what the lock protects, which is on the port behind the name,
 * until there is a key "stop"; behind the port stands as whom. Of two kinds, such as
 * "read,write", it draws one each time.
 */
public class Contender {
    private static RedissonClient client;
    /** A new one is set in the configuration, an old one when a lock is made. */
    private static Constructor<RedissonFairLock> withWait;
    private static long fairWait;

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
            if (words[0].equals("work")) {
                work(words[1].split(","), words[2], Integer.parseInt(words[3]), words[4]);
                say("worked");
                continue;
            }
            RLock lock = lock(words[1], words[2]);
            long lease = words.length > 3 ? Long.parseLong(words[3]) : -1;
            switch (words[0]) {
                case "try":
                    held = lock;
                    say(lock.tryLock(0, lease, TimeUnit.MILLISECONDS) ? "held" : "busy");
                    break;
                case "sees":
                    say((lock.isLocked() ? "locked" : "free")
                            + (lock.remainTimeToLive() > 0 ? ", for a while" : "")
                            + (lock.isHeldByCurrentThread() ? ", by itself" : ""));
                    break;
                case "within":
                    held = lock;
                    Thread sleeper = tellsThatItSleeps(Thread.currentThread());
                    boolean had = lock.tryLock(lease, TimeUnit.MILLISECONDS);
                    sleeper.interrupt();
                    sleeper.join();
                    say(had ? "held" : "busy");
                    break;
                case "lock":
                    held = lock;
                    Thread watcher = tellsThatItSleeps(Thread.currentThread());
                    lock.lock(lease, TimeUnit.MILLISECONDS);
                    watcher.interrupt();
                    watcher.join();
                    say("held");
                    break;
                case "unlock":
                    say(released(lock) ? "released" : "not held");
                    break;
                case "break":
                    say(lock.forceUnlock() ? "broken" : "free");
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
        fairWait = Long.parseLong(arguments[2]);
        try {
            Config.class.getMethod("setFairLockWaitTimeout", long.class).invoke(config, fairWait);
        } catch (NoSuchMethodException old) {
            withWait = RedissonFairLock.class.getConstructor(
                    CommandAsyncExecutor.class, String.class, long.class);
        }
        String[] servers = Arrays.copyOfRange(arguments, 4, arguments.length);
        if (arguments[0].equals("single")) {
            config.useSingleServer().setAddress(servers[0]).setConnectionMinimumIdleSize(2);
            if (!arguments[3].isEmpty()) {
                setNameMapper(config, arguments[3]);
            }
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

    /** Of a newer Redisson it is set for all kinds of servers, and of an older one for each. */
    private static void setNameMapper(Config config, String prefix) throws Exception {
        for (Object at : new Object[] {config, config.useSingleServer()}) {
            for (Method method : at.getClass().getMethods()) {
                if (method.getName().equals("setNameMapper")) {
                    Class<?> mapper = method.getParameterTypes()[0];
                    method.invoke(at, Proxy.newProxyInstance(
                            mapper.getClassLoader(), new Class<?>[] {mapper},
                            (self, call, names) -> call.getName().equals("map")
                                    ? prefix + names[0]
                                    : ((String) names[0]).substring(prefix.length())));
                    return;
                }
            }
        }
        throw new NoSuchMethodException("setNameMapper");
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
            case "non-reentrant":
                return sinceFour("getNonReentrantLock", name);
            case "non-reentrant-fair":
                return sinceFour("getNonReentrantFairLock", name);
            case "multi":
                return client.getMultiLock(
                        Arrays.stream(name.split(",")).map(client::getLock).toArray(RLock[]::new));
            case "read":
                return client.getReadWriteLock(name).readLock();
            case "write":
                return client.getReadWriteLock(name).writeLock();
            default:
                throw new IllegalArgumentException(kind);
        }
    }

    /** What older versions do not have. */
    private static RLock sinceFour(String method, String name) throws Exception {
        return (RLock) RedissonClient.class.getMethod(method, String.class).invoke(client, name);
    }

    /**
     * Before that it has subscribed, but would not hear a writer who gives the lock back:
     * Redisson wakes those who sleep already.
     */
    private static Thread tellsThatItSleeps(Thread waiter) {
        Thread watcher = new Thread(() -> {
            try {
                while (!sleeps(waiter.getStackTrace())) {
                    Thread.sleep(1);
                }
            } catch (InterruptedException served) {
                // It is not going to sleep.
            }
            say("waits");
        });
        watcher.start();
        return watcher;
    }

    private static boolean sleeps(StackTraceElement[] stack) {
        return stack.length > 0
                && stack[0].getMethodName().equals("park")
                && Arrays.stream(stack).anyMatch(
                        call -> call.getClassName().equals("java.util.concurrent.Semaphore"));
    }

    private static boolean released(RLock lock) {
        try {
            lock.unlock();
            return true;
        } catch (IllegalMonitorStateException notHeld) {
            return false;
        }
    }

    private static void work(String[] kinds, String name, int port, String worker)
            throws Exception {
        Resource resource = new Resource(port, worker);
        while (!isToStop()) {
            String kind = kinds[ThreadLocalRandom.current().nextInt(kinds.length)];
            RLock lock = lock(kind, name);
            try {
                long asked = Resource.now();
                // What getToken() says is the last that anybody has drawn.
                long token = kind.equals("fenced") ? ((RFencedLock) lock).lockAndGetToken() : 0;
                if (token == 0) {
                    lock.lock();
                }
                resource.visit(token, kind.equals("read"), asked);
            } catch (RedisException unanswered) {
                // The same.
            }
            // A command that Redisson sent twice, as its answer was late, has counted twice.
            while (isHeld(lock)) {
                // What it has yet, its watch dog keeps.
            }
        }
    }

    private static boolean isToStop() {
        try {
            return client.getBucket("stop").isExists();
        } catch (RedisException unanswered) {
            // It was paused for longer than anybody waits for an answer.
            return false;
        }
    }

    private static boolean isHeld(RLock lock) {
        try {
            return lock.isHeldByCurrentThread() && released(lock);
        } catch (RedisException unanswered) {
            return true;
        }
    }

    /** What the lock protects, on the side of the tests: see resource.rs. */
    private static final class Resource {
        private final BufferedReader answers;
        private final OutputStream requests;
        private final String worker;

        Resource(int port, String worker) throws IOException {
            Socket socket = new Socket(InetAddress.getLoopbackAddress(), port);
            socket.setTcpNoDelay(true);
            answers = new BufferedReader(new InputStreamReader(socket.getInputStream()));
            requests = socket.getOutputStream();
            this.worker = worker;
        }

        /** Microseconds of CLOCK_MONOTONIC, as which Java has it on Linux. */
        static long now() {
            return TimeUnit.NANOSECONDS.toMicros(System.nanoTime());
        }

        void visit(long token, boolean reads, long asked) throws Exception {
            Long number = ask(token, "enter " + (reads ? "read " : "write ") + asked);
            Long value = number == null ? null : ask(number, "read");
            if (value == null) {
                return;
            }
            Thread.sleep(3);
            if (reads || ask(number, "write " + (value + 1)) != null) {
                ask(number, "leave");
            }
        }

        /** Null: it came too late. */
        private Long ask(long number, String request) throws IOException {
            String line = now() + " " + worker + " " + number + " " + request + "\n";
            requests.write(line.getBytes(StandardCharsets.UTF_8));
            String[] answer = answers.readLine().split(" ");
            return answer[0].equals("ok") ? Long.valueOf(answer[1]) : null;
        }
    }

    private static void say(String word) {
        System.out.println(word);
        System.out.flush();
    }
}
