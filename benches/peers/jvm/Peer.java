import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.List;

/**
 * Java's locks. Its arguments are "--lock redisson|curator --server host:port". It is told what
 * to do as benches/program.rs says.
 */
public final class Peer {
    private Peer() {}

    public static void main(String[] arguments) {
        try {
            serve(argument(arguments, "--lock"), argument(arguments, "--server"));
        } catch (Throwable failure) {
            failure.printStackTrace();
            System.exit(1);
        }
    }

    private static void serve(String name, String server) throws Exception {
        try (Lock lock = connect(name, server)) {
            // Connects whoever does that only when first used.
            lock.take("warm-up").now();
            say("ready " + lock.version());
            BufferedReader orders = new BufferedReader(new InputStreamReader(System.in));
            Sections sections = new Sections(lock);
            for (String order = orders.readLine(); order != null; order = orders.readLine()) {
                say(answer(sections, order.split(" ")));
            }
            sections.end();
        }
    }

    private static Lock connect(String name, String server) {
        switch (name) {
            case "redisson":
                return new RedissonLock(server);
            case "curator":
                return new CuratorLock(server);
            default:
                throw new IllegalArgumentException(name);
        }
    }

    private static String answer(Sections sections, String[] order) throws Exception {
        String prefix = order[1];
        int tasks = Integer.parseInt(order[2]);
        long third = Long.parseLong(order[3]);
        long fourth = Long.parseLong(order[4]);
        switch (order[0]) {
            case "rate": {
                long start = System.nanoTime();
                long end = start + fourth * 1000;
                long done = sections.run(tasks, task -> prefix + ":" + task % third, 0, end)
                        .stream().filter(section -> section.ended <= end).count();
                return String.valueOf(done * 1e9 / (end - start));
            }
            case "contend": {
                long wait = Math.max(0, fourth - System.nanoTime());
                Thread.sleep(wait / 1_000_000, (int) (wait % 1_000_000));
                long end = Long.parseLong(order[5]);
                List<Sections.Section> done = sections.run(tasks, task -> prefix, third, end);
                StringBuilder lines = new StringBuilder();
                for (Sections.Section section : done) {
                    lines.append(section.asked).append(' ').append(section.begun).append(' ')
                            .append(section.ended).append('\n');
                }
                return lines.append("end").toString();
            }
            default:
                throw new IllegalArgumentException(order[0]);
        }
    }

    private static String argument(String[] arguments, String name) {
        for (int at = 0; at + 1 < arguments.length; at++) {
            if (arguments[at].equals(name)) {
                return arguments[at + 1];
            }
        }
        throw new IllegalArgumentException("without " + name);
    }

    private static void say(String line) {
        System.out.println(line);
        System.out.flush();
    }
}
