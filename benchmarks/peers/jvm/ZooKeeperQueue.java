import org.apache.zookeeper.server.ExpiryQueue;

/**
 * ZooKeeper's ExpiryQueue, driven as its session tracker drives it. A second update within one tick finds the session
 * where it should be and returns; the first one moves it from one set to another.
 */
final class ZooKeeperQueue extends Peer {
    /** How much longer the timeout is in every other pass, so that each update is the first of its tick. */
    private static final int STRETCH_MILLIS = 10_000;

    private final ExpiryQueue<Session> queue;
    private final int timeoutMillis;
    private final boolean firstOfTick;
    private final Thread tracker;
    private volatile boolean closed;
    private int stretch;

    ZooKeeperQueue(long tickMillis, long timeoutMillis, Hook hook, boolean firstOfTick) {
        this.queue = new ExpiryQueue<>((int) tickMillis);
        this.timeoutMillis = (int) timeoutMillis;
        this.firstOfTick = firstOfTick;
        this.tracker = new Thread(() -> track(hook), "tracker");
        tracker.setDaemon(true);
        tracker.start();
    }

    private void track(Hook hook) {
        try {
            while (!closed) {
                long wait = queue.getWaitTime();
                if (wait > 0) {
                    Thread.sleep(wait);
                    continue;
                }
                for (Session session : queue.poll()) {
                    queue.remove(session);
                    hook.silent(session);
                }
            }
        } catch (InterruptedException end) {
            Thread.currentThread().interrupt();
        }
    }

    @Override
    Connection open(int number) {
        return new Session(number);
    }

    @Override
    void nextPass() {
        stretch = firstOfTick && stretch == 0 ? STRETCH_MILLIS : 0;
    }

    @Override
    void close() {
        closed = true;
        tracker.interrupt();
    }

    private final class Session extends Connection {
        Session(int number) {
            super(number);
            queue.update(this, timeoutMillis);
        }

        @Override
        void touch() {
            queue.update(this, timeoutMillis + stretch);
        }
    }
}
