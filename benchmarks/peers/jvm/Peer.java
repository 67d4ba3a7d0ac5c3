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

    /** Wait until the work that touches left to other threads is done. */
    void settle(int touches) throws InterruptedException {}

    /** Stop all threads; nothing fires afterwards. */
    abstract void close();

    /**
     * @param name as benchmarks/peers/jvm.py names them
     * @param tickMillis of the peer's own clock, or 0 for the one it is used with
     */
    static Peer named(String name, long tickMillis, long timeoutMillis, Hook hook) {
        switch (name) {
            case "netty-wheel":
                return new NettyWheel(tickMillis == 0 ? 100 : tickMillis, timeoutMillis, hook);
            case "netty-wheel-lazy":
                return new NettyLazy(tickMillis == 0 ? 100 : tickMillis, timeoutMillis, hook);
            default:
                throw new IllegalArgumentException("no peer is called " + name);
        }
    }
}
