import java.io.InputStream;
import java.util.Properties;

final class Versions {
    private Versions() {}

    /** What Maven has written into the jar that has this class. */
    static String of(Class<?> some, String group, String artifact) throws Exception {
        String path = "/META-INF/maven/" + group + "/" + artifact + "/pom.properties";
        Properties properties = new Properties();
        try (InputStream file = some.getResourceAsStream(path)) {
            properties.load(file);
        }
        return properties.getProperty("version");
    }
}
