import java.io.File;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.zookeeper.server.DataTree;
import org.apache.zookeeper.server.persistence.FileTxnSnapLog;

/**
 * Ages a folder of a ZooKeeper server that is stopped: the next node that is
 * made in it gets this number, as if so many had been made before. Arguments:
 * the server's directory, the folder, the number. By the server's own classes,
 * in the way it reads its data when it starts and keeps it.
 */
public class NextNumber {
    public static void main(String[] arguments) throws Exception {
        File directory = new File(arguments[0]);
        FileTxnSnapLog data = new FileTxnSnapLog(directory, directory);
        DataTree tree = new DataTree();
        ConcurrentHashMap<Long, Integer> sessions = new ConcurrentHashMap<>();
        data.restore(tree, sessions, (header, transaction, digest) -> {});
        int number = Integer.parseInt(arguments[2]);
        tree.setCversionPzxid(arguments[1], number, tree.lastProcessedZxid);
        data.save(tree, sessions, true);
        data.close();
    }
}
