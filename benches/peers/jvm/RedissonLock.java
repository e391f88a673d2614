import org.redisson.Redisson;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

/** As Redisson's pages say: its watch dog renews what is held, and a lease of its is 30 s. */
final class RedissonLock implements Lock {
    private final RedissonClient client;

    RedissonLock(String server) {
        Config config = new Config();
        config.useSingleServer().setAddress("redis://" + server);
        client = Redisson.create(config);
    }

    @Override
    public Release take(String key) {
        RLock lock = client.getLock(key);
        lock.lock();
        return lock::unlock;
    }

    @Override
    public String version() throws Exception {
        return Versions.of(Redisson.class, "org.redisson", "redisson");
    }

    @Override
    public void close() {
        client.shutdown();
    }
}
