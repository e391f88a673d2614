/** A lock of one of the libraries. */
interface Lock extends AutoCloseable {
    /** Takes the lock on a key, waiting as this library does, and says how to give it back. */
    Release take(String key) throws Exception;

    /** Of the library, as its own jar has it. */
    String version() throws Exception;

    /** Gives a lock back. The thread is the one that took it. */
    interface Release {
        void now() throws Exception;
    }
}
