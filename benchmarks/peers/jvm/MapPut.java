import java.util.concurrent.ConcurrentHashMap;

/** One put into a ConcurrentHashMap under the connection's name: a touch by name, as cheap as the JDK has it. */
final class MapPut extends Scan {
    private final ConcurrentHashMap<String, Long> last = new ConcurrentHashMap<>();

    MapPut(long tickMillis, long timeoutMillis, Hook hook) {
        super(tickMillis, timeoutMillis, hook);
    }

    @Override
    Connection open(int number) {
        Named named = new Named(number);
        named.touch();
        return scanned(named);
    }

    @Override
    long lastTouched(Connection connection) {
        return last.get(((Named) connection).name);
    }

    private final class Named extends Connection {
        private final String name;

        Named(int number) {
            super(number);
            name = Bench.name(number);
        }

        @Override
        void touch() {
            last.put(name, epoch);
        }
    }
}
