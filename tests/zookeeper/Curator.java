import java.io.BufferedReader;
import java.io.InputStreamReader;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessLock;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.framework.recipes.locks.InterProcessReadWriteLock;
import org.apache.curator.retry.RetryOneTime;

/**
 * A Java service that locks with Apache Curator, as its users do. Each line
 * that it is told is one word and a path: "mutex", "read" or "write" take the
 * lock, "try-mutex", "try-read" and "try-write" if it is free, and "release"
 * gives back the one that was taken last. It answers with "waits" before it
 * waits, and then "held", "busy" or "released".
 */
public class Curator {
    public static void main(String[] arguments) throws Exception {
        CuratorFramework client =
                CuratorFrameworkFactory.newClient(arguments[0], new RetryOneTime(100));
        client.start();
        BufferedReader orders = new BufferedReader(new InputStreamReader(System.in));
        InterProcessLock held = null;
        for (String order = orders.readLine(); order != null; order = orders.readLine()) {
            String[] words = order.split(" ", 2);
            if (words[0].equals("release")) {
                held.release();
                say("released");
                continue;
            }
            boolean tries = words[0].startsWith("try-");
            held = lock(client, words[0].replace("try-", ""), words[1]);
            if (tries) {
                say(held.acquire(0, java.util.concurrent.TimeUnit.MILLISECONDS) ? "held" : "busy");
            } else {
                say("waits");
                held.acquire();
                say("held");
            }
        }
        client.close();
    }

    private static InterProcessLock lock(CuratorFramework client, String kind, String path) {
        switch (kind) {
            case "mutex":
                return new InterProcessMutex(client, path);
            case "read":
                return new InterProcessReadWriteLock(client, path).readLock();
            case "write":
                return new InterProcessReadWriteLock(client, path).writeLock();
            default:
                throw new IllegalArgumentException(kind);
        }
    }

    private static void say(String word) {
        System.out.println(word);
        System.out.flush();
    }
}
