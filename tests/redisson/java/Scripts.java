import java.io.DataInputStream;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.TreeMap;
import java.util.jar.JarEntry;
import java.util.jar.JarFile;

/**
 * Of each class of locks in Redisson's jar that has scripts or names of keys in it, the SHA-256
 * of all of these. With a second argument, the texts themselves:
 *
 * java Scripts.java redisson-4.7.0.jar all
 */
public class Scripts {
    public static void main(String[] arguments) throws Exception {
        TreeMap<String, List<String>> classes = new TreeMap<>();
        try (JarFile jar = new JarFile(arguments[0])) {
            for (JarEntry entry : Collections.list(jar.entries())) {
                if (isOfLocks(entry.getName())) {
                    classes.put(entry.getName(), texts(jar, entry));
                }
            }
        }
        classes.values().removeIf(List::isEmpty);
        for (String name : classes.keySet()) {
            String texts = String.join("\n\n", classes.get(name));
            if (arguments.length > 1) {
                System.out.println("== " + name + "\n\n" + texts + "\n");
            } else {
                System.out.println(digest(texts) + "  " + name.replaceAll(".*/|\\.class", ""));
            }
        }
    }

    /** dlock takes no part in the others. */
    private static boolean isOfLocks(String name) {
        return name.matches("org/redisson/(renewal/)?\\w*Lock[\\w$]*\\.class")
                && !name.matches(".*(Spin|Multi).*");
    }

    /** What a constant of the class says. */
    private static List<String> texts(JarFile jar, JarEntry entry) throws IOException {
        List<String> texts = new ArrayList<>();
        DataInputStream in = new DataInputStream(jar.getInputStream(entry));
        in.readFully(new byte[8]);
        int constants = in.readUnsignedShort();
        for (int index = 1; index < constants; index++) {
            int kind = in.readUnsignedByte();
            switch (kind) {
                case 1: // text
                    String text = in.readUTF();
                    if (text.matches("(?s).*(redis\\.call|redisson_|rwlock_).*")) {
                        texts.add(text);
                    }
                    break;
                case 5: case 6: // long and double, which count as two
                    in.readFully(new byte[8]);
                    index++;
                    break;
                case 7: case 8: case 16: case 19: case 20: // one index
                    in.readFully(new byte[2]);
                    break;
                case 15: // handle of a method
                    in.readFully(new byte[3]);
                    break;
                default: // a number, or two indices
                    in.readFully(new byte[4]);
            }
        }
        // Compilers put them in another order.
        Collections.sort(texts);
        return texts;
    }

    private static String digest(String text) throws Exception {
        MessageDigest sha = MessageDigest.getInstance("SHA-256");
        StringBuilder digest = new StringBuilder();
        for (byte one : sha.digest(text.getBytes(StandardCharsets.UTF_8))) {
            digest.append(String.format("%02x", one));
        }
        return digest.toString();
    }
}
