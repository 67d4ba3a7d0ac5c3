import java.util.ArrayList;
import java.util.List;

/**
 * A peer whose touch is one store and whose tick looks at every connection: the floor of the one, and what it costs at
 * the other. A touch stores the open epoch; who has been silent for the timeout and one epoch more has gone.
 */
abstract class Scan extends Peer {
    /** The open epoch. Volatile, so that no loop of touches reads it only once. */
    volatile long epoch = 1;

    private final long epochs;
    private final Hook hook;
    private final List<Connection> connections = new ArrayList<>();
    private final Thread thread;
    private volatile boolean closed;

    Scan(long tickMillis, long timeoutMillis, Hook hook) {
        this.epochs = (timeoutMillis + tickMillis - 1) / tickMillis;
        this.hook = hook;
        thread = new Thread(() -> run(tickMillis), "scan");
        thread.setDaemon(true);
    }

    /** The epoch of the last touch. */
    abstract long lastTouched(Connection connection);

    private void run(long tickMillis) {
        try {
            while (!closed) {
                Thread.sleep(tickMillis);
                epoch++;
                synchronized (connections) {
                    for (int i = connections.size() - 1; i >= 0; i--) {
                        Connection connection = connections.get(i);
                        if (lastTouched(connection) + epochs < epoch) {
                            // The last one takes its place: removal from the middle of a list would move all behind it.
                            Connection last = connections.remove(connections.size() - 1);
                            if (last != connection) {
                                connections.set(i, last);
                            }
                            hook.silent(connection);
                        }
                    }
                }
            }
        } catch (InterruptedException end) {
            Thread.currentThread().interrupt();
        }
    }

    final <C extends Connection> C scanned(C connection) {
        synchronized (connections) {
            connections.add(connection);
        }
        if (thread.getState() == Thread.State.NEW) {
            thread.start();
        }
        return connection;
    }

    @Override
    final void close() {
        closed = true;
        thread.interrupt();
    }
}
