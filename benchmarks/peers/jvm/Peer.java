/**
 * What every measured timer of the JVM has to offer: connections that are armed when opened, and that fire when silent.
 *
 * One rule: only one kind of Peer and of Connection is loaded in a process, so that the compiler may inline `touch` as
 * it would in a server that has one kind.
 */
abstract class Peer {
    /** What a peer calls, on whatever thread, when a connection has been silent for its timeout. */
    interface Hook {
        void silent(Connection connection);
    }

    /** One connection, as wide as this peer needs it. */
    abstract static class Connection {
        final int number;

        Connection(int number) {
            this.number = number;
        }

        /** A packet came: the timeout starts again. */
        abstract void touch();
    }

    /** A new connection, armed. */
    abstract Connection open(int number);

    /** Every connection has been touched once more: for peers to whom the second touch of a tick is another thing. */
    void nextPass() {}

    /** Wait until the work that touches left to other threads is done. */
    void settle(int touches) throws InterruptedException {}

    /** Do what is due; only for peers that have no thread of their own. */
    void poll() {}

    /** Stop all threads; nothing fires afterwards. */
    abstract void close();

    /**
     * @param name as benchmarks/peers/jvm.py names them
     * @param tickMillis of the peer's own clock, or 0 for the one it is used with
     */
    static Peer named(String name, long tickMillis, long timeoutMillis, Hook hook) {
        long tick = tickMillis == 0 ? 1000 : tickMillis;
        switch (name) {
            case "netty-wheel":
                return new NettyWheel(tickMillis == 0 ? 100 : tickMillis, timeoutMillis, hook);
            case "netty-wheel-lazy":
                return new NettyLazy(tickMillis == 0 ? 100 : tickMillis, timeoutMillis, hook);
            case "netty-idle-handler":
                return new NettyChannels(true, timeoutMillis, hook);
            case "netty-pipeline":
                return new NettyChannels(false, timeoutMillis, hook);
            case "zookeeper":
                return new ZooKeeperQueue(tick, timeoutMillis, hook, true);
            case "zookeeper-again":
                // A tick as long as the timeout: nearly every update is within that of the one before.
                return new ZooKeeperQueue(Math.max(tick, timeoutMillis), timeoutMillis, hook, false);
            case "executor-remove":
                return new Executor(timeoutMillis, hook, true);
            case "executor-keep":
                return new Executor(timeoutMillis, hook, false);
            case "map-put":
                return new MapPut(tick, timeoutMillis, hook);
            case "field-store":
                return new FieldStore(tick, timeoutMillis, hook);
            default:
                throw new IllegalArgumentException("no peer is called " + name);
        }
    }
}
