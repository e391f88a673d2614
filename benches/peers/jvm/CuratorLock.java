import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.retry.ExponentialBackoffRetry;

/**
 * As Curator's pages say: one client with its retry policy, and a mutex for whoever wants the
 * lock. Threads that share a mutex wake each other all the time, and are ten times slower.
 */
final class CuratorLock implements Lock {
    private static final int SESSION = 30_000;
    /** Its default. */
    private static final int CONNECTION = 15_000;

    private final CuratorFramework client;

    CuratorLock(String server) {
        client = CuratorFrameworkFactory.newClient(
                server, SESSION, CONNECTION, new ExponentialBackoffRetry(1000, 3));
        client.start();
    }

    @Override
    public Release take(String key) throws Exception {
        InterProcessMutex mutex = new InterProcessMutex(client, "/curator/" + key);
        mutex.acquire();
        return mutex::release;
    }

    @Override
    public String version() throws Exception {
        return Versions.of(InterProcessMutex.class, "org.apache.curator", "curator-recipes");
    }

    @Override
    public void close() {
        client.close();
    }
}
