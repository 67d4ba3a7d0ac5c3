/** One store into a field of the connection: what a touch costs at least. */
final class FieldStore extends Scan {
    FieldStore(long tickMillis, long timeoutMillis, Hook hook) {
        super(tickMillis, timeoutMillis, hook);
    }

    @Override
    Connection open(int number) {
        return scanned(new Stamped(number));
    }

    @Override
    long lastTouched(Connection connection) {
        return ((Stamped) connection).stamp;
    }

    private final class Stamped extends Connection {
        private long stamp = epoch;

        Stamped(int number) {
            super(number);
        }

        @Override
        void touch() {
            stamp = epoch;
        }
    }
}
